"""`mpicoll` as a person starts it, without any launcher."""

from __future__ import annotations

from collections.abc import Mapping

from click.testing import CliRunner, Result

from mpicoll import cli


def run(*words: object, env: Mapping[str, str] | None = None) -> Result:
    """Run a command line and return its outcome."""
    by_hand = dict.fromkeys(cli.RANK_VARIABLES)
    return CliRunner(env={**by_hand, **(env or {})}).invoke(cli.main, [*map(str, words)], prog_name="mpicoll")


def good(*words: object) -> str:
    """Return the output of a command line that succeeds."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: object, status: int = 2) -> str:
    """Return the one line of its error."""
    result = run(*words)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    line, end = result.stderr[:-1], result.stderr[-1:]
    assert end == "\n" and "\n" not in line and line.startswith("mpicoll"), result.stderr
    return line
