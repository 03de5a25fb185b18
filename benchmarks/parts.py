"""Time what a call costs before its first message, part by part, and a program before its first call.

    python -m mpicoll.benchmarks.parts --methods Allreduce,Allgatherv

Calls are made on one rank, where a collective posts no message: what is left is the call itself. The fast path, which
kinds of calls take that were made before, in the order in which it goes; the slow path, function by function; and
mpi4py's own method, MPI's work for one rank included. Starting is timed in processes of their own, on a warm cache.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from mpi4py import MPI
from rich.table import Table

import mpicoll
from mpicoll.cli.group import OneLineCommand, asking
from mpicoll.dispatch import execute, methods, prepare
from mpicoll.dispatch.call import describe_call
from mpicoll.dispatch.methods import Invocation
from mpicoll.fastpath import context, rows
from mpicoll.schedules.collectives import COLLECTIVES, base_collective

from .command.checks import listed, positive
from .command.console import console
from .command.results_file import write_lines
from .measure.one_process import interleaved
from .measure.stats import Estimate, estimate
from .results.text import microseconds, spread

NAME = "mpicoll.benchmarks.parts"
NEVER = 1 << 60  # bytes of scratch that there never are
LEARNT = 3  # calls after which a kind goes the fast path
START = """
import time
begin = time.perf_counter()
from mpi4py import MPI
import numpy as np
ready = time.perf_counter()
import mpicoll
imported = time.perf_counter()
comm = mpicoll.Comm(MPI.COMM_WORLD)
made = time.perf_counter()
x, y = np.ones(1), np.zeros(1)
comm.Allreduce(x, y)
first = time.perf_counter()
another = mpicoll.Comm(MPI.COMM_WORLD.Dup())
print(ready - begin, imported - ready, made - imported, first - made, time.perf_counter() - first)
"""
STARTING = ("mpi4py and NumPy", "import mpicoll", "the first Comm", "the first collective", "another Comm")


@dataclass(frozen=True)
class Part:
    """The seconds of one part of a call: on the fast path with all parts before it, on the slow path alone."""

    method: str
    way: str
    part: str
    seconds: Estimate


@click.command(cls=OneLineCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--methods", "names", default="Allreduce,Bcast,Allgatherv", help=f"Of {', '.join(methods.METHODS)}.")
@click.option("--seconds", default=10.0, help="Time to spend on calls in all.")
@click.option("--starts", default=6, help="How many processes are started.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
def parts(names: str, seconds: float, starts: int, path: Path | None) -> None:
    """Time a call part by part on one rank, and the start of a program up to its first call."""
    with asking():
        wanted = listed("--methods", names)
        positive("--seconds", seconds)
        positive("--starts", starts)
        if unknown := [name for name in wanted if name not in methods.METHODS or name == "Barrier"]:
            raise ValueError(f"no method with buffers is called {unknown[0]!r}; there is {', '.join(methods.METHODS)}")
        if MPI.COMM_WORLD.size > 1:
            raise ValueError("this is timed on one rank: start it without mpiexec")
    rows = [part for name in wanted for part in timed(name, seconds / len(wanted))] + list(starting(starts))
    console().print(table(rows))
    if path:
        write_lines(path, rows)


def timed(name: str, seconds: float) -> Iterator[Part]:
    """Yield the parts of a method's call with 8 bytes, as often as there is time for."""
    method, arguments = methods.METHODS[name], _arguments(name)
    op = MPI.SUM if COLLECTIVES[base_collective(method.collective)].reduces else None
    short, refused, closed, unrecorded = comms = [mpicoll.Comm(MPI.COMM_SELF.Dup()) for _ in range(4)]
    for comm in comms:
        for _ in range(LEARNT):
            getattr(comm, name)(*arguments)
    works: dict[tuple[str, str], Callable[[], Any]] = {}
    send, recv, root = (*arguments, 0)[:3] if len(arguments) > 1 else (None, *arguments, 0)
    invocation = Invocation(method, send, recv, op, root)
    fast_path: list[Any] = [candidate for comm in comms if not (candidate := comm._open().fast_path).closed]
    if fast_path:
        fast_path[1].table.rows[:, rows.SCRATCH_NEEDED] = NEVER
        fast_path[2].close()
        fast_path[3].context[[context.HISTORY, context.LAST_ROW]] = 0
        works |= {
            ("short", "the function: called, and back"): lambda: closed._fast_call(*invocation),
            ("short", "the function: with arguments read, the kind found"): lambda: refused._fast_call(*invocation),
            ("short", "the function: with buffers bound, the plan walked"): lambda: short._fast_call(*invocation),
            ("short", "the method with the function"): lambda: getattr(short, name)(*arguments),
            ("short", "the same, without a row in the history of calls"): lambda: getattr(unrecorded, name)(*arguments),
        }
    works |= {("long", part): work for part, work in _long(closed, invocation).items()}
    works["long", "the method, all of it"] = lambda: getattr(closed, name)(*arguments)
    works["MPI's own", "mpi4py's method"] = lambda: getattr(MPI.COMM_SELF, name)(*arguments)
    for (way, part), times in zip(works, interleaved(list(works.values()), seconds)):
        yield Part(name, way, part, estimate(times))
    for comm in comms:
        comm.Free()


