"""Calls of torch.distributed on Gloo and on mpicoll, and the calls of a Comm that the latter become, in turn.

    mpiexec -n 2 python -m mpicoll.benchmarks.torch latency

A round of each makes a stream of calls, one behind the other; its time is the slowest rank's. What c10d costs is the
median of paired differences between the call of torch.distributed and the Comm's, on numpy arrays of the same memory.
An asynchronous call is waited for at once. A size is what a rank gives: of all_gather_into_tensor its own part, of
reduce_scatter_tensor all parts. Answers are checked first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import torch
import torch.distributed as dist
from mpi4py import MPI
from rich.table import Table

import mpicoll
from mpicoll.cli.group import asking
from mpicoll.cli.sizes import format_size, parse_sizes

from ..command.checks import listed, positive
from ..command.console import console
from ..command.results_file import write_lines
from ..command.spmd import WRONG, SpmdCommand
from ..measure.stats import estimate
from ..results.text import microseconds
from .groups import Groups, groups
from .rounds import Contender, seconds

ITEM = 4  # bytes of a float32
STREAM, MOST = 5e-3, 100  # seconds that the shortest stream takes, and the most calls
TRIED, WARM_UP = 5, 3  # calls of a stream before their number is known, and rounds of each that do not count
GLOO, GLOO_LATER, OURS, OURS_LATER = "Gloo", "Gloo, async", "mpicoll", "mpicoll, async"
PLAIN, PLAIN_LATER = "Comm", "Comm, Wait"
SUMMED, GATHERED, SCATTERED = "all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"
gather: Any = getattr(dist, "all_gather_single", None) or getattr(dist, GATHERED)  # what torch 2.13 calls them
scatter: Any = getattr(dist, "reduce_scatter_single", None) or getattr(dist, SCATTERED)
Call = Callable[[], Any]


@dataclass(frozen=True)
class Latency:
    """Microseconds of a call by each contender at one size, medians; what c10d costs, blocking and asynchronous."""

    operation: str
    size: int
    ranks: int
    median_us: dict[str, float]
    cost_us: float
    later_cost_us: float
    calls: int
    times_us: dict[str, list[float]]


@dataclass(frozen=True)
class Memory:
    """The tensors of an operation, what each element of the output must be where all inputs are 1, and its calls.

    torch gets a group and whether to return at once; blocking and begin are those of a Comm.
    """

    inputs: Any
    output: Any
    expected: float
    torch: Callable[[Any, bool], Any]
    blocking: Call
    begin: Call

    def calls(self, both: Groups) -> dict[str, Call]:
        """Return what takes part."""
        return {
            GLOO: lambda: self.torch(both.gloo, False),
            GLOO_LATER: lambda: self.torch(both.gloo, True).wait(),
            OURS: lambda: self.torch(both.ours, False),
            OURS_LATER: lambda: self.torch(both.ours, True).wait(),
            PLAIN: self.blocking,
            PLAIN_LATER: lambda: self.begin().Wait(),
        }

    def is_right(self, call: Call) -> bool:
        """Make a call, and return whether the answer is right; zeros are left, whose sums stay what they are."""
        self.output.zero_()
        self.inputs.fill_(1)
        call()
        right = bool((self.output == self.expected).all())
        self.output.zero_()
        self.inputs.zero_()
        return right


def all_reduce(comm: Any, n: int) -> Memory:
    """Return a sum of n elements, in place."""
    x = torch.zeros(n)
    array = x.numpy()
    return Memory(
        x, x, comm.size, lambda group, later: dist.all_reduce(x, group=group, async_op=later),
        lambda: comm.Allreduce(MPI.IN_PLACE, array), lambda: comm.Iallreduce(MPI.IN_PLACE, array),
    )  # fmt: skip


def all_gather(comm: Any, n: int) -> Memory:
    """Return how n elements of each rank are gathered."""
    x, out = torch.zeros(n), torch.zeros(n * comm.size)
    array, into = x.numpy(), out.numpy()
    return Memory(
        x, out, 1, lambda group, later: gather(out, x, group=group, async_op=later),
        lambda: comm.Allgather(array, into), lambda: comm.Iallgather(array, into),
    )  # fmt: skip


def reduce_scatter(comm: Any, n: int) -> Memory:
    """Return how n elements, or a few more, are summed, and each rank gets its equal part."""
    block = -(-n // comm.size)
    x, out = torch.zeros(block * comm.size), torch.zeros(block)
    array, into = x.numpy(), out.numpy()
    return Memory(
        x, out, comm.size, lambda group, later: scatter(out, x, group=group, async_op=later),
        lambda: comm.Reduce_scatter_block(array, into), lambda: comm.Ireduce_scatter_block(array, into),
    )  # fmt: skip


OPERATIONS: dict[str, Callable[[Any, int], Memory]] = {
    SUMMED: all_reduce,
    GATHERED: all_gather,
    SCATTERED: reduce_scatter,
}


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--operations", default=",".join(OPERATIONS), help="Of torch.distributed.")
@click.option("--sizes", default="8:4M", help="Bytes that a rank gives: sizes, and ranges FIRST:LAST[:FACTOR].")
@click.option("--rounds", default=20, help="Streams of each.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def latency(operations: str, sizes: str, rounds: int, path: Path | None) -> None:
    """Time single calls of torch.distributed, and those of a Comm."""
    with asking():
        names, lengths = listed("--operations", operations), parse_sizes(sizes)
        for name in names:
            if name not in OPERATIONS:
                raise ValueError(f"--operations: no operation {name!r}; there are {', '.join(OPERATIONS)}")
        positive("--rounds", rounds)
    world, rows, wrong = MPI.Intracomm(MPI.COMM_WORLD), list[Latency](), list[str]()
    with groups() as both:
        comm = mpicoll.Comm(world.Dup())
        for name in names:
            for nbytes in lengths:
                memory = OPERATIONS[name](comm, max(1, nbytes // ITEM))
                wrong += [f"{name} of {nbytes} bytes, {who}" for who in mistaken(world, memory, both)]
                rows.append(measured(world, name, nbytes, memory.calls(both), rounds))
        comm.Free()
    if world.rank == 0:
        for name in names:
            console().print(table(name, [row for row in rows if row.operation == name]))
        if path:
            write_lines(path, rows)
    for what in wrong if world.rank == 0 else ():
        click.echo(f"FAILED: {what}: wrong answer", err=True)
    if wrong:
        raise click.exceptions.Exit(WRONG)


def mistaken(world: MPI.Intracomm, memory: Memory, both: Groups) -> list[str]:
    """Return whose answer is wrong on any rank. Collective."""
    right = {who: memory.is_right(call) for who, call in memory.calls(both).items()}
    return [who for who, mine in right.items() if not world.allreduce(mine, MPI.LAND)]


def measured(world: MPI.Intracomm, name: str, nbytes: int, calls: dict[str, Call], rounds: int) -> Latency:
    """Return what calls take at one size, the same on all ranks. Collective."""

    def timed(length: int, rounds: int) -> dict[str, list[float]]:
        contenders = [Contender(who, stream(call, length)) for who, call in calls.items()]
        took = seconds(world, contenders, rounds, WARM_UP, f"{name} {format_size(nbytes)}")
        return {who: [1e6 * t / length for t in times] for who, times in took.items()}

    quickest = min(1e-6 * times[0] for times in timed(TRIED, 1).values())
    length = min(MOST, max(1, round(STREAM / quickest)))
    took = timed(length, rounds)
    medians = {who: estimate(times).median for who, times in took.items()}
    return Latency(
        name, nbytes, world.size, medians, _difference(took[OURS], took[PLAIN]),
        _difference(took[OURS_LATER], took[PLAIN_LATER]), length, took,
    )  # fmt: skip


def stream(call: Call, length: int) -> Callable[[int], None]:
    """Return what makes so many calls."""

    def run(number: int) -> None:
        for _ in range(length):
            call()

    return run


def _difference(these: Sequence[float], those: Sequence[float]) -> float:
    return estimate(a - b for a, b in zip(these, those)).median


def table(name: str, rows: Sequence[Latency]) -> Table:
    """Return a row for each size of an operation."""
    rich_table = Table(title=f"{name}, {rows[0].ranks} ranks: µs a call", title_justify="left")
    contenders = list(rows[0].median_us)
    for column in ("size", *contenders, "c10d costs", "async", "Gloo / mpicoll", "async"):
        rich_table.add_column(column, justify="right")
    for row in rows:
        took = row.median_us
        rich_table.add_row(
            format_size(row.size), *(microseconds(1e-6 * took[who]) for who in contenders),
            f"{row.cost_us:.1f}", f"{row.later_cost_us:.1f}",
            f"{took[GLOO] / took[OURS]:.2f}", f"{took[GLOO_LATER] / took[OURS_LATER]:.2f}",
        )  # fmt: skip
    return rich_table
