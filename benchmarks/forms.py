"""Time calls in the forms in which programs make them: other counts in every call, derived datatypes, user operators.

    mpiexec -n 2 python -m mpicoll.benchmarks.forms

The other benchmarks repeat one call. Here loops are as programs have them, and run in turns on MPI's own communicator
and on mpicoll's. Both have to receive the same data in their last call. A time is that of one call on the slowest rank;
a ratio is MPI's time over mpicoll's. The exit status is 1 if a result was wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path

import click
import numpy as np
from mpi4py import MPI
from rich.table import Table

import mpicoll
from mpicoll.cli.group import asking

from .cases.loops import CALLS, FORMS, TURNS
from .command.checks import positive
from .command.console import console
from .command.results_file import write_lines
from .command.spmd import WRONG, SpmdCommand
from .measure.stats import Ratio, geometric_mean, ratio
from .measure.turns import in_turns
from .results.text import microseconds, spread

NAME = "mpicoll.benchmarks.forms"
WARMUP = 2  # loops


@dataclass(frozen=True)
class Row:
    """The loops of one form: seconds per call, MPI's over mpicoll's, and whether the results were the same."""

    form: str
    native: float
    ours: float
    ratio: Ratio
    right: bool


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=20.0, help="Time to spend in all.")
@click.option("--only", default="", help="Forms with this in their name.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def forms(seconds: float, only: str, path: Path | None) -> None:
    """Time calls in the forms that programs have, beside MPI's own."""
    with asking():
        positive("--seconds", seconds)
        chosen = [name for name in FORMS if only in name]
        if not chosen:
            raise ValueError(f"no form has {only!r} in its name; there are: {'; '.join(FORMS)}")
    world = MPI.Intracomm(MPI.COMM_WORLD)
    ours = mpicoll.Comm(world.Dup())
    rows = [timed(name, world, ours, seconds / len(chosen)) for name in chosen]
    if world.rank == 0:
        console().print(table(rows, world.size))
        if path:
            write_lines(path, rows)
    if not all(row.right for row in rows):
        raise click.exceptions.Exit(WRONG)


def timed(name: str, world: MPI.Intracomm, ours: MPI.Intracomm, seconds: float) -> Row:
    """Time one form on both communicators in turns. Collective."""
    loops = [FORMS[name](comm) for comm in (world, ours)]
    turns = [cycle(range(TURNS)) for _ in loops]  # the counts of all calls differ
    for (call, _), numbers in zip(loops, turns):
        for turn in islice(numbers, CALLS * WARMUP):
            call(turn)
    right = world.allreduce(bool(np.array_equal(loops[0][1], loops[1][1])), MPI.LAND)
    times = in_turns(world, [partial(spend, call, own) for (call, _), own in zip(loops, turns)], seconds)
    native, mine = (float(np.median(spent)) for spent in times)
    return Row(name, native, mine, ratio(times[0], times[1]), right)


def spend(call: Callable[[int], object], turns: Iterator[int]) -> float:
    """Return the seconds of a call in a loop."""
    begin = time.perf_counter()
    for turn in islice(turns, CALLS):
        call(turn)
    return (time.perf_counter() - begin) / CALLS


def table(rows: list[Row], ranks: int) -> Table:
    """Return the rows and their geometric mean as a table."""
    printed = Table(title=f"µs of a call, {ranks} ranks, and MPI's time over mpicoll's", title_justify="left")
    for name in ("form", "MPI", "mpicoll", "ratio", "95 %"):
        printed.add_column(name, justify="left" if name == "form" else "right")
    for row in rows:
        wrong = "" if row.right else " WRONG"
        between = spread(row.ratio, lambda value: f"{value:.2f}")
        times = microseconds(row.native), microseconds(row.ours)
        printed.add_row(f"{row.form}{wrong}", *times, f"{row.ratio.median:.2f}", between)
    printed.add_row("geometric mean", "", "", f"{geometric_mean([row.ratio.median for row in rows]):.2f}", "")
    return printed


if __name__ == "__main__":
    forms.main(prog_name=f"python -m {NAME}")