def _arguments(name: str) -> tuple[Any, ...]:
    """Return arguments of 8 bytes for one rank."""
    send, recv = np.ones(1), np.zeros(1)
    counted: Callable[[Any], list[Any]] = lambda array: [array, [1], [0], MPI.DOUBLE]
    typed: Callable[[Any], list[Any]] = lambda array: [array, [1], [0], [MPI.DOUBLE]]
    others: dict[str, tuple[Any, ...]] = {
        "Bcast": (recv,),
        "Scatterv": (counted(send), recv),
        "Gatherv": (send, counted(recv)),
        "Allgatherv": (send, counted(recv)),
        "Alltoallv": (counted(send), counted(recv)),
        "Alltoallw": (typed(send), typed(recv)),
        "Reduce_scatter": (send, recv, [1]),
    }
    return others.get(name, (send, recv))


def _long(comm: Any, invocation: Invocation) -> dict[str, Callable[[], Any]]:
    """Time function by function, each on what the one before it made."""
    state, method = comm._state, invocation.method
    arguments = method.parse(state, invocation.send, invocation.recv, invocation.root)
    call = describe_call(invocation, arguments)
    prepare.prepare(state, call)
    return {
        "arguments parsed, checked": lambda: method.parse(state, invocation.send, invocation.recv, invocation.root),
        "the call described": lambda: describe_call(invocation, arguments),
        "what serves it found": lambda: prepare.prepare(state, call),
        "bound, run, ended": lambda: execute.run(state, comm, call),
    }


def starting(processes: int) -> Iterator[Part]:
    """Yield the time before the first call, and that of the call, each the median of some processes."""
    command = [sys.executable, "-c", START]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(processes + 1)]
    times = [list(map(float, output.split())) for output in outputs[1:]]  # the first may have had to compile
    for part, seconds in zip(STARTING, zip(*times), strict=True):
        yield Part("", "starting", part, estimate(seconds))


def table(rows: list[Part]) -> Table:
    """Return the parts in the order in which they come."""
    rich_table = Table(title="the cost of a call on one rank, and of the start before the first", title_justify="left")
    for name in ("method", "way", "part", "µs", "[95 %]"):
        rich_table.add_column(name, justify="left" if name in ("method", "way", "part") else "right")
    before = ("", "")
    for part in rows:
        method, way = part.method, part.way
        rich_table.add_row(
            "" if method == before[0] else method,
            "" if (method, way) == before else way,
            part.part,
            microseconds(part.seconds.median),
            spread(part.seconds, microseconds),
        )
        before = method, way
    return rich_table


if __name__ == "__main__":
    parts.main(prog_name=f"python -m {NAME}")
