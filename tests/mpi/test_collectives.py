"""Every algorithm on both engines gives what MPI's own collective gives, and touches nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mpi4py import MPI
from support import cases
from support.cases import Case, Checks

import mpicoll

LARGE = 40_000                              # doubles in all


def counts(p):
    """Small counts around the number of ranks, in which remainders and empty blocks show."""
    return sorted({0, 1, p - 1, p, p + 1, 5 * p + 3})


def roots(collective, p):
    return range(p) if collective in cases.ROOTED else (0,)


def places(collective):
    return (False, True) if collective in cases.IN_PLACE else (False,)


def large(collective, p):
    return LARGE if collective in cases.WHOLE else LARGE // p


def each(*parameters):
    return pytest.mark.parametrize(("collective", "spec"), parameters, ids=map(" ".join, parameters))


ALL = list(cases.specs())
WITH_BUFFERS = [(collective, spec) for collective, spec in ALL if collective != "barrier"]


def calls(collective, p):
    """Every count at root 0, and every root at one count."""
    if collective == "barrier":
        return [(0, 0)]
    return [*((n, 0) for n in counts(p)), *((p + 1, root) for root in roots(collective, p) if root)]


@pytest.mark.unsampled(max_size=4)
@each(*ALL)
def test_small_counts_and_every_root(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for n, root in calls(collective, p):
            for in_place in places(collective):
                cases.check(checks, ours, comm, Case(collective, n, root, in_place), spec, engine)


@each(*cases.variants())
def test_parameters(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for n, root, how in ((2 * p + 1, 0, {}), (p + 1, p - 1, {"chunk_bytes": 8, "window": 2})):
            if collective == "barrier" or root not in roots(collective, p):
                n, root = 0 if collective == "barrier" else n, 0
            for in_place in places(collective):
                cases.check(checks, ours, comm, Case(collective, n, root, in_place), spec, engine, **how)


@each(*WITH_BUFFERS)
def test_chunks(comm, engine, collective, spec):
    """Tiny ones, and large counts in chunks and without."""
    ours, p = mpicoll.Comm(comm), comm.size
    n, last = large(collective, p), max(roots(collective, p))
    how = [(1, last, {"chunk_bytes": 1, "window": 1}), (p + 1, 0, {"chunk_bytes": 8, "window": 2}),
           (5 * p + 3, last, {"chunk_bytes": 24, "window": 3}), (n, 0, {}),
           (n, last, {"chunk_bytes": 10_000, "window": 3})]
    with Checks() as checks:
        for n, root, chunks in how:
            for in_place in places(collective):
                case = Case(collective, n, root, in_place)
                cases.check(checks, ours, comm, case, spec, engine, **chunks)


# -- reduce_scatter with counts


def shares(p):
    """Counts of every rank: all kinds of irregular."""
    yield [0] * p
    yield [(3 * r) % 4 for r in range(p)]
    yield [0] * (p - 1) + [2 * p + 1]
    yield [5] + [1] * (p - 1)
    yield [2 * p - r for r in range(p)]


def reduce_scatter(comm, each_counts, in_place, given=True):
    """(result, whether the guard zones are intact) of one call."""
    total, own = sum(each_counts), each_counts[comm.rank]
    mine, receive = cases.data(total, comm.rank), cases.Guarded(total if in_place else own)
    if in_place:
        receive.view[:] = mine
    comm.Reduce_scatter(MPI.IN_PLACE if in_place else mine, receive.view, each_counts if given else None)
    return receive.view[:own], receive.intact


@pytest.mark.parametrize("spec", [spec for collective, spec in ALL if collective == "reduce_scatter"])
def test_reduce_scatter_of_unequal_shares(comm, engine, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for each_counts in shares(p):
            for in_place in (False, True):
                want, _ = reduce_scatter(comm, each_counts, in_place)
                for how in ({}, {"chunk_bytes": 8, "window": 2}, {"chunk_bytes": 24}):
                    said = (each_counts, in_place, how)
                    with ours.using(engine=engine, reduce_scatter=spec, **how), ours.trace() as records:
                        got, intact = reduce_scatter(ours, each_counts, in_place)
                    checks.equal(got, want, *said)
                    checks.that(intact, *said, "wrote outside its receive buffer")
                    checks.equal([(r.algorithm, r.engine) for r in records], [(spec, engine)], *said)


def test_reduce_scatter_asks_for_counts_it_is_not_given(ours, comm):
    with Checks() as checks:
        for each_counts in shares(comm.size):
            got, intact = reduce_scatter(ours, each_counts, False, given=False)
            checks.equal(got, reduce_scatter(comm, each_counts, False)[0], each_counts)
            checks.that(intact, each_counts, "wrote outside its receive buffer")


# -- exscan


@pytest.mark.parametrize("how", [{}, {"chunk_bytes": 16}])
def test_exscan_leaves_the_buffer_of_rank_0(comm, engine, how):
    """Of padded pairs in memory that ends with the last index too, which the engines cannot work on."""
    ours, rank = mpicoll.Comm(comm), comm.rank
    send = np.zeros(28, "u1")
    send[:8].view("d")[:], send[16:24].view("d")[:] = rank, -rank
    send[8:12].view("i")[:], send[24:].view("i")[:] = rank, rank
    for place in (send, MPI.IN_PLACE):
        got = np.full(28, cases.GUARD, np.uint8)
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
def test_nobody_leaves_a_barrier_before_everybody_came(comm, engine):
    """The last to come writes down when, before it does."""
    ours, came = mpicoll.Comm(comm), np.zeros(comm.size)
    for late in range(comm.size):
        with ours.using(engine=engine):
            if comm.rank == late:
                time.sleep(0.05)
            came[comm.rank] = time.monotonic()      # one clock: the ranks share a machine
            ours.Barrier()
            left = time.monotonic()
        everybody = np.empty(comm.size)
        comm.Allgather(came[comm.rank : comm.rank + 1], everybody)
        assert left >= everybody.max()
