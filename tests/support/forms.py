"""Calls in every form mpi4py takes for a buffer. Each is a function of a communicator: it makes one call and
returns what arrived on this rank, so that ours and MPI's own can be compared."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from mpi4py import MPI

Form = Callable[[MPI.Intracomm], Any]
FORMS: dict[str, Form] = {}


def form(function: Form) -> Form:
    """Add a function to FORMS under its name in words."""
    FORMS[function.__name__.replace("_", " ")] = function
    return function


def mine(n: int, comm: MPI.Intracomm, dtype: Any = "d") -> np.ndarray:
    """This rank's numbers."""
    return of_rank(n, comm.rank).astype(dtype)


def of_rank(n: int, rank: int) -> np.ndarray:
    """Any rank's numbers."""
    return np.arange(n) * 3.0 + rank * 100 + 1


def empty(n: int, dtype: Any = "d") -> np.ndarray:
    """A place for numbers, in which it shows where none arrived."""
    return np.full(n, -1, dtype)


def last(comm: MPI.Intracomm) -> int:
    """A root that is not rank 0 where there is another."""
    return comm.size - 1


@contextmanager
def column(rows: int, width: int, extent: int = 8) -> Iterator[MPI.Datatype]:
    """A column of a matrix of doubles; the next one begins 8 bytes further on."""
    vector = MPI.DOUBLE.Create_vector(rows, 1, width)
    resized = vector.Create_resized(0, extent).Commit()
    vector.Free()
    try:
        yield resized
    finally:
        resized.Free()


# -- lists


@form
def buffer_count_type(comm):
    got = empty(9)
    comm.Allreduce([mine(9, comm), 5, MPI.DOUBLE], [got, 5, MPI.DOUBLE])
    return got


@form
def buffer_type(comm):
    got = empty(5)
    comm.Allreduce([mine(5, comm), MPI.DOUBLE], (got, MPI.DOUBLE))
    return got


@form
def typecodes(comm):
    got = empty(5, "i")
    comm.Allreduce([mine(5, comm, "i"), "i"], [got, "i"])
    return got


@form
def count_and_displacement(comm):
    got = empty(9)
    comm.Allreduce([mine(9, comm), (4, 3), MPI.DOUBLE], [got, 4, 5, MPI.DOUBLE])
    return got


@form
def counts_of_a_block(comm):
    p, got = comm.size, empty(4 * comm.size)
    comm.Alltoall([mine(4 * p, comm), 2], [got, 2, MPI.DOUBLE])
    return got


@form
def another_type_at_the_root(comm):
    """Of the same signature: three times two numbers."""
    got, two = empty(6, "i"), MPI.INT.Create_contiguous(2).Commit()
    if comm.rank == last(comm):
        got[:] = mine(6, comm, "i")
        comm.Bcast([got, 3, two], last(comm))
    else:
        comm.Bcast([got, 6, MPI.INT], last(comm))
    two.Free()
    return got


# -- objects


@form
def bytearrays(comm):
    got = bytearray(7)
    if comm.rank == last(comm):
        got[:] = b"message"
    comm.Bcast(got, last(comm))
    return bytes(got)


@form
def bytes_combined(comm):
    got = bytearray(3)
    comm.Allreduce([bytes([1 << comm.rank, 3, 7]), MPI.BYTE], [got, MPI.BYTE], MPI.BXOR)
    return bytes(got)


@form
def bytes_gathered(comm):
    got = bytearray(3 * comm.size)
    comm.Allgather(bytes([comm.rank] * 3), got)
    return bytes(got)


@form
def memoryviews(comm):
    got = empty(5)
    comm.Allreduce(memoryview(mine(9, comm))[2:7], memoryview(got))
    return got


@form
def array_array(comm):
    got = array.array("i", [0] * 4)
    comm.Reduce_scatter_block(array.array("i", range(4 * comm.size)), got)
    return got.tolist()


@form
def no_dimensions(comm):
    got = np.array(0.0)
    comm.Allreduce(np.array(comm.rank + 1.0), got)
    return got.ravel()


@form
def two_dimensions(comm):
    got = empty(6 * comm.size).reshape(-1, 3)
    comm.Allgather(mine(6, comm).reshape(2, 3), got)
    return got


