"""Time Neighbor_alltoall on rings, grids and stencils: MPI's own, auto, and every algorithm that serves there.

    mpiexec -n 8 python -m mpicoll.benchmarks.neighbors

In every round each contender makes some calls, in turns. A time is one call's, of the slowest rank; a ratio is MPI's
time over auto's. What each contender receives must be what MPI's own received; the exit status is 1 if it was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
from mpi4py import MPI
from rich.table import Table

import mpicoll
from mpicoll.cli.group import asking
from mpicoll.cli.sizes import format_size, parse_sizes
from mpicoll.errors import MpicollError
from mpicoll.schedules.registry import exact_algorithms

from .command.checks import positive
from .command.console import console
from .command.results_file import write_lines
from .command.spmd import WRONG, SpmdCommand
from .measure.stats import Ratio, ratio
from .measure.turns import in_turns
from .results.text import microseconds, spread

NAME = "mpicoll.benchmarks.neighbors"
COLLECTIVE = "neighbor_alltoall"
CALLS, WARMUP = 20, 4  # calls of a contender in a round, and before the first


def stencil(comm: mpicoll.Comm, dimensions: int) -> mpicoll.Distgraphcomm:
    """Return the communicator of all ranks around one on a periodic grid."""
    offsets = [offset for offset in product((-1, 0, 1), repeat=dimensions) if any(offset)]
    return grid(comm, dimensions).Create_stencil(offsets)


def grid(comm: mpicoll.Comm, dimensions: int) -> mpicoll.Cartcomm:
    """Return a periodic grid of all ranks."""
    return comm.Create_cart(MPI.Compute_dims(comm.size, dimensions), [True] * dimensions)


TOPOLOGIES: dict[str, Callable[[mpicoll.Comm], mpicoll.Cartcomm | mpicoll.Distgraphcomm]] = {
    "ring": lambda comm: grid(comm, 1),
    "grid of 3 dimensions": lambda comm: grid(comm, 3),
    "stencil of 8 neighbours": lambda comm: stencil(comm, 2),
    "stencil of 26 neighbours": lambda comm: stencil(comm, 3),
}


@dataclass(frozen=True)
class Row:
    """Seconds of a call of so many bytes to each neighbour by contender, MPI's over auto's, and whether all is right.

    chosen: what auto ran.
    """

    topology: str
    nbytes: int
    seconds: dict[str, float]
    chosen: str
    ratio: Ratio
    right: bool


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--sizes", default="8,1K,8K,64K", help="Bytes of a block: a list of sizes and ranges.")
@click.option("--seconds", default=20.0, help="Time to spend in all.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def neighbors(sizes: str, seconds: float, path: Path | None) -> None:
    """Time Neighbor_alltoall on some topologies of these ranks."""
    with asking():
        positive("--seconds", seconds)
        numbers = parse_sizes(sizes)
    ours = mpicoll.Comm(MPI.COMM_WORLD.Dup())
    share = seconds / len(TOPOLOGIES) / len(numbers)
    rows = []
    for name, make in TOPOLOGIES.items():
        comm = make(ours)
        rows += [timed(name, comm, nbytes, share) for nbytes in numbers]
        comm.Free()
    if ours.rank == 0:
        console().print(table(rows, ours.size))
        if path:
            write_lines(path, rows)
    if not all(row.right for row in rows):
        raise click.exceptions.Exit(WRONG)


def timed(name: str, comm: mpicoll.Cartcomm | mpicoll.Distgraphcomm, nbytes: int, seconds: float) -> Row:
    """Time calls of one size by all contenders in turns. Collective."""
    count, world = max(1, nbytes // 8), MPI.Intracomm(MPI.COMM_WORLD)
    send = np.arange(count * len(comm.outedges)) + 1e6 * comm.rank
    received = {spec: np.zeros(count * len(comm.inedges)) for spec in ("native", "auto")}
    for spec in exact_algorithms(COLLECTIVE):
        if serves(comm, spec, send, np.zeros_like(received["auto"])):
            received[spec] = np.zeros_like(received["auto"])
    for spec in received:
        spend(comm, spec, send, received[spec], WARMUP)
    works = [partial(spend, comm, spec, send, array, CALLS) for spec, array in received.items()]
    times = dict(zip(received, in_turns(world, works, seconds), strict=True))
    right = all(np.array_equal(array, received["native"]) for array in received.values())
    medians = {spec: float(np.median(spent)) for spec, spent in times.items()}
    chosen = comm.explain(COLLECTIVE, 8 * count).algorithm
    return Row(
        name, 8 * count, medians, chosen, ratio(times["native"], times["auto"]), world.allreduce(right, MPI.LAND)
    )


def serves(comm: mpicoll.Comm, spec: str, send: np.ndarray, recv: np.ndarray) -> bool:
    """Return whether an algorithm suits the topology; the answer is the same on every rank."""
    try:
        spend(comm, spec, send, recv, 1)
    except MpicollError:
        return False
    return True


def spend(comm: mpicoll.Comm, spec: str, send: np.ndarray, recv: np.ndarray, calls: int) -> float:
    """Return the seconds of one of some calls; MPI's own runs as without mpicoll."""
    on: Any = MPI.Topocomm(comm) if spec == "native" else comm
    with comm.using(neighbor_alltoall=spec):
        begin = time.perf_counter()
        for _ in range(calls):
            on.Neighbor_alltoall(send, recv)
        return (time.perf_counter() - begin) / calls


def table(rows: list[Row], ranks: int) -> Table:
    """Return the rows as a table."""
    printed = Table(title=f"µs of a Neighbor_alltoall, {ranks} ranks, and MPI's time over auto's", title_justify="left")
    specs = list(dict.fromkeys(spec for row in rows for spec in row.seconds))
    for name in ("topology", "a block", *specs, "auto chose", "ratio", "95 %"):
        printed.add_column(name, justify="left" if name in ("topology", "auto chose") else "right")
    for row in rows:
        times = (microseconds(row.seconds[spec]) if spec in row.seconds else "" for spec in specs)
        wrong = "" if row.right else " WRONG"
        between = spread(row.ratio, lambda value: f"{value:.2f}")
        size = format_size(row.nbytes)
        printed.add_row(f"{row.topology}{wrong}", size, *times, row.chosen, f"{row.ratio.median:.2f}", between)
    return printed


if __name__ == "__main__":
    neighbors.main(prog_name=f"python -m {NAME}")
