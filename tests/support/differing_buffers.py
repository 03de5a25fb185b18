"""Calls whose buffers differ from rank to rank, or interleave in memory.

Each is a function of a communicator that makes a call and returns what this rank received, to compare ours with MPI's
own. The forms of one buffer are in support/buffer_forms.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

DifferingCall = Callable[[MPI.Intracomm], Any]
CALLS: dict[str, DifferingCall] = {}


def differing(function: DifferingCall) -> DifferingCall:
    """Add a function to CALLS under its name in words."""
    CALLS[function.__name__.replace("_", " ")] = function
    return function


def mine(n: int, comm: MPI.Intracomm, dtype: Any = "d") -> np.ndarray:
    """Return this rank's numbers."""
    return of_rank(n, comm.rank).astype(dtype)


def of_rank(n: int, rank: int) -> np.ndarray:
    """Return a rank's numbers."""
    return np.arange(n) * 3.0 + rank * 100 + 1


def empty(n: int, dtype: Any = "d") -> np.ndarray:
    """Return a buffer of -1, which no rank sends."""
    return np.full(n, -1, dtype)


def last(comm: MPI.Intracomm) -> int:
    """Return the last rank, as the root."""
    return comm.size - 1


@contextmanager
def column(rows: int, width: int) -> Iterator[MPI.Datatype]:
    """Yield the datatype of a column of doubles; the next column begins 8 bytes further on."""
    vector = MPI.DOUBLE.Create_vector(rows, 1, width)
    resized = vector.Create_resized(0, 8).Commit()
    vector.Free()
    try:
        yield resized
    finally:
        resized.Free()


@differing
def another_type_at_the_root(comm):
    """Let the root pass three pairs and the others six numbers."""
    got, two = empty(6, "i"), MPI.INT.Create_contiguous(2).Commit()
    if comm.rank == last(comm):
        got[:] = mine(6, comm, "i")
        comm.Bcast([got, 3, two], last(comm))
    else:
        comm.Bcast([got, 6, MPI.INT], last(comm))
    two.Free()
    return got


@differing
def vector_broadcast(comm):
    """Let the root send a vector datatype and the others receive contiguous memory."""
    got = mine(5, comm)
    with column(3, 2) as datatype:
        if comm.rank == last(comm):
            comm.Bcast([got, 1, datatype], last(comm))
        else:
            comm.Bcast([got, 3, MPI.DOUBLE], last(comm))
    return got


@differing
def vector_received(comm):
    """Let the root send contiguous memory and the others receive a vector datatype."""
    got = empty(9)
    with column(3, 4) as datatype:
        if comm.rank == last(comm):
            comm.Bcast([mine(3, comm), MPI.DOUBLE], last(comm))
        else:
            comm.Bcast([got, 1, datatype], last(comm))
    return got


@differing
def junk_off_the_root(comm):
    at_root = comm.rank == last(comm)
    gathered, scattered, reduced = empty(2 * comm.size), empty(2), empty(2)
    comm.Gather(mine(2, comm), gathered if at_root else empty(1)[:0], last(comm))
    comm.Scatter(mine(2 * comm.size, comm) if at_root else empty(1), scattered, last(comm))
    comm.Reduce(mine(2, comm), reduced if at_root else empty(7), root=last(comm))
    return np.concatenate([gathered, scattered, reduced])


@differing
def interleaved_columns(comm):
    """Send and receive buffer are columns of one matrix, without overlap."""
    p = comm.size
    matrix = mine(3 * (p + 1), comm).reshape(3, p + 1)
    with column(3, p + 1) as datatype:
        comm.Allgather([matrix, 1, datatype], [matrix.ravel()[1:], 1, datatype])
    return matrix


@differing
def large_vector(comm):
    """Broadcast blocks that are long enough for chunks."""
    p, n = comm.size, 30_000
    got = empty(n * p).reshape(n, p)
    with column(n, p) as received:
        comm.Allgather(mine(n, comm), [got, 1, received])
    return got


@differing
def pairs_short_of_their_padding(comm):
    """Receive DOUBLE_INT in memory that ends with the last index, without the last padding."""
    send, got = np.zeros(28, "u1"), np.zeros(28, "u1")
    send[:8].view("d")[:], send[8:12].view("i")[:] = comm.rank % 3, comm.rank
    send[16:24].view("d")[:], send[24:28].view("i")[:] = -comm.rank, comm.rank
    comm.Allreduce([send, 2, MPI.DOUBLE_INT], [got, 2, MPI.DOUBLE_INT], MPI.MAXLOC)
    return [got[:8].view("d")[0], got[8:12].view("i")[0], got[16:24].view("d")[0], got[24:].view("i")[0]]


def expected(name: str, comm: MPI.Intracomm) -> np.ndarray:
    """Return what this rank must receive: what MPI's own method gives, except for large vectors, which Intel MPI's
    gets wrong."""
    if name == "large vector":
        return np.stack([of_rank(30_000, rank) for rank in range(comm.size)], axis=1)
    return np.array(CALLS[name](comm))
