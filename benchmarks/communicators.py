"""Time making communicators, on all ranks of a run: a Comm beside MPI's own Dup, and many Splits.

    mpiexec -n 16 python -m mpicoll.benchmarks.communicators --splits 100

A Comm makes a private duplicate and agrees on settings: its time is compared with that of MPI's own Dup, which it
contains. Splits are made one after the other and freed; what each of them costs, and the memory that they leave, should
not depend on how many came before. A time is the slowest rank's.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.cli.group import asking

from .command.checks import positive
from .command.console import console
from .command.results_file import write_lines
from .command.spmd import SpmdCommand

NAME = "mpicoll.benchmarks.communicators"
TRIES = 20


@dataclass(frozen=True)
class Made:
    """The cost of making communicators on `ranks` ranks: in µs, and the largest growth of a rank's memory in KiB.

    first_us and last_us are the medians of the first and the last tenth of the Splits.
    """

    ranks: int
    dup_us: float
    comm_us: float
    splits: int
    first_us: float
    last_us: float
    grown_kib: float


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--splits", default=100, help="How many Splits are made.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def communicators(splits: int, path: Path | None) -> None:
    """Time making communicators on these ranks."""
    with asking():
        positive("--splits", splits)
    result = measure(splits)
    if MPI.COMM_WORLD.rank == 0:
        console().print(
            f"{result.ranks} ranks: MPI's Dup {result.dup_us:,.0f} µs, that and a Comm {result.comm_us:,.0f} µs; "
            f"{splits} Splits of all ranks, freed: the first {result.first_us:,.0f} µs each, the last "
            f"{result.last_us:,.0f} µs; memory grew by {result.grown_kib:,.0f} KiB"
        )
        if path:
            write_lines(path, [result])


def measure(splits: int) -> Made:
    """Make communicators of all ranks and time it. Collective."""
    world = MPI.Intracomm(MPI.COMM_WORLD)
    ours = mpicoll.Comm(world)

    def duplicate() -> None:
        world.Dup().Free()

    def wrap() -> None:
        mpicoll.Comm(world.Dup()).Free()

    def split() -> None:
        ours.Split(0, ours.rank).Free()

    dup, comm = (float(np.median([_slowest(world, work) for _ in range(TRIES)])) for work in (duplicate, wrap))
    for _ in range(TRIES):
        split()
    before = _resident()
    times = [_slowest(world, split) for _ in range(splits)]
    tenth = max(1, splits // 10)
    grown = world.allreduce(_resident() - before, MPI.MAX)
    first, last = float(np.median(times[:tenth])), float(np.median(times[-tenth:]))
    return Made(world.size, 1e6 * dup, 1e6 * comm, splits, 1e6 * first, 1e6 * last, grown / 1024)


def _slowest(world: MPI.Intracomm, work: Callable[[], object]) -> float:
    """Return the seconds of the slowest rank, which all begin together."""
    world.Barrier()
    began = time.perf_counter()
    work()
    seconds: float = world.allreduce(time.perf_counter() - began, MPI.MAX)
    return seconds


def _resident() -> int:
    """Return the bytes of this process in memory."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * 4096


if __name__ == "__main__":
    communicators.main(prog_name=f"python -m {NAME}")
