"""The command line, `mpicoll` or `python -m mpicoll`.

Errors are one line: exit status 2 for what was asked wrongly, 1 for what failed. MPI is imported only by the
commands that need it. Under mpiexec, commands that look at schedules run on one rank and the others leave.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from .._version import __version__
from ..launcher import RANK_VARIABLES, rank
from .group import Later, OneLine
from .listing import list_
from .load import load_everywhere
from .run import run
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
    """MPI collectives as data: list, see, prove, time and run their algorithms."""
    load_everywhere(files, together=context.invoked_subcommand in ("bench", "run", "tune"))


@click.command(short_help="What runs where: MPI, ranks, engines, kernels.")
@click.option("--check", is_flag=True, help="Look for what goes wrong on clusters; exit status 1 if anything is wrong.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--facts", "path", metavar="FILE", help="Also write what --json prints to FILE.")
def info(check: bool, as_json: bool, path: str | None) -> int:
    """Show the MPI library, ranks and their binding, engines and kernels; alone or under mpiexec."""
    from .. import doctor
    from ..doctor import info as facts

    try:
        found, findings, status = doctor.examine() if check else (facts.gather(), [], 0)
    except (ImportError, RuntimeError) as error:
        raise click.ClickException(f"MPI does not start: {error}") from None
    if found is None or (status and len(found["ranks"]) == 1 and rank() > 0):  # each is rank 0 of 1: one speaks
        return status
    every = json.dumps({**found, "findings": list(map(asdict, findings))} if check else found, indent=2)
    click.echo(every if as_json else doctor.lines(found, findings) if check else facts.lines(found))
    if path is not None:
        try:
            Path(path).write_text(f"{every}\n", encoding="utf-8")
        except OSError as error:
            click.echo(f"mpicoll info: cannot write {path}: {error.strerror}", err=True)  # nothing wrong with MPI
    return status


for command in (list_, show, verify, info, run):
    main.add_command(command)
main.add_command(Later("bench", "mpicoll.benchmarks.bench.cli:bench", "Time algorithms beside MPI's, under mpiexec."))
main.add_command(Later("tune", "mpicoll.benchmarks.tune.cli:tune", "Measure what auto is to choose, under mpiexec."))
main.add_command(Later("jobs", "mpicoll.jobs.cli:jobs", "Scaling runs under Slurm, from script to report."))
main.add_command(Later("report", "mpicoll.benchmarks.report.cli:report", "Show, compare and draw what was timed."))
