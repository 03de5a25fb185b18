"""Derived datatypes that leave holes take the fast path: compiled code packs and unpacks them."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI
from support.calls import complete, takes_fast_path
from support.cases import AGAIN, Checks

from mpicoll.buffers.datatypes import TypeFacts
from mpicoll.errors import DatatypeError
from mpicoll.schedules.collectives import BLOCKING, NONBLOCKING

N = 6  # elements of a column


@pytest.fixture
def column():
    """Return a column of a matrix of three, of which the next element is the next column."""
    vector = MPI.DOUBLE.Create_vector(N, 1, 3)
    resized = vector.Create_resized(0, 8).Commit()
    vector.Free()
    yield resized
    resized.Free()


def numbers(rank, turn):
    """Return the N numbers that a rank sends."""
    return np.arange(N) * 10.0 + rank * 1000 + turn


def matrix(width=3, values=None):
    """Return a matrix of -1, with values in its first column."""
    array = np.full((N, width), -1.0)
    if values is not None:
        array[:, 0] = values
    return array


def complete_call(comm, form, name, *arguments):
    """Make a call in a form, and complete it."""
    method = getattr(comm, name if form == BLOCKING else f"I{name.lower()}")
    complete(method(*arguments))


FORMS = pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
LATE = pytest.mark.parametrize("late", [False, True])


def bcast(comm, form, column, turn):
    root = comm.size - 1
    into = matrix(values=numbers(root, turn) if comm.rank == root else None)
    complete_call(comm, form, "Bcast", [into, 1, column], root)
    return into, matrix(values=numbers(root, turn))


def allreduce(comm, form, column, turn):
    into = matrix()
    complete_call(comm, form, "Allreduce", [numbers(comm.rank, turn), N, MPI.DOUBLE], [into.ravel()[:N], N, MPI.DOUBLE])
    return into.ravel()[:N], sum(numbers(rank, turn) for rank in range(comm.size))


def allgather(comm, form, column, turn):
    wide = MPI.DOUBLE.Create_vector(N, 1, comm.size + 1)
    key = "wide", comm.size
    if key not in KEPT:
        KEPT[key] = wide.Create_resized(0, 8).Commit()
    wide.Free()
    into = matrix(comm.size + 1)
    complete_call(comm, form, "Allgather", [matrix(values=numbers(comm.rank, turn)), 1, column], [into, 1, KEPT[key]])
    want = matrix(comm.size + 1)
    for rank in range(comm.size):
        want[:, rank] = numbers(rank, turn)
    return into, want


def in_place(comm, form, column, turn):
    allgather(comm, form, column, turn)
    into, want = matrix(comm.size + 1), matrix(comm.size + 1)
    for rank in range(comm.size):
        want[:, rank] = numbers(rank, turn)
    into[:, comm.rank] = numbers(comm.rank, turn)
    complete_call(comm, form, "Allgather", MPI.IN_PLACE, [into, 1, KEPT["wide", comm.size]])
    return into, want


def gather(comm, form, column, turn):
    root, into = comm.size - 1, np.full((comm.size, N), -1.0)
    receive = into if comm.rank == root else None
    complete_call(comm, form, "Gather", [matrix(values=numbers(comm.rank, turn)), 1, column], receive, root)
    every = np.array([numbers(rank, turn) for rank in range(comm.size)])
    return into, every if comm.rank == root else np.full((comm.size, N), -1.0)


def scatter(comm, form, column, turn):
    into = matrix()
    send = np.array([numbers(rank, turn) for rank in range(comm.size)]) if comm.rank == 0 else None
    complete_call(comm, form, "Scatter", send, [into, 1, column], 0)
    return into, matrix(values=numbers(comm.rank, turn))


def alltoallw(comm, form, column, turn):
    """Return a matrix whose column r rank r sent, and received as a row."""
    p, key = comm.size, ("alltoallw", comm.size)
    if key not in KEPT:
        KEPT[key] = [
            [MPI.DOUBLE.Create_subarray([N, p], [N, 1], [0, r]).Commit() for r in range(p)],
            [MPI.DOUBLE.Create_subarray([p + 1, N], [1, N], [r, 0]).Commit() for r in range(p)],
        ]
    columns, rows = KEPT[key]
    send, into = np.array([numbers(comm.rank, turn) + 5 * r for r in range(p)]).T.copy(), np.full((p + 1, N), -1.0)
    want = into.copy()
    want[:p] = [numbers(rank, turn) + 5 * comm.rank for rank in range(p)]
    complete_call(comm, form, "Alltoallw", [send, columns], [into, rows])
    return into, want


def nothing_to_rank_0(comm, form, column, turn):
    """Pass no datatype where no element is sent."""
    p, key = comm.size, ("alltoallw", comm.size)
    alltoallw(comm, form, column, turn)
    columns, rows = ([MPI.DATATYPE_NULL, *types[1:]] for types in KEPT[key])
    send, into = np.array([numbers(comm.rank, turn)] * p).T.copy(), np.full((p + 1, N), -1.0)
    want = into.copy()
    sent, received = [0, *[1] * (p - 1)], [int(comm.rank > 0)] * p
    if comm.rank:
        rows[0] = KEPT[key][1][0]
        want[:p] = [numbers(rank, turn) for rank in range(p)]
    complete_call(comm, form, "Alltoallw", [send, sent, [0] * p, columns], [into, received, [0] * p, rows])
    return into, want


def alltoallv(comm, form, column, turn):
    """Send a column to each rank, from rank 0 none."""
    p, key = comm.size, ("alltoallv", comm.size)
    if key not in KEPT:
        vector = MPI.DOUBLE.Create_vector(N, 1, p)
        KEPT[key] = vector.Create_resized(0, 8).Commit()
    send = np.array([numbers(comm.rank, turn) + 5 * r for r in range(p)]).T.copy()
    into, want = np.full((N, p), -1.0), np.full((N, p), -1.0)
    counts, own = [int(r > 0) for r in range(p)], [int(comm.rank > 0)] * p
    if comm.rank:
        want[:] = np.array([numbers(rank, turn) + 5 * comm.rank for rank in range(p)]).T
    places = list(range(p))
    complete_call(comm, form, "Alltoallv", [send, counts, places, KEPT[key]], [into, own, places, KEPT[key]])
    return into, want


KEPT: dict = {}
CALLS = {
    f.__name__: f
    for f in (bcast, allreduce, allgather, in_place, gather, scatter, alltoallw, alltoallv, nothing_to_rank_0)
}


@FORMS
@LATE
@pytest.mark.parametrize("name", CALLS)
def test_packed_elements_arrive(ours, column, name, form, late):
    """Elements with holes arrive, also if a rank is late; the holes keep their content."""
    with Checks() as checks:
        for turn in range(AGAIN + 2):
            if late and turn >= AGAIN - 1 and ours.rank == turn % ours.size:
                time.sleep(0.03)
            with ours.trace() as records:
                got, want = CALLS[name](ours, form, column, turn)
            checks.equal(got, want, turn)
            checks.equal(records[-1].fast_path, turn >= AGAIN - 1, turn, "fast")


IN_PLACE = MPI.IN_PLACE


def transpose(p):
    """Return the buffers of Alltoallw that send a column of a matrix to every rank, and its datatypes."""
    columns = [MPI.DOUBLE.Create_subarray([N, p], [N, 1], [0, rank]).Commit() for rank in range(p)]
    rows = [MPI.DOUBLE.Create_subarray([p, N], [1, N], [rank, 0]).Commit() for rank in range(p)]
    return [[np.zeros((N, p)), columns], [np.zeros((p, N)), rows]], [*columns, *rows]


STARTED = {     # by method: the buffers for p ranks, a column, and what to free
    "Bcast": lambda p, column: ([[matrix(), 1, column]], ()),
    "Allgather": lambda p, column: ([[matrix(), 1, column], np.zeros((p, N))], ()),
    "Gather": lambda p, column: ([[matrix(), 1, column], np.zeros((p, N))], ()),
    "Scatter": lambda p, column: ([np.zeros((p, N)), [matrix(), 1, column]], ()),
    "Alltoallw": lambda p, column: transpose(p),
    "Alltoall": lambda p, column: ([IN_PLACE, np.zeros((p, N))], ()),
    "Alltoallv": lambda p, column: ([IN_PLACE, [np.zeros((p, N)), [N] * p]], ()),
    "Reduce_scatter_block": lambda p, column: ([IN_PLACE, np.zeros((p, N))], ()),
    "Exscan": lambda p, column: ([IN_PLACE, np.zeros(N)], ()),
}


def fill(buffers, rank, turn):
    """Set new values in the arrays of buffers."""
    for i, buffer in enumerate(buffers):
        array = buffer[0] if isinstance(buffer, list) else buffer
        if array is not IN_PLACE:
            array[...] = np.arange(array.size).reshape(array.shape) + 1000 * rank + 100 * turn + 10000 * i


@pytest.mark.parametrize("how", ["in time", "late", "one slow start"])
@pytest.mark.parametrize("name", STARTED)
def test_starts_of_persistent_calls(ours, comm, column, name, how):
    """Every start packs what the buffers contain by then, and puts results in their place.

    A rank may be late, so that operations complete the starts of others. A start that takes the slow path places
    packed data elsewhere than those before and after it.
    """
    (buffers, types), (others, more) = (STARTED[name](comm.size, column) for _ in range(2))
    with Checks() as checks, ours.trace() as records:
        request = getattr(ours, f"{name}_init")(*buffers)
        for turn in range(6):
            fill(buffers, comm.rank, turn)
            fill(others, comm.rank, turn)
            getattr(comm, name)(*others)
            if how == "late" and comm.rank == 0:
                time.sleep(0.02)
            if how == "one slow start" and turn == 2:
                request._persistent.fast_start.close()
            request.Start()
            request.Wait()
            for mine, native in zip(buffers, others):
                if mine is not IN_PLACE:
                    mine, native = (x[0] if isinstance(x, list) else x for x in (mine, native))
                    n = N if name == "Reduce_scatter_block" else mine.size  # MPI defines no more
                    checks.equal(mine.ravel()[:n], native.ravel()[:n], turn)
        went = [record.fast_path for record in records if record.start]
        checks.equal(went, [how != "one slow start" or turn != 2 for turn in range(6)], "fast")
        request.Free()
    for datatype in (*types, *more):
        datatype.Free()


def test_a_new_datatype_at_a_freed_address(ours):
    """A new datatype may have the handle and the address of a freed one; it is not taken for it."""
    handles, n = set(), 4
    for stride in (1, 2, 3, 2, 1, 3):
        vector = MPI.DOUBLE.Create_vector(n, 1, stride)
        datatype = vector.Create_resized(0, 8 * n * stride).Commit()  # two steps, so only an attribute tells it
        vector.Free()
        handles.add(MPI._handleof(datatype))
        for turn in range(AGAIN):
            memory = np.full(3 * n, -1.0)
            if ours.rank == 0:
                memory[: n * stride : stride] = np.arange(n)
            want = np.full(3 * n, -1.0)
            want[: n * stride : stride] = np.arange(n)
            assert takes_fast_path(ours, lambda: ours.Bcast([memory, 1, datatype])) == (turn == AGAIN - 1)  # noqa: B023
            assert (memory == want).all()
        datatype.Free()
    assert len(handles) < 6 or MPI.Get_library_version().startswith("Open MPI")
    with pytest.raises(Exception, match="DATATYPE_NULL"):
        ours.Bcast([np.zeros(9), 1, datatype])


def test_a_cached_call_keeps_its_datatype_facts(ours, column):
    """While its row is there, no other datatype can have the same address."""
    for turn in range(AGAIN):
        bcast(ours, BLOCKING, column, turn)
    kinds = ours._state.fast_path.table.kinds
    ((kind, _),) = kinds.values()
    assert kind.packed is not None and [type(known) for known, _ in kind.keep[1]] == [TypeFacts]


MADE = {
    "vector": lambda k: MPI.DOUBLE.Create_vector(N, 1, k),
    "hvector": lambda k: MPI.DOUBLE.Create_hvector(N, 1, 8 * k),
    "subarray": lambda k: MPI.DOUBLE.Create_subarray([N, k], [N, 1], [0, 0]),
    "subarray in Fortran's order": lambda k: MPI.DOUBLE.Create_subarray([k, N], [1, N], [0, 0], MPI.ORDER_F),
    "indexed": lambda k: MPI.DOUBLE.Create_indexed([1] * N, range(0, N * k, k)),
    "blocks by address": lambda k: MPI.DOUBLE.Create_hindexed_block(1, range(0, 8 * N * k, 8 * k)),
}


@pytest.mark.parametrize("make", MADE)
def test_datatypes_created_for_each_call(ours, make):
    """Datatypes are identified by their construction."""
    for turn in range(AGAIN + 2):
        for k in (3, 2, 4):
            datatype = MADE[make](k).Commit()
            into, want = np.full(N * k, -1.0), np.full(N * k, -1.0)
            want[::k] = numbers(0, turn)
            if ours.rank == 0:
                into[::k] = numbers(0, turn)
            with ours.trace() as records:
                ours.Bcast([into, 1, datatype])
            datatype.Free()
            assert (into == want).all()
            assert records[0].fast_path == (turn >= AGAIN - 1)


def test_nested_datatypes_created_for_each_call(ours):
    """Results are right on either path, and handles that describe the construction are freed."""
    for turn in range(AGAIN + 2):
        for k in (3, 2):
            vector = MPI.DOUBLE.Create_vector(N, 1, k)
            datatype = vector.Create_resized(0, 8).Commit()
            vector.Free()
            into, want = np.full(N * k, -1.0), np.full(N * k, -1.0)
            want[::k] = want[1::k] = numbers(0, turn)
            if ours.rank == 0:
                into[:] = want
            ours.Bcast([into, 2, datatype])
            datatype.Free()
            assert (into == want).all()


def test_a_datatype_that_is_not_committed_is_refused(ours):
    """A committed datatype of the same construction was served before."""
    for _ in range(AGAIN):
        datatype = MADE["vector"](3).Commit()
        ours.Bcast([matrix(), 1, datatype])
        datatype.Free()
    datatype = MADE["vector"](3)
    with pytest.raises(DatatypeError, match="not committed"):
        ours.Bcast([matrix(), 1, datatype])
    datatype.Free()
