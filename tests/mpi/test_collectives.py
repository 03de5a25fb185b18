"""Every algorithm on both engines gives the right result, and writes nowhere else."""

from __future__ import annotations

import time
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, collectives
from support.buffer_forms import ARRAY, FILLER
from support.cases import Case, Checks
from support.prepared import PreparedCall

import mpicoll
from mpicoll.dispatch.methods import METHODS

LARGE = 40_000                              # doubles in all


def small_counts(p):
    """Return small counts around the number of ranks, so that blocks have remainders or are empty."""
    return sorted({0, 1, p - 1, p, p + 1, 5 * p + 3})


def large(collective, p):
    return LARGE if collectives.has_whole_vector(collective) else LARGE // p


def places(collective):
    return (False, True) if collectives.has_in_place(collective) else (False,)


def parametrize(*parameters):
    return pytest.mark.parametrize(("collective", "spec"), parameters, ids=map(" ".join, parameters))


ALL = collectives.specs()
WITH_BUFFERS = [(collective, spec) for collective, spec in ALL if collective != "barrier"]


def calls(collective, p):
    """Return every count at root 0, and every root at one count."""
    roots = collectives.roots(collective, *range(p))
    return [*((n, 0) for n in small_counts(p)), *((p + 1, root) for root in roots if root)]


@pytest.mark.unsampled(max_size=4)
@parametrize(*ALL)
def test_small_counts_and_every_root(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for n, root in calls(collective, p):
            for in_place in places(collective):
                cases.check(checks, ours, Case(collective, n, root, in_place), spec, engine)


@parametrize(*collectives.variants())
def test_parameters(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        (last,) = collectives.roots(collective, p - 1)
        for n, root, how in ((2 * p + 1, 0, {}), (p + 1, last, {"chunk_bytes": 8, "window": 2})):
            for in_place in places(collective):
                cases.check(checks, ours, Case(collective, n, root, in_place), spec, engine, **how)


@parametrize(*WITH_BUFFERS)
def test_chunks(comm, engine, collective, spec):
    """Tiny ones, and large counts in chunks and without."""
    ours, p = mpicoll.Comm(comm), comm.size
    n, last = large(collective, p), max(collectives.roots(collective, *range(p)))
    how = [(1, last, {"chunk_bytes": 1, "window": 1}), (p + 1, 0, {"chunk_bytes": 8, "window": 2}),
           (5 * p + 3, last, {"chunk_bytes": 24, "window": 3}), (n, 0, {}),
           (n, last, {"chunk_bytes": 10_000, "window": 3})]
    with Checks() as checks:
        for n, root, chunks in how:
            for in_place in places(collective):
                case = Case(collective, n, root, in_place)
                cases.check(checks, ours, case, spec, engine, **chunks)


# -- reduce_scatter with counts


def shares(p):
    """Yield irregular counts of every rank, of several kinds."""
    yield [0] * p
    yield [(3 * r) % 4 for r in range(p)]
    yield [0] * (p - 1) + [2 * p + 1]
    yield [5] + [1] * (p - 1)
    yield [2 * p - r for r in range(p)]


def reduce_scatter(comm, counts, in_place, passes_counts=True):
    """Return a call with a count for each rank."""
    p, start = comm.size, sum(counts[: comm.rank])
    vectors = [cases.data(sum(counts), rank) for rank in range(p)]
    send, total = ARRAY.build(vectors[comm.rank], 1), sum(vectors)
    receive = send if in_place else ARRAY.build(np.full(counts[comm.rank], FILLER, "d"), 1)
    expected, where = receive.memory.copy(), receive.where(counts[comm.rank])
    expected[where] = total[start : start + counts[comm.rank]]
    arguments = MPI.IN_PLACE if in_place else send.value, receive.value, counts if passes_counts else None, MPI.SUM
    rest = slice(where.stop, where.start + sum(counts)) if in_place else slice(0)
    return PreparedCall(METHODS["Reduce_scatter"], arguments, None if in_place else send.memory, receive.memory,
                        expected, where, rest)


@pytest.mark.parametrize("spec", collectives.algorithms("reduce_scatter"))
def test_reduce_scatter_of_unequal_shares(comm, engine, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for counts, in_place in product(shares(p), (False, True)):
            for how in ({}, {"chunk_bytes": 8, "window": 2}, {"chunk_bytes": 24}):
                context = (counts, in_place, how)
                call = reduce_scatter(ours, counts, in_place)
                with ours.using(engine=engine, reduce_scatter=spec, **how), ours.trace() as records:
                    call.run(ours)
                checks.call(call, *context)
                checks.equal([(r.algorithm, r.engine) for r in records], [(spec, engine)], *context)


def test_reduce_scatter_without_counts_asks_the_ranks(ours, comm):
    with Checks() as checks:
        for counts in shares(comm.size):
            call = reduce_scatter(ours, counts, False, passes_counts=False)
            call.run(ours)
            checks.call(call, counts)


# -- exscan


@pytest.mark.parametrize("how", [{}, {"chunk_bytes": 16}])
def test_exscan_leaves_the_buffer_of_rank_0(comm, engine, how):
    """Of padded pairs in memory that ends with the last index too, which the engines cannot work on."""
    ours, rank = mpicoll.Comm(comm), comm.rank
    send = np.zeros(28, "u1")
    send[:8].view("d")[:], send[16:24].view("d")[:] = rank, -rank
    send[8:12].view("i")[:], send[24:].view("i")[:] = rank, rank
    for place in (send, MPI.IN_PLACE):
        got = np.full(28, 0xA5, np.uint8)
        if place is MPI.IN_PLACE:
            got[:] = send
        before = got.copy()
        with ours.using(engine=engine, **how):
            ours.Exscan([place, 2, MPI.DOUBLE_INT] if place is send else place, [got, 2, MPI.DOUBLE_INT], MPI.MAXLOC)
        if rank == 0:
            assert np.array_equal(got, before)
        else:
            pairs = [(got[at : at + 8].view("d")[0], got[at + 8 : at + 12].view("i")[0]) for at in (0, 16)]
            assert pairs == [(rank - 1, rank - 1), (0, 0)]


# -- barrier


@pytest.mark.mpi(min_size=2)
def test_a_barrier_blocks_until_all_ranks_have_entered(comm, engine):
    """The last to come writes down when, before it does."""
    ours, came = mpicoll.Comm(comm), np.zeros(comm.size)
    for late in range(comm.size):
        with ours.using(engine=engine):
            if comm.rank == late:
                time.sleep(0.05)
            came[comm.rank] = time.monotonic()      # one clock: the ranks share a machine
            ours.Barrier()
            left = time.monotonic()
        latest = np.empty(comm.size)
        comm.Allgather(came[comm.rank : comm.rank + 1], latest)
        assert left >= latest.max()