@form
def fortran_order(comm):
    got = np.asfortranarray(empty(6).reshape(2, 3))
    comm.Allreduce(np.asfortranarray(mine(6, comm).reshape(2, 3)), got)
    return got


@form
def numpy_scalar_sent(comm):
    got = empty(comm.size)
    comm.Allgather(np.float64(comm.rank), got)
    return got


@form
def mpi_buffer(comm):
    got = MPI.buffer.allocate(2 * comm.size)
    comm.Alltoall(MPI.buffer.frombuffer(bytes(range(2 * comm.size)), readonly=True), got)
    return bytes(got)


@form
def pairs_short_of_their_padding(comm):
    """DOUBLE_INT in memory that ends with the last index."""
    send, got = np.zeros(28, "u1"), np.zeros(28, "u1")
    send[:8].view("d")[:], send[8:12].view("i")[:] = comm.rank % 3, comm.rank
    send[16:24].view("d")[:], send[24:28].view("i")[:] = -comm.rank, comm.rank
    comm.Allreduce([send, 2, MPI.DOUBLE_INT], [got, 2, MPI.DOUBLE_INT], MPI.MAXLOC)
    return [got[:8].view("d")[0], got[8:12].view("i")[0], got[16:24].view("d")[0], got[24:].view("i")[0]]


# -- read-only


@form
def read_only_sent(comm):
    send, got = mine(4, comm), empty(4)
    send.flags.writeable = False
    comm.Allreduce(send, got)
    return got


@form
def read_only_at_the_root_of_a_bcast(comm):
    got = mine(4, comm)
    got.flags.writeable = comm.rank != last(comm)
    comm.Bcast(got, last(comm))
    return got


@form
def read_only_vector_sent(comm):
    send, got = mine(5, comm), empty(3 * comm.size)
    send.flags.writeable = False
    with column(3, 2) as datatype:
        comm.Allgather([send, 1, datatype], got)
    return got


# -- roots, and what is only looked at there


@form
def float_root(comm):
    got = mine(3, comm)
    comm.Bcast(got, root=float(last(comm)))
    return got


@form
def numpy_root(comm):
    got = empty(3)
    comm.Reduce(mine(3, comm), got if comm.rank == last(comm) else None, root=np.int64(last(comm)))
    return got


@form
def none_off_the_root(comm):
    at_root = comm.rank == last(comm)
    gathered, scattered = empty(2 * comm.size), empty(2)
    comm.Gather(mine(2, comm), gathered if at_root else None, last(comm))
    comm.Scatter(mine(2 * comm.size, comm) if at_root else None, scattered, last(comm))
    return np.concatenate([gathered, scattered])


@form
def junk_off_the_root(comm):
    at_root = comm.rank == last(comm)
    gathered, scattered, reduced = empty(2 * comm.size), empty(2), empty(2)
    comm.Gather(mine(2, comm), gathered if at_root else empty(1)[:0], last(comm))
    comm.Scatter(mine(2 * comm.size, comm) if at_root else empty(1), scattered, last(comm))
    comm.Reduce(mine(2, comm), reduced if at_root else empty(7), root=last(comm))
    return np.concatenate([gathered, scattered, reduced])


@form
def none_for_in_place(comm):
    got = mine(3, comm)
    comm.Allreduce(None, got)
    return got


# -- vectors: memory with holes


@form
def vector_broadcast(comm):
    """A vector at the root, plain memory elsewhere."""
    got = mine(5, comm)
    with column(3, 2) as datatype:
        if comm.rank == last(comm):
            comm.Bcast([got, 1, datatype], last(comm))
        else:
            comm.Bcast([got, 3, MPI.DOUBLE], last(comm))
    return got


@form
def vector_received(comm):
    """Plain memory at the root, a vector elsewhere."""
    got = empty(9)
    with column(3, 4) as datatype:
        if comm.rank == last(comm):
            comm.Bcast([mine(3, comm), MPI.DOUBLE], last(comm))
        else:
            comm.Bcast([got, 1, datatype], last(comm))
    return got


@form
def vector_allgather(comm):
    """A column sent, columns received."""
    p, send = comm.size, mine(12, comm)
    got = empty(4 * p).reshape(4, p)
    with column(4, 3) as sent, column(4, p) as received:
        comm.Allgather([send, 1, sent], [got, 1, received])
    return got


