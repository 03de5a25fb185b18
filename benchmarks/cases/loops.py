"""Loops of calls as programs make them: other counts in every call, derived datatypes, user operators.

FORMS has by name the functions that create a loop on a communicator: the call of each turn, and its receive buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll

CALLS = 50  # of a loop
TURNS = 1000  # with counts of their own, more than caches of calls have
LARGEST = 4000  # elements of a call whose count is drawn

Loop = tuple[Callable[[int], object], np.ndarray]  # makes the call of a turn; its receive buffer
FORMS: dict[str, Callable[[MPI.Intracomm], Loop]] = {}


def form(words: str) -> Callable[[Callable[[MPI.Intracomm], Loop]], Callable[[MPI.Intracomm], Loop]]:
    """Register the function that creates the loop of a form on a communicator."""

    def add(make: Callable[[MPI.Intracomm], Loop]) -> Callable[[MPI.Intracomm], Loop]:
        FORMS[words] = make
        return make

    return add


def drawn(*shape: int, most: int = LARGEST) -> list[Any]:
    """Return counts that are the same on all ranks, for every turn of a loop."""
    counts: list[Any] = np.random.default_rng(len(shape)).integers(1, most, (TURNS, *shape)).tolist()
    return counts


@form("Allreduce, another size in every call")
def allreduce(comm: MPI.Intracomm) -> Loop:
    """Sum a vector whose length changes."""
    send, receive, counts = np.arange(LARGEST) + float(comm.rank), np.zeros(LARGEST), drawn()
    return lambda turn: comm.Allreduce(send[: counts[turn]], receive[: counts[turn]]), receive


@form("Alltoall in place, another size in every call")
def alltoall_in_place(comm: MPI.Intracomm) -> Loop:
    """Exchange equal blocks of one array."""
    p, counts = comm.size, drawn(most=LARGEST // comm.size)
    data = np.arange(LARGEST) + comm.rank
    return lambda turn: comm.Alltoall(MPI.IN_PLACE, data[: counts[turn] * p]), data


@form("Reduce_scatter_block in place")
def reduce_scatter_in_place(comm: MPI.Intracomm) -> Loop:
    """Sum 1,000 float64 for every rank, after filling the array."""
    data, n = np.ones(1000 * comm.size), comm.size

    def call(turn: int) -> None:
        data.fill(turn % n)
        comm.Reduce_scatter_block(MPI.IN_PLACE, data)

    return call, data[:1000]


@form("Iallreduce and Wait, another size in every call")
def iallreduce(comm: MPI.Intracomm) -> Loop:
    """Begin the same, and wait."""
    send, receive, counts = np.arange(LARGEST) + float(comm.rank), np.zeros(LARGEST), drawn()
    return lambda turn: comm.Iallreduce(send[: counts[turn]], receive[: counts[turn]]).Wait(), receive


@form("Bcast, another size in every call")
def bcast(comm: MPI.Intracomm) -> Loop:
    """Broadcast a list that has another length each time."""
    receive, counts = np.arange(LARGEST) * (comm.rank == 0), drawn()
    return lambda turn: comm.Bcast([receive, counts[turn], MPI.LONG]), receive


@form("Alltoallw, other counts in every call")
def alltoallw_of_counts(comm: MPI.Intracomm) -> Loop:
    """Exchange integers with some ranks, bytes with the others."""
    p, rank = comm.size, comm.rank
    send, receive = np.arange(500 * p) + rank, np.zeros(500 * p, int)
    types = [(MPI.LONG, MPI.BYTE)[(rank + other) % 2] for other in range(p)]
    places = [4000 * other for other in range(p)]
    counts = [(row[rank], [other[rank] for other in row]) for row in drawn(p, p, most=500)]
    return (
        lambda turn: comm.Alltoallw(
            [send, counts[turn][0], places, types], [receive, counts[turn][1], places, types]
        ),
        receive,
    )


@form("Alltoallv, other counts in every call")
def alltoallv(comm: MPI.Intracomm) -> Loop:
    """Exchange particles that leave a domain, or tokens that go to experts."""
    p, rank = comm.size, comm.rank
    send, receive = np.arange(500 * p) + rank, np.zeros(500 * p, int)
    counts = [(row[rank], [other[rank] for other in row]) for row in drawn(p, p, most=500)]
    return lambda turn: comm.Alltoallv([send, counts[turn][0]], [receive, counts[turn][1]]), receive


@form("Allgatherv, other counts in every call")
def allgatherv(comm: MPI.Intracomm) -> Loop:
    """Gather vectors whose lengths differ by rank and call."""
    send, receive = np.arange(500) + comm.rank, np.zeros(500 * comm.size, int)
    counts = drawn(comm.size, most=500)
    return lambda turn: comm.Allgatherv(send[: counts[turn][comm.rank]], [receive, counts[turn]]), receive


@form("Gatherv to the last rank, other counts in every call")
def gatherv(comm: MPI.Intracomm) -> Loop:
    """Gather rows of a table to write."""
    last = comm.size - 1
    send, receive, counts = np.arange(500) + comm.rank, np.zeros(500 * comm.size, int), drawn(comm.size, most=500)

    def call(turn: int) -> None:
        into = [receive, counts[turn]] if comm.rank == last else None
        comm.Gatherv(send[: counts[turn][comm.rank]], into, last)

    return call, receive


@form("Reduce_scatter, other counts in every call")
def reduce_scatter(comm: MPI.Intracomm) -> Loop:
    """Combine a vector whose owners change."""
    send, receive, counts = np.arange(500 * comm.size) + 1.0, np.zeros(500), drawn(comm.size, most=500)

    def call(turn: int) -> None:
        now = counts[turn]
        comm.Reduce_scatter(send[: sum(now)], receive[: now[comm.rank]], now)

    return call, receive


@form("Neighbor_alltoall on a ring, another size in every call")
def halo(comm: MPI.Intracomm) -> Loop:
    """Exchange the borders of a domain that is refined as it moves."""
    around, counts = [(comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size], drawn(most=LARGEST // 2)
    ranks = comm.Create_dist_graph_adjacent(around, around)
    send, receive = np.arange(LARGEST) + comm.rank, np.zeros(LARGEST, int)
    return lambda turn: ranks.Neighbor_alltoall(send[: 2 * counts[turn]], receive[: 2 * counts[turn]]), receive


@form("Allreduce of one number in place")
def scalar(comm: MPI.Intracomm) -> Loop:
    """Compute the largest error of an iteration, in a new array every time."""
    kept = np.zeros(1)

    def call(turn: int) -> None:
        error = np.array([turn + comm.rank], float)
        comm.Allreduce(MPI.IN_PLACE, error, MPI.MAX)
        kept[0] = error[0]

    return call, kept


@form("lowercase allreduce of an int")
def lowercase(comm: MPI.Intracomm) -> Loop:
    """Sum Python's numbers."""
    kept = np.zeros(1)

    def call(turn: int) -> None:
        kept[0] = comm.allreduce(turn + comm.rank)

    return call, kept


