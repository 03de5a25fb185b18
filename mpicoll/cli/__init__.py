"""The command line, `mpicoll` or `python -m mpicoll`.

Errors are one line: exit status 2 for a usage error, 1 for a failure. MPI is imported only by the
commands that need it. Under mpiexec, commands that look at schedules run on one rank and the others leave.
"""

from __future__ import annotations

import click

from .._version import __version__
from ..launcher import RANK_VARIABLES, rank
from .group import Later, OneLine, uses_mpi
from .info import info
from .listing import list_
from .load import load_everywhere
from .run import run
from .show import show
from .status import status
from .timeline import timeline
from .verify import verify
from .warm import warm

__all__ = ["RANK_VARIABLES", "main", "rank"]


@click.group(cls=OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpicoll")
@click.option(
    "--load", "files", multiple=True, metavar="FILE", help="A Python file that registers algorithms; may be repeated."
)
@click.pass_context
def main(context: click.Context, files: tuple[str, ...]) -> None:
    """MPI collectives as data: list, see, prove, time and run their algorithms."""
    load_everywhere(files, together=uses_mpi(main.commands.get(context.invoked_subcommand or "")))


for command in (list_, show, verify, info, run, status, timeline, warm):
    main.add_command(command)
for command in (
    Later("explore", "cli.explore:explore", "One page on which algorithms are played step by step."),
    Later("export", "cli.export:export", "Write an algorithm as GOAL text, which LogGOPSim plays."),
    Later("bench", "benchmarks.bench.cli:bench", "Time algorithms beside MPI's, under mpiexec.", uses_mpi=True),
    Later("tune", "benchmarks.tune.cli:tune", "Measure what auto is to choose, under mpiexec.", uses_mpi=True),
    Later("calibrate", "benchmarks.calibrate:calibrate", "Measure the network, under mpiexec.", uses_mpi=True),
    Later("choose", "benchmarks.choose:choose", "What auto would choose on a network, by a model, without MPI."),
    Later("simulate", "benchmarks.simulate:simulate", "Simulate algorithms on a network, without MPI."),
    Later("train", "benchmarks.train.cli:train", "Train by the patterns of distributed training.", uses_mpi=True),
    Later("jobs", "jobs.cli:jobs", "Scaling runs under Slurm, from script to report."),
    Later("report", "benchmarks.report.cli:report", "Show, compare and draw what was timed; maps by a model."),
):
    main.add_command(command)
