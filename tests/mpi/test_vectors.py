"""Collectives with counts for every rank: every algorithm on both engines, any counts, any places, any form."""

from __future__ import annotations

import sys
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI
from support import vectors
from support.cases import Checks, check
from support.collectives import VECTOR, algorithms, roots, specs, variants
from support.vectors import VectorCase

import mpicoll
from mpicoll.buffers import vector as parsed
from mpicoll.dispatch import count_exchange
from mpicoll.errors import BufferAccessError, BufferTooSmallError
from mpicoll.schedules import blocks as parts
from mpicoll.schedules.registry import find, parse_spec

SPECS = specs(VECTOR)
HOW = ({}, {"chunk_bytes": 1, "window": 1}, {"chunk_bytes": 24, "window": 2}, {"chunk_bytes": 16, "window": 32})
parametrize = pytest.mark.parametrize
every_spec = parametrize(("collective", "spec"), SPECS, ids=map(" ".join, SPECS))


@every_spec
def test_any_counts_at_any_place(comm, engine, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for name in vectors.COUNTS:
            for placement in vectors.PLACEMENTS:
                for root in roots(collective, *range(p)):
                    for in_place in (False, True):
                        check(checks, ours, VectorCase(collective, name, placement, root, in_place), spec, engine)


@every_spec
def test_tiny_chunks(comm, engine, collective, spec):
    """Some ranks have many chunks and others none or one; each has as many lanes as its own blocks need."""
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for how in HOW[1:]:
            for counts in ("uneven", "a long one")[: how["chunk_bytes"]]:
                for root in roots(collective, 0, p - 1):
                    for in_place in (False, True):
                        call = VectorCase(collective, counts, root=root, in_place=in_place)
                        (record,) = check(checks, ours, call, spec, engine, **how)
                        checks.equal(record.chunk_bytes, how["chunk_bytes"], call, how)
                        if p > 1 and counts == "a long one" and how["chunk_bytes"] == 16 and comm.rank == root:
                            entry, parameters = parse_spec(collective, spec)
                            longest = parts.sizes(320, entry.blocks(p, **dict(parameters)))[0]
                            checks.that(record.lanes == -(-longest // 16), call, how, f"not cut: {record}")


@parametrize("collective", VECTOR)
def test_parameters_of_algorithms(comm, engine, collective):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for _, spec in variants((collective,)):
            for how, in_place in product(({}, {"chunk_bytes": 24, "window": 2}), (False, True)):
                check(checks, ours, VectorCase(collective, root=p - 1, in_place=in_place), spec, engine, **how)


@pytest.mark.mpi(min_size=3)
@pytest.mark.unsampled(max_size=4)
@parametrize("window", [1, 2, 3, 4, 32])
def test_ranks_have_lanes_of_their_own(comm, engine, window):
    """Only the root knows how many chunks the others have: 1, 3, 5, … and none."""
    ours, p = mpicoll.Comm(comm), comm.size
    sizes = [0, *[2 * r - 1 for r in range(1, p)]]
    with Checks() as checks, ours.using(gatherv="linear", engine=engine, chunk_bytes=8, window=window):
        for root in range(p):
            with ours.trace() as records:
                got = np.full(sum(sizes), -1.0)
                ours.Gatherv(vectors.block(comm.rank, 0, sizes[comm.rank]), [got, sizes], root)
            want = max(sizes) if comm.rank == root else max(1, sizes[comm.rank])
            checks.equal(records[0].lanes, want, root)
            if comm.rank == root:
                checks.equal(got, np.concatenate([vectors.block(r, 0, n) for r, n in enumerate(sizes)]), root)


@parametrize("collective", VECTOR)
def test_many_bytes(comm, engine, collective):
    """MPI sends so many bytes by rendezvous only: ranks must not wait for each other in a circle."""
    ours, p, n = mpicoll.Comm(comm), comm.size, 30_000
    counts = {"many": lambda p, s, d: n + s + d}
    with pytest.MonkeyPatch.context() as patch, Checks() as checks:
        patch.setattr(vectors, "COUNTS", counts)
        patch.setattr(vectors, "SYMMETRIC", counts)
        for spec in algorithms(collective):
            for in_place, how in ((False, {}), (True, {"chunk_bytes": 50_000})):
                check(checks, ours, VectorCase(collective, "many", root=p - 1, in_place=in_place), spec, engine, **how)


def test_without_counts_elements_are_shared_out(comm):
    """Ranks share the elements as in mpi4py: the first ones get one more."""
    ours, p, rank = mpicoll.Comm(comm), comm.size, comm.rank
    share = [2 + (r < 1) for r in range(p)]
    forms = (lambda x: x, lambda x: [x, MPI.DOUBLE], lambda x: [x, None, None, "d"], lambda x: [x, (None, None)])
    for message in forms:
        got = np.full(2 * p + 1, -1.0)
        ours.Allgatherv(vectors.block(rank, 0, share[rank]), message(got))
        assert np.array_equal(got, np.concatenate([vectors.block(r, 0, n) for r, n in enumerate(share)]))
        part = np.full(share[rank], -1.0)
        ours.Scatterv(message(got) if rank == 0 else None, part)
        assert np.array_equal(part, vectors.block(rank, 0, share[rank]))


def test_one_number_for_all(comm):
    """One count is for all ranks, and one displacement is the stride."""
    ours, p = mpicoll.Comm(comm), comm.size
    for two, five in ((2, 5), (np.int32(2), np.array(5))):
        got = np.full(5 * p, -1.0)
        ours.Allgatherv(vectors.block(comm.rank, 0, 2), [got, (two, five)])
        assert np.array_equal(got.reshape(p, 5)[:, :2], [vectors.block(r, 0, 2) for r in range(p)])
        assert (got.reshape(p, 5)[:, 2:] == -1).all()


def test_no_memory_for_nothing(comm):
    ours, none = mpicoll.Comm(comm), [0] * comm.size
    ours.Allgatherv([None, 0, MPI.INT], [None, none, MPI.INT])
    ours.Alltoallv([None, none, MPI.INT], [None, none, MPI.INT])
    ours.Alltoallw([None, none, none, [MPI.INT] * comm.size], [None, none, none, [MPI.INT] * comm.size])
    ours.Gatherv(np.zeros(0), [None, none, MPI.DOUBLE] if comm.rank == 0 else None)


def test_significant_only_at_the_root(comm):
    ours, root = mpicoll.Comm(comm), comm.size - 1
    there, junk = comm.rank == root, object()
    got, part = np.zeros(comm.size), np.zeros(1)
    ours.Gatherv(np.full(1, comm.rank + 1.0), got if there else junk, root)
    ours.Scatterv(got if there else junk, part, root)
    assert part[0] == comm.rank + 1


# -- datatypes


def test_alltoallw_of_many_types(comm, engine):
    """Each pair of ranks has its own type, and each rank has all blocks in one struct of memory."""
    ours, p, rank = mpicoll.Comm(comm), comm.size, comm.rank
    kinds = [(MPI.DOUBLE, "d"), (MPI.INT, "i"), (MPI.CHAR, "S1"), (MPI.SHORT, "h")]

    def parts(of):
        """Return (type, bytes, count, place) of each block."""
        pieces, at = [], 0
        for other in range(p):
            datatype, code = kinds[(rank + other) % 4]
            n = (rank + other) % 3
            pieces.append((datatype, code, n, at))
            at += 8 * n + 8 * of
        return pieces, at

    (sends, length), (receives, room) = parts(1), parts(2)
    sent, got = np.zeros(length, "u1"), np.full(room, 0xA5, "u1")
    for other, (_, code, n, at) in enumerate(sends):
        data = np.full(n, rank * p + other + 1).astype(code)
        sent[at : at + data.nbytes] = np.frombuffer(data.tobytes(), "u1")
    want = got.copy()
    for other, (_, code, n, at) in enumerate(receives):
        data = np.full(n, other * p + rank + 1).astype(code)
        want[at : at + data.nbytes] = np.frombuffer(data.tobytes(), "u1")
    for spec in algorithms("alltoallw"):
        got[:] = 0xA5
        with ours.using(engine=engine, alltoallw=spec):
            ours.Alltoallw([sent, [x[2] for x in sends], [x[3] for x in sends], [x[0] for x in sends]],
                           [got, [x[2] for x in receives], [x[3] for x in receives], [x[0] for x in receives]])
        assert np.array_equal(got, want), spec


def test_alltoallw_of_subarrays(comm, engine):
    """A matrix is transposed in blocks by datatypes alone, without counts and displacements."""
    ours, p = mpicoll.Comm(comm), comm.size
    whole = np.arange(4.0 * p * p * p).reshape(2 * p, 2 * p * p)            # two rows of every rank
    mine = whole[:, 2 * p * comm.rank : 2 * p * (comm.rank + 1)].copy()     # this rank has its columns
    rows = np.zeros((2, 2 * p * p))
    out = [MPI.DOUBLE.Create_subarray([2 * p, 2 * p], [2, 2 * p], [2 * d, 0]).Commit() for d in range(p)]
    into = [MPI.DOUBLE.Create_subarray([2, 2 * p * p], [2, 2 * p], [0, 2 * p * s]).Commit() for s in range(p)]
    for spec in algorithms("alltoallw"):
        rows[:] = 0
        with ours.using(engine=engine, alltoallw=spec):
            ours.Alltoallw([mine, out], [rows, into])
        assert np.array_equal(rows, whole[2 * comm.rank : 2 * comm.rank + 2]), spec
    for datatype in out + into:
        datatype.Free()


# -- choosing


@parametrize("collective", VECTOR)
def test_native_and_auto(ours, collective):
    with Checks() as checks, ours.trace() as records:
        for spec in ("auto", "native"):
            with ours.using(**{collective: spec}):
                checks.call(VectorCase(collective).run(ours), spec)
    assert [r.collective for r in records] == [collective] * 2
    assert records[0].algorithm == ours.explain(collective, 8).algorithm and records[1].algorithm == "native"


@parametrize("collective", VECTOR)
def test_only_algorithms_that_need_counts_exchange_them(comm, monkeypatch, collective):
    """Auto chooses an algorithm that needs none."""
    ours, asked = mpicoll.Comm(comm), []
    asking = count_exchange.exchange_counts
    monkeypatch.setattr(count_exchange, "exchange_counts", lambda *sizes: asked.append(sizes) or asking(*sizes))
    for spec in ("auto", *algorithms(collective)):
        asked.clear()
        with ours.using(**{collective: spec}):
            VectorCase(collective, "uneven", "packed").run(ours)
        needs = spec != "auto" and not find(collective, spec).direct and collective != "allgatherv"
        assert len(asked) == needs, spec


def test_equal_blocks_have_a_choice_of_their_own(ours, comm):
    with ours.using(gather="binomial", gatherv="linear"), ours.trace() as records:
        ours.Gather(np.zeros(1), np.zeros(comm.size))
        ours.Gatherv(np.zeros(1), [np.zeros(comm.size), 1])
    assert [(r.collective, r.algorithm) for r in records] == [("gather", "binomial"), ("gatherv", "linear")]


def test_counts_that_change_on_one_rank(comm, engine):
    """The counts of one rank change from call to call, and the others must not use cached ones."""
    ours, p = mpicoll.Comm(comm), comm.size
    with ours.using(engine=engine, gatherv="binomial", alltoallv="bruck"):
        for i in range(40):
            sizes = [1 + (i if r == i % p else 0) for r in range(p)]
            got = np.full(sum(sizes), -1.0)
            ours.Gatherv(vectors.block(comm.rank, 0, sizes[comm.rank]), [got, sizes])
            if comm.rank == 0:
                assert np.array_equal(got, np.concatenate([vectors.block(r, 0, n) for r, n in enumerate(sizes)])), i
            ours.Alltoallv([got, [0] * p], [got[:0], [0] * p])


@pytest.mark.mpi(min_size=2)
def test_beside_operations_in_flight(comm, engine):
    """Calls exchange counts while other operations are in flight and complete in any order."""
    ours, p = mpicoll.Comm(comm), comm.size
    totals = [np.zeros(5_000) for _ in range(4)]
    with ours.using(engine=engine, gatherv="binomial", scatterv="binomial", alltoallv="bruck"):
        requests = []
        for i, total in enumerate(totals):
            requests.append(ours.Iallreduce(np.full(5_000, i + 1.0), total))
            if i % 2 == comm.rank % 2:
                requests[-1].Test()
            case = VectorCase(("gatherv", "scatterv", "alltoallv", "allgatherv")[i], root=1)
            assert not case.run(ours).difference
        for request in requests[:: 1 if comm.rank else -1]:
            request.Wait()
    assert all((total == p * (i + 1)).all() for i, total in enumerate(totals))


# -- counts that do not fit together, without check mode


@pytest.mark.mpi(min_size=2)
@parametrize("count", [3, 1])
def test_counts_that_differ_raise_before_memory_is_written(comm, count):
    """An algorithm that exchanges counts raises instead of writing past a block, or only a part of it."""
    ours, p = mpicoll.Comm(comm), comm.size
    received, message = [2] * p, rf"sends {8 * count} bytes .* 16"
    with ours.using(alltoallv="bruck"), pytest.raises(mpicoll.errors.CountMismatch, match=message):
        sent = [count if d != comm.rank else 2 for d in range(p)]
        ours.Alltoallv([np.zeros(sum(sent)), sent], [np.zeros(2 * p), received])


def test_the_same_blocks_in_other_memory(comm, engine):
    """Valid counts and displacements are cached. Each call checks that its memory is large enough and writable."""
    ours, p = mpicoll.Comm(comm), comm.size
    counts = [1 + i for i in range(p)]
    places = [sum(counts[:i]) for i in range(p)]
    with ours.using(engine=engine), Checks() as checks:
        for turn in range(4):
            got = np.full(sum(counts), -1.0)
            ours.Allgatherv(np.full(counts[comm.rank], comm.rank + 10.0 * turn), [got, counts, places, MPI.DOUBLE])
            checks.that((got == np.repeat(np.arange(p), counts) + 10 * turn).all(), turn, got)
        fixed = np.zeros(sum(counts))
        fixed.flags.writeable = False
        for memory, shift, error in ((got[1:], 0, BufferTooSmallError), (got, 1, BufferTooSmallError),
                                     (fixed, 0, BufferAccessError)):
            with pytest.raises(error):
                ours.Allgatherv(
                    np.zeros(counts[comm.rank]), [memory, counts, [x + shift for x in places], MPI.DOUBLE])
    references = sys.getrefcount(got)
    ours.Allgatherv(np.zeros(counts[comm.rank]), [got, counts, places, MPI.DOUBLE])
    assert sys.getrefcount(got) == references


def test_the_cache_of_valid_vectors_is_limited(comm, monkeypatch):
    monkeypatch.setattr(parsed, "CACHE_LIMIT", 5)
    monkeypatch.setattr(parsed, "_valid_vectors", {})
    ours = mpicoll.Comm(comm)
    for n in range(20):
        got = np.zeros(n * comm.size)
        ours.Allgatherv(np.full(n, 3.0), [got, [n] * comm.size, MPI.DOUBLE])
        assert (got == 3).all() and 0 < len(parsed._valid_vectors) <= 5