@form("Allgather of bytes into a bytearray")
def of_bytes(comm: MPI.Intracomm) -> Loop:
    """Gather messages that are no arrays."""
    send, receive = bytes([comm.rank]) * 64, bytearray(64 * comm.size)
    return lambda turn: comm.Allgather([send, MPI.BYTE], [receive, MPI.BYTE]), np.frombuffer(receive, np.uint8)


@form("Bcast of a strided column")
def column(comm: MPI.Intracomm) -> Loop:
    """Broadcast 1,000 float64, one of each row of a matrix."""
    matrix = np.arange(8000.0).reshape(1000, 8) * (comm.rank == 0)
    of_column = MPI.DOUBLE.Create_vector(1000, 1, 8).Commit()
    return lambda turn: comm.Bcast([matrix, 1, of_column]), matrix


@form("Allgather into columns")
def columns(comm: MPI.Intracomm) -> Loop:
    """Gather vectors of 1,000 float64 as columns of a matrix."""
    send, matrix = np.arange(1000.0) + comm.rank, np.zeros((1000, comm.size))
    of_column = MPI.DOUBLE.Create_vector(1000, 1, comm.size).Create_resized(0, 8).Commit()
    return lambda turn: comm.Allgather(send, [matrix, 1, of_column]), matrix


def subarrays(comm: MPI.Intracomm) -> tuple[np.ndarray, np.ndarray, Callable[[], tuple[list[Any], list[Any]]]]:
    """Return two matrices, and a function that creates the datatypes of their blocks, which transpose them."""
    p, n = comm.size, 32
    rows, columns = np.arange(n * n * p).reshape(n, n * p) + comm.rank * 1.0, np.zeros((n * p, n))

    def make() -> tuple[list[Any], list[Any]]:
        of_rows = [MPI.DOUBLE.Create_subarray([n, n * p], [n, n], [0, n * r]).Commit() for r in range(p)]
        of_columns = [MPI.DOUBLE.Create_subarray([n * p, n], [n, n], [n * r, 0]).Commit() for r in range(p)]
        return of_rows, of_columns

    return rows, columns, make


@form("Alltoallw of kept subarrays")
def kept_subarrays(comm: MPI.Intracomm) -> Loop:
    """Transpose a matrix, as an FFT does."""
    rows, columns, make = subarrays(comm)
    of_rows, of_columns = make()
    return lambda turn: comm.Alltoallw([rows, of_rows], [columns, of_columns]), columns


@form("Ialltoallw of kept subarrays, and Wait")
def begun_subarrays(comm: MPI.Intracomm) -> Loop:
    """Begin the same, and wait."""
    rows, columns, make = subarrays(comm)
    of_rows, of_columns = make()
    return lambda turn: comm.Ialltoallw([rows, of_rows], [columns, of_columns]).Wait(), columns


