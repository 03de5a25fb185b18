"""docs/TROUBLESHOOTING.md: its programs print the reports that it shows, and its table has all symptoms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from guide import consoles, execute

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "TROUBLESHOOTING.md"
ABORTS = re.compile(r"rank \d+: (?=MPICOLL_TIMEOUT=\d is over, aborting)")
ERROR = re.compile(r"^mpicoll\.errors\.\w+: ")


def reports(lines: list[str]) -> set[str]:
    """Return mpicoll's lines without what differs from run to run, such as the rank that aborts."""
    for varying in (r"for \d+ s\b", r"(mpi4py|compiled) engine", r"process \d+"):
        lines = [re.sub(varying, "#", line) for line in lines]
    return {ABORTS.sub("", line) for line in lines if line.startswith("mpicoll: ")}


@pytest.mark.parametrize("console", consoles(GUIDE.read_text()), ids=lambda c: re.sub(r"\W+", "-", c.commands[0][0]))
def test_the_reports(console, tmp_path):
    console.write(tmp_path)
    for command, shown in console.commands:
        status, output = execute(command, tmp_path)
        assert status, output
        assert reports(output.split("\n")) == reports(shown), output
        errors = [ERROR.sub("", line) for line in shown if ERROR.match(line)]
        assert all(error in output for error in errors), output  # the ranks' tracebacks may tear each other apart
        assert errors or reports(shown)


def test_every_report_is_there():
    """Find each report of another rank in the table, and those that may not appear in the text."""
    text = GUIDE.read_text()
    for words in ("has not made this call: now at", "ended with", "raised", "reached the end of the program",
                  "has made another call here", "every rank has made this call", "has not started this call",
                  "waits for MPI's own collective", "has not answered", "has not written for", "is stopped"):
        assert words in text.split("## How")[0], words
    assert len(consoles(text)) == text.count("```console") == 13
    assert all(words in text for words in ("RUNNING AT", "rank 1 with PID", "RANK 1 PID"))  # test_stall.py sees them


@pytest.mark.parametrize("other", ["for 2 s\nmpicoll: rank 1: b", "for 2 m", ""])
def test_reports_are_compared(other):
    shown = ["mpicoll: rank 1: a (x, mpi4py engine) has not moved for 1 s", "Traceback"]
    got = ["mpicoll: rank 1: a (x, compiled engine) has not moved for 2 s", "Abort(86)"]
    assert reports(shown) == reports(got)
    assert reports(shown) != reports(f"mpicoll: rank 1: a (x, compiled engine) has not moved {other}".split("\n"))
    aborts = "MPICOLL_TIMEOUT=1 is over, aborting"
    assert reports([f"mpicoll: rank {r}: {aborts}" for r in (0, 2)]) == {f"mpicoll: {aborts}"}
