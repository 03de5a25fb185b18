"""The command line, `mpicoll` or `python -m mpicoll`.

Errors are one line: exit status 2 for what was asked wrongly, 1 for what failed. MPI is imported only by the
commands that need it. Under mpiexec, commands that look at schedules run on one rank and the others leave.
"""

from __future__ import annotations

import json

import click

from .. import __version__
from .group import RANK_VARIABLES, Later, OneLine, rank
from .listing import list_
from .load import load_everywhere
from .show import show
from .verify import verify

__all__ = ["RANK_VARIABLES", "main", "rank"]


@click.group(cls=OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpicoll")
@click.option(
    "--load", "files", multiple=True, metavar="FILE", help="A Python file that registers algorithms; may be repeated."
)
@click.pass_context
def main(context: click.Context, files: tuple[str, ...]) -> None:
    """MPI collectives as data: list, see, prove and time their algorithms."""
    load_everywhere(files, together=context.invoked_subcommand == "bench")


@click.command(short_help="What runs where: MPI, ranks, engines, kernels.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def info(as_json: bool) -> None:
    """The MPI library, ranks and their binding, engines and kernels; alone or under mpiexec."""
    from .. import info as facts

    try:
        found = facts.gather()
    except (ImportError, RuntimeError) as error:
        raise click.ClickException(f"MPI does not start: {error}") from None
    if found is None:
        return
    click.echo(json.dumps(found, indent=2) if as_json else facts.lines(found))


for command in (list_, show, verify, info):
    main.add_command(command)
main.add_command(Later("bench", "mpicoll.benchmarks.cli:bench", "Time algorithms beside MPI's own, under mpiexec."))
main.add_command(Later("report", "mpicoll.benchmarks.report.cli:report", "Show, compare and draw what was timed."))