@form("Alltoallw of subarrays made anew")
def new_subarrays(comm: MPI.Intracomm) -> Loop:
    """Transpose with datatypes that are made for one call."""
    rows, columns, make = subarrays(comm)

    def call(turn: int) -> None:
        types = make()
        comm.Alltoallw([rows, types[0]], [columns, types[1]])
        for datatype in (*types[0], *types[1]):
            datatype.Free()

    return call, columns


def _largest(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    into = np.frombuffer(b)
    np.maximum(np.frombuffer(a), into, out=into)


@form("Allreduce with an operator of Op.Create")
def user_operator(comm: MPI.Intracomm) -> Loop:
    """Combine 1,000 float64, in any order."""
    send, receive, op = np.arange(1000.0) * (comm.rank + 1), np.zeros(1000), MPI.Op.Create(_largest, True)
    return lambda turn: comm.Allreduce(send, receive, op), receive


@form("Allreduce with an operator that does not commute")
def ordered_operator(comm: MPI.Intracomm) -> Loop:
    """Combine 1,000 float64, in the order of ranks."""
    send, receive, op = np.arange(1000.0) * (comm.rank + 1), np.zeros(1000), MPI.Op.Create(_largest, False)
    return lambda turn: comm.Allreduce(send, receive, op), receive


@form("SUM of long double")
def long_double(comm: MPI.Intracomm) -> Loop:
    """Sum 1,000 long doubles."""
    send, receive = np.arange(1000).astype(np.longdouble) + comm.rank, np.zeros(1000, np.longdouble)
    return lambda turn: comm.Allreduce(send, receive), receive


@form("MAXLOC of pairs")
def maxloc(comm: MPI.Intracomm) -> Loop:
    """Find the rank that has the largest, 1,000 times."""
    send, receive = np.zeros((1000, 2)), np.zeros((1000, 2))
    send[:, 0], send.view("i")[:, 2] = np.arange(1000) % (comm.rank + 2), comm.rank
    return lambda turn: comm.Allreduce(
        [send, 1000, MPI.DOUBLE_INT], [receive, 1000, MPI.DOUBLE_INT], MPI.MAXLOC
    ), receive


@form("LOR of bool")
def logical(comm: MPI.Intracomm) -> Loop:
    """Find which of 1,000 cells any rank refines."""
    send, receive = np.arange(1000) % (comm.rank + 2) == 1, np.zeros(1000, bool)
    return lambda turn: comm.Allreduce(send, receive, MPI.LOR), receive


@form("Exscan of one number")
def exscan(comm: MPI.Intracomm) -> Loop:
    """Compute where a rank's part of a file begins."""
    send, receive = np.zeros(1, int), np.zeros(1, int)

    def call(turn: int) -> None:
        send[0] = turn + comm.rank
        comm.Exscan(send, receive)

    return call, receive


def sparse(comm: MPI.Intracomm, destinations: int, most: int) -> Loop:
    """Send to other ranks in every call; natively Alltoall sends the counts, and Alltoallv the data."""
    p, rank, draw = comm.size, comm.rank, np.random.default_rng(destinations)
    counts = np.zeros((TURNS, p, p), np.intc)
    for turn in range(TURNS):
        for source in range(p):
            counts[turn, source, draw.permutation(p)[:destinations]] = draw.integers(1, most)
    send, receive = np.arange(p * most, dtype=float) + rank, np.zeros(p * most)

    def by_counts(turn: int) -> None:
        mine, others = counts[turn, rank], np.empty(p, np.intc)
        comm.Alltoall(mine, others)
        comm.Alltoallv([send, mine], [receive, others])

    if not isinstance(comm, mpicoll.Comm):
        return by_counts, receive
    ours: mpicoll.Comm = comm
    ends = np.cumsum(counts[:, rank], axis=1)
    parts = [
        {to: send[end - n : end] for to, (n, end) in enumerate(zip(*of_turn)) if n}
        for of_turn in zip(counts[:, rank].tolist(), ends.tolist())
    ]

    def by_mpicoll(turn: int) -> None:
        at = 0
        for array in ours.Sparse_alltoall(parts[turn]).values():
            receive[at : at + len(array)] = array
            at += len(array)

    return by_mpicoll, receive


@form("Sparse_alltoall, 1 other rank in every call, for Alltoall and Alltoallv")
def sparse_one(comm: MPI.Intracomm) -> Loop:
    """Send a few numbers to one rank."""
    return sparse(comm, 1, 200)


@form("Sparse_alltoall, 2 ranks and up to 32 KB each, for Alltoall and Alltoallv")
def sparse_two(comm: MPI.Intracomm) -> Loop:
    """Send as much as the halo of a mesh may have."""
    return sparse(comm, 2, LARGEST)
