"""Streams of small calls beside processes that keep the cores busy: MPI's own collective and ours, in turns.

    mpiexec -n 2 python -m mpicoll.benchmarks.loaded --busy 0 --busy 2 --busy 6

A stream is a number of calls with nothing between them; its time is that of the slowest rank. Where ranks share cores
with others, few streams wait long for a rank that is not running and most do not: the median says what a call costs
then, the mean what a program loses.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
import numpy as np
from mpi4py import MPI
from rich.table import Table

import mpicoll
from mpicoll.cli.group import OneLineCommand

from .command.console import console

# It ends with this process, however that ends: the pipe is closed then.
BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""
WARM_UP = 10  # calls before the first stream: those that learn


@contextmanager
def busy(processes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep so many processes computing."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) for _ in range(processes)]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def stream(comm: MPI.Intracomm, on: MPI.Intracomm, array: np.ndarray, calls: int) -> float:
    """Return the seconds of one Allreduce in a stream of so many, on the slowest rank."""
    result = np.zeros_like(array)
    comm.Barrier()
    started = time.perf_counter()
    for _ in range(calls):
        on.Allreduce(array, result)
    slowest: float = comm.allreduce((time.perf_counter() - started) / calls, MPI.MAX)
    return slowest


def streams(comm: MPI.Intracomm, nbytes: int, calls: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the seconds of a call in each stream, native and ours, which take turns in going first."""
    native, ours = MPI.Intracomm(comm).Dup(), mpicoll.Comm(MPI.Intracomm(comm).Dup())
    array, seconds = np.ones(nbytes // 4, np.float32), np.zeros((2, rounds))
    contenders = [(0, native), (1, ours)]
    for _, on in contenders:
        stream(comm, on, array, WARM_UP)
    for i in range(rounds):
        for which, on in contenders if i % 2 else reversed(contenders):
            seconds[which, i] = stream(comm, on, array, calls)
    native.Free()
    ours.Free()
    return seconds[0], seconds[1]


@click.command(cls=OneLineCommand)
@click.option("--busy", "numbers", default=(0, 2, 6), multiple=True, show_default=True, type=click.IntRange(0),
              help="Busy processes beside the ranks; may be given several times.")
@click.option("--nbytes", default=4096, show_default=True, type=click.IntRange(4), help="Bytes of a float32 Allreduce.")
@click.option("--calls", default=300, show_default=True, type=click.IntRange(1), help="Calls of a stream.")
@click.option("--rounds", default=24, show_default=True, type=click.IntRange(1), help="Streams of each.")
def main(numbers: tuple[int, ...], nbytes: int, calls: int, rounds: int) -> None:
    """Time streams of small calls beside busy processes."""
    comm = MPI.COMM_WORLD
    where = f"{comm.size} ranks, {MPI.get_vendor()[0]}"
    title = f"Allreduce of {nbytes} bytes on {where}: µs a call in {rounds} streams of {calls}"
    table = Table("busy", "native, median", "mean", "ours, median", "mean", "ours/native, median", "mean", title=title)
    for number in numbers:
        with busy(number if comm.rank == 0 else 0):
            native, ours = streams(comm, nbytes, calls, rounds)
        times = [np.median(native), native.mean(), np.median(ours), ours.mean()]
        shares = [times[2] / times[0], times[3] / times[1]]
        table.add_row(str(number), *(f"{1e6 * value:.1f}" for value in times), *(f"{value:.2g}" for value in shares))
    if comm.rank == 0:
        console().print(table)


if __name__ == "__main__":
    main()