@form
def vector_allgather_in_place(comm):
    p = comm.size
    got = empty(4 * (p + 1)).reshape(4, p + 1)
    got[:, comm.rank] = mine(4, comm)
    with column(4, p + 1) as received:
        comm.Allgather(MPI.IN_PLACE, [got, 1, received])
    return got


@form
def vector_gather(comm):
    p = comm.size
    got = empty(3 * p).reshape(3, p)
    with column(3, p) as received, column(3, 2) as sent:
        at_root = [got, 1, received] if comm.rank == last(comm) else None
        comm.Gather([mine(6, comm)[:5], 1, sent], at_root, last(comm))
    return got


@form
def vector_gather_in_place(comm):
    p, here = comm.size, comm.rank == last(comm)
    got = empty(3 * p).reshape(3, p)
    got[:, comm.rank] = mine(3, comm)
    with column(3, p) as received:
        send = MPI.IN_PLACE if here else mine(3, comm)
        comm.Gather(send, [got, 1, received] if here else None, last(comm))
    return got


@form
def vector_scatter(comm):
    p, got = comm.size, empty(5)
    send = mine(3 * p, comm).reshape(3, p)
    with column(3, p) as sent, column(3, 2) as received:
        at_root = [send, 1, sent] if comm.rank == last(comm) else None
        comm.Scatter(at_root, [got, 1, received], last(comm))
    return got


@form
def vector_scatter_in_place(comm):
    p, here = comm.size, comm.rank == last(comm)
    send, got = mine(3 * p, comm).reshape(3, p), empty(3)
    with column(3, p) as sent:
        comm.Scatter([send, 1, sent] if here else None, MPI.IN_PLACE if here else got, last(comm))
    return np.concatenate([send.ravel(), got])


@form
def vector_alltoall(comm):
    """A transposition: columns sent, columns received."""
    p = comm.size
    send, got = mine(2 * p, comm).reshape(2, p), empty(2 * (p + 2)).reshape(2, p + 2)
    with column(2, p) as sent, column(2, p + 2) as received:
        comm.Alltoall([send, 1, sent], [got, 1, received])
    return got


@form
def vector_alltoall_in_place(comm):
    p = comm.size
    got = mine(2 * (p + 2), comm).reshape(2, p + 2)
    with column(2, p + 2) as datatype:
        comm.Alltoall(MPI.IN_PLACE, [got, 1, datatype])
    return got


@form
def interleaved_columns(comm):
    """Sent and received from one matrix, without overlap."""
    p = comm.size
    matrix = mine(3 * (p + 1), comm).reshape(3, p + 1)
    with column(3, p + 1) as datatype:
        comm.Allgather([matrix, 1, datatype], [matrix.ravel()[1:], 1, datatype])
    return matrix


@form
def large_vector(comm):
    """Long enough for chunks."""
    p, n = comm.size, 30_000
    got = empty(n * p).reshape(n, p)
    with column(n, p) as received:
        comm.Allgather(mine(n, comm), [got, 1, received])
    return got


# What arrives, for forms in which an MPI's own collective is wrong: Intel MPI's Allgather of derived types on four
# ranks, Open MPI's Gather of them on seven and eight.

KNOWN: dict[str, Callable[[MPI.Intracomm], np.ndarray]] = {
    "read only vector sent": lambda c: np.concatenate([of_rank(5, r)[::2] for r in range(c.size)]),
    "vector allgather": lambda c: columns([of_rank(12, r)[::3] for r in range(c.size)]),
    "vector allgather in place": lambda c: columns([*[of_rank(4, r) for r in range(c.size)], empty(4)]),
    "vector gather": lambda c: at_last(c, columns([of_rank(6, r)[:5:2] for r in range(c.size)])),
    "large vector": lambda c: columns([of_rank(30_000, r) for r in range(c.size)]),
}


def columns(parts: list[np.ndarray]) -> np.ndarray:
    return np.stack(parts, axis=1)


def at_last(comm: MPI.Intracomm, whole: np.ndarray) -> np.ndarray:
    """What the last rank gathers; the others' memory stays as it was."""
    if comm.rank == last(comm):
        return whole
    return empty(whole.size).reshape(whole.shape)


def wanted(name: str, comm: MPI.Intracomm) -> np.ndarray:
    """What a form must give on this rank: what MPI's own gives, where that can be relied on."""
    return KNOWN[name](comm) if name in KNOWN else np.array(FORMS[name](comm))
