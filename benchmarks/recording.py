"""Time Allreduces while a timeline is recorded and without one, in turns.

    mpiexec -n 2 python -m mpicoll.benchmarks.recording

A turn is a loop of calls with nothing between them; a time is one call's, of the slowest rank. What begins and ends a
timeline is not timed. The exit status is 1 if a timeline lacks a call.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from mpi4py import MPI
from rich.table import Table

import mpicoll
from mpicoll.cli.group import asking
from mpicoll.cli.sizes import format_size, parse_sizes

from .command.checks import positive
from .command.console import console
from .command.results_file import write_lines
from .command.spmd import WRONG, SpmdCommand
from .measure.stats import Ratio, ratio
from .measure.turns import in_turns
from .results.text import microseconds, spread

NAME = "mpicoll.benchmarks.recording"
WARMUP = 10  # calls before those of a loop
MOST_CALLS, LEAST_CALLS, LOOP_BYTES = 1000, 20, 40 << 20  # of a loop


@dataclass(frozen=True)
class Row:
    """Calls of one size: seconds without and with a timeline, the ratio with over without, and if it has all calls."""

    nbytes: int
    without: float
    recorded: float
    ratio: Ratio
    right: bool


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--sizes", default="8,1M", help="Bytes of an Allreduce: a list of sizes and ranges.")
@click.option("--seconds", default=40.0, help="Time to spend in all.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def recording(sizes: str, seconds: float, path: Path | None) -> None:
    """Time Allreduces with a timeline and without."""
    with asking():
        positive("--seconds", seconds)
        numbers = parse_sizes(sizes)
    comm = mpicoll.Comm(MPI.COMM_WORLD.Dup())
    rows = [timed(comm, nbytes, seconds / len(numbers)) for nbytes in numbers]
    if comm.rank == 0:
        console().print(table(rows, comm.size))
        if path:
            write_lines(path, rows)
    if not all(row.right for row in rows):
        raise click.exceptions.Exit(WRONG)


def timed(comm: mpicoll.Comm, nbytes: int, seconds: float) -> Row:
    """Time calls of one size in turns. Collective."""
    send, receive = np.ones(max(1, nbytes // 8)), np.empty(max(1, nbytes // 8))
    calls = min(MOST_CALLS, max(LEAST_CALLS, LOOP_BYTES // max(1, nbytes)))
    missing = []

    def loop() -> float:
        for _ in range(WARMUP):
            comm.Allreduce(send, receive)
        MPI.Intracomm.Barrier(comm)
        begin = time.perf_counter()
        for _ in range(calls):
            comm.Allreduce(send, receive)
        return (time.perf_counter() - begin) / calls

    def recorded_loop() -> float:
        with comm.timeline() as timeline:
            took = loop()
        if timeline.trace is not None:
            recorded = sum(event.get("cat") == "collective" for event in timeline.trace["traceEvents"])
            missing.append(comm.size * (WARMUP + calls) - recorded)
        return took

    times = in_turns(MPI.Intracomm(MPI.COMM_WORLD), (loop, recorded_loop), seconds)
    without, recorded = (float(np.median(spent)) for spent in times)
    right = comm.allreduce(not any(missing), MPI.LAND)
    return Row(send.nbytes, without, recorded, ratio(times[1], times[0]), right)


def table(rows: list[Row], ranks: int) -> Table:
    """Return the rows as a table."""
    printed = Table(title=f"µs of an Allreduce, {ranks} ranks, and the time with a timeline over that without",
                    title_justify="left")
    for name in ("size", "without", "with a timeline", "more", "ratio", "95 %"):
        printed.add_column(name, justify="right")
    for row in rows:
        times = map(microseconds, (row.without, row.recorded, row.recorded - row.without))
        between = spread(row.ratio, lambda value: f"{value:.2f}")
        wrong = "" if row.right else " WRONG"
        printed.add_row(f"{format_size(row.nbytes)}{wrong}", *times, f"{row.ratio.median:.2f}", between)
    return printed


if __name__ == "__main__":
    recording.main(prog_name=f"python -m {NAME}")
