"""Time what `auto` chooses by fixed rules, by the model, and by what it learned, beside MPI's own collectives.

    mpiexec -n 4 python -m mpicoll.benchmarks.choosers
    python -m mpicoll.benchmarks.hosts --hosts 4 --rate 200Mbit python -m mpicoll.benchmarks.choosers --sizes 1K:1M:8

In every round each makes one call, in an order that is drawn anew. A time is that of the slowest rank, a ratio MPI's
time over the other's. Answers are checked: the exit status is 1 if one was wrong.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from mpi4py import MPI
from rich.table import Table

import mpicoll
from mpicoll.cli.group import asking
from mpicoll.cli.sizes import format_size, parse_sizes
from mpicoll.garbage import collection_off
from mpicoll.selection.learning import MOST, TIMED, UNTIMED
from mpicoll.selection.select import ANY, Choice
from mpicoll.selection.settings import NONE

from .cases.case import Case
from .cases.patterns import Shape
from .command.checks import listed, positive
from .command.console import console
from .command.results_file import write_lines
from .command.spmd import WRONG, SpmdCommand
from .measure.stats import geometric_mean, ratio
from .results.text import microseconds

NAME = "mpicoll.benchmarks.choosers"
COLLECTIVES = "allreduce,bcast,reduce,allgather,reduce_scatter,alltoall,gather,scatter"
RULES, MODEL, LEARNED = "fixed rules", "auto", "auto, learned"
VARIABLES = ("MPICOLL_NETWORK", "MPICOLL_LEARN", "MPICOLL_TUNING")
LEAST = 5  # rounds


@dataclass(frozen=True)
class Row:
    """The median seconds of one collective and size, by who chose; MPI's time over the others'; what they chose."""

    collective: str
    nbytes: int
    native: float
    seconds: dict[str, float]
    ratios: dict[str, float]
    choices: dict[str, str]
    right: bool


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--collectives", default=COLLECTIVES, help="A list of names.")
@click.option("--sizes", default="1K:1M:4", help="Bytes, as for mpicoll bench: a list and ranges FIRST:LAST[:FACTOR].")
@click.option("--seconds", default=60.0, help="Time to spend in all, apart from learning.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def choosers(collectives: str, sizes: str, seconds: float, path: Path | None) -> None:
    """Compare what chooses an algorithm: start it under mpiexec."""
    with asking():
        positive("--seconds", seconds)
        shapes, numbers = [Shape(name) for name in listed("--collectives", collectives)], parse_sizes(sizes)
    world = MPI.Intracomm(MPI.COMM_WORLD)
    ours = {RULES: _made(world, MPICOLL_NETWORK=NONE), MODEL: _made(world), LEARNED: _made(world, MPICOLL_LEARN=ANY)}
    share = seconds / (len(shapes) * len(numbers))
    rows = [timed(shape, size, world, ours, share) for shape in shapes for size in numbers]
    if world.rank == 0:
        console().print(table(rows, world.size))
        if path:
            write_lines(path, rows)
    if not all(row.right for row in rows):
        raise click.exceptions.Exit(WRONG)


def _made(world: MPI.Intracomm, **variables: str) -> mpicoll.Comm:
    """Return a communicator of all ranks that was made with these variables and none of their kind."""
    before = {name: os.environ.pop(name, None) for name in VARIABLES}
    os.environ.update(variables)
    try:
        return mpicoll.Comm(world.Dup())
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def timed(shape: Shape, size: int, world: MPI.Intracomm, ours: dict[str, mpicoll.Comm], seconds: float) -> Row:
    """Time one collective and size on all communicators. Collective."""
    case, right = Case(shape, size, world.rank, world.size), True
    with ExitStack() as stack:
        calls = [stack.enter_context(case.ready(comm, MPI)).call for comm in (world, *ours.values())]
        for call in calls:
            case.poison()
            call()
            right = right and case.is_right()
        for _ in range((MOST + 1) * (UNTIMED + TIMED) + 3):
            calls[-1]()
        for _ in range(LEAST):
            took = world.allreduce(max(_round(world, calls, 0)), MPI.MAX)
        rounds = max(LEAST, int(seconds / (took * len(calls))))
        with collection_off():
            local = np.array([_round(world, calls, i) for i in range(rounds)])
    times = np.empty_like(local)
    world.Allreduce(local, times, MPI.MAX)
    right = world.allreduce(right and case.is_right(), MPI.LAND)
    native, *medians = np.median(times, axis=0).tolist()
    ratios = {who: ratio(times[:, 0].tolist(), times[:, i].tolist()).median for i, who in enumerate(ours, 1)}
    nbytes = shape.bytes_of_call(size, world.size)
    chosen = {who: _words(comm.explain(shape.collective, nbytes)) for who, comm in ours.items()}
    return Row(shape.collective, size, native, dict(zip(ours, medians)), ratios, chosen, right)


def _round(world: MPI.Intracomm, calls: Sequence[Callable[[], object]], number: int) -> list[float]:
    """Return the seconds of one call each, in an order that is the same on every rank."""
    spent = [0.0] * len(calls)
    for at in np.random.default_rng(number).permutation(len(calls)).tolist():
        world.Barrier()
        began = time.perf_counter()
        calls[at]()
        spent[at] = time.perf_counter() - began
    return spent


def _words(choice: Choice) -> str:
    chunks = "" if choice.chunk_bytes is None else f" {format_size(choice.chunk_bytes)}"
    return f"{choice.algorithm}{chunks}"


def table(rows: list[Row], ranks: int) -> Table:
    """Return the rows, their geometric mean and their least as a table."""
    printed = Table(
        title=f"µs of MPI's collectives on {ranks} ranks, and MPI's time over mpicoll's", title_justify="left"
    )
    for name in ("collective", "bytes", "MPI", *rows[0].ratios):
        printed.add_column(name, justify="left" if name == "collective" else "right")
    for row in rows:
        wrong = "" if row.right else " WRONG"
        ratios = (f"{row.ratios[who]:.2f} {row.choices[who]}" for who in row.ratios)
        printed.add_row(f"{row.collective}{wrong}", format_size(row.nbytes), microseconds(row.native), *ratios)
    columns = [[row.ratios[who] for row in rows] for who in rows[0].ratios]
    printed.add_row("geometric mean", "", "", *(f"{geometric_mean(column):.2f}" for column in columns))
    printed.add_row("least", "", "", *(f"{min(column):.2f}" for column in columns))
    return printed


if __name__ == "__main__":
    choosers.main(prog_name=f"python -m {NAME}")
