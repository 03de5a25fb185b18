"""Calls whose counts differ in every call take the fast path too, and are what they are on the slow one."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from mpi4py import MPI
from support import collectives
from support.buffer_forms import BUFFER_FORMS
from support.calls import complete
from support.cases import Case, Checks

import mpicoll
from mpicoll.errors import BufferTooSmallError, CountMismatch, MessageSpecError, OverlapError
from mpicoll.fastpath import cached_calls
from mpicoll.schedules.collectives import BLOCKING, NONBLOCKING
from mpicoll.selection.rules import rules

LEARNT = 2  # calls of a kind, with other counts, before it is served


def parametrize(*parameters):
    return pytest.mark.parametrize(("collective", "spec"), parameters, ids=map(" ".join, parameters))


def fast_and_slow(comm):
    """Return a Comm, and one on which every call takes the slow path."""
    quick, slow = mpicoll.Comm(comm.Dup()), mpicoll.Comm(comm.Dup())
    slow._state.fast_path.close()
    return quick, slow


def equal_records(checks, quick, slow, *context):
    """Check that records are the same but for the path; return which calls took the fast one."""
    without = lambda records: [replace(record, fast_path=False, sequence=0) for record in records]
    for ours, other in zip(without(quick), without(slow)):
        checks.equal(ours, other, *context)
    return [record.fast_path for record in quick]


@parametrize(*[(collective, spec) for collective, spec in collectives.specs() if collective != "barrier"])
@pytest.mark.parametrize("kind", ["whole", "chunks", "chunks, short ones first"])
def test_every_algorithm(comm, collective, spec, kind):
    """Calls of many counts are served. The longest is first, for its scratch. Whole blocks and chunks have two keys.

    In place, chunks come in one of the two orders: a place changes the key, and orders do not depend on it.
    """
    how = {} if kind == "whole" else {"chunk_bytes": 24, "window": 3}
    (quick, slow), p = fast_and_slow(comm), comm.size
    root = collectives.roots(collective, p - 1)[0]
    numbers = [10 * p, 9 * p, *(n * p + rest for n in (7, 0, 3, 1, 0, 5) for rest in sorted({0, 1, p - 1}))]
    if "short" in kind:
        numbers = [numbers[0], *numbers[:0:-1]]
    may = collectives.has_in_place(collective) and kind != "chunks"
    for in_place in (False, True)[: 1 + may]:
        records = []
        with Checks() as checks:
            for ours in (quick, slow):
                with ours.using(engine="compiled", **{collective: spec}, **how), ours.trace() as traced:
                    for n in numbers:
                        case = Case(collective, n, root, in_place)
                        checks.call(case.run(ours), case)
                records.append(traced)
            went = equal_records(checks, *records, collective, spec)
            for in_chunks in (False, True):
                of_kind = [fast for fast, record in zip(went, records[0]) if (record.lanes > 1) == in_chunks]
                checks.that(all(of_kind[LEARNT:]), in_place, "in chunks" * in_chunks, of_kind)


@pytest.mark.parametrize("first", ["short", "long"])
@pytest.mark.parametrize("collective", sorted({*collectives.EQUAL_BLOCKS} - {"barrier"}))
def test_the_algorithm_follows_the_bytes(comm, collective, first):
    """Calls have sizes around every step of the rules."""
    (quick, slow), p, records = fast_and_slow(comm), comm.size, []
    sizes = {0, 8, *(rule.least(p) + more for rule in rules(collective, p, True, None) for more in (-8, 0, 8))}
    shares = 8 if collectives.has_whole_vector(collective) else 8 * p
    numbers = [-(-nbytes // shares) for nbytes in sorted(sizes, reverse=first == "long") if 0 <= nbytes <= 1 << 21]
    with Checks() as checks:
        for ours in (quick, slow):
            with ours.trace() as traced:
                for n in [*numbers, *numbers, *numbers, *numbers[::-1]]:
                    Case(collective, n).run(ours)
            records.append(traced)
        went = equal_records(checks, *records)
        checks.that(sum(went) >= len(numbers), f"{sum(went)} of {len(went)} calls took the fast path")


FORMS_SERVED = (
    *("array", "two dimensions", "type", "typecode", "type and no count", "count", "count and type"),
    *("count and displacement", "count, displacement, type", "both in a list", "bytes of doubles", "four"),
)


@pytest.mark.parametrize("buffer", FORMS_SERVED)
@pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
@pytest.mark.parametrize("name", [name for name in collectives.EQUAL_METHODS if name != "Reduce_scatter"])
def test_buffer_forms(ours, name, form, buffer):
    """The fast path serves these forms of the arguments."""
    with Checks() as checks:
        for in_place in (False, True)[: 1 + collectives.has_in_place(name)]:
            with ours.trace() as records:
                for n in (6, 5, 3, 0, 4, 1, 2):
                    call = Case(name, n, ours.size - 1, in_place, form=BUFFER_FORMS[buffer]).prepare(ours)
                    call.run(ours, form)
                    checks.call(call, n, in_place)
            went = [record.fast_path for record in records]
            if in_place:  # to ranks other than the root the first calls may be of a kind that is served already
                checks.that(all(went[LEARNT:]), went)
            else:
                checks.equal(went, [i >= LEARNT for i in range(7)], "fast")


def message(array, counts, places, kind):
    """Return a buffer of blocks, in a form of mpi4py's."""
    scalars = list(counts), [np.int32(place) for place in places]
    counts, places = counts.tolist(), places.tolist()
    return {
        "NumPy's scalars": lambda: [array, scalars, MPI.LONG],
        "list": lambda: [array, counts, places, MPI.LONG],
        "pair": lambda: [array, (counts, places), MPI.LONG],
        "tuples": lambda: (array, (tuple(counts), tuple(places)), "l"),
        "int64": lambda: [array, np.array(counts), np.array(places), MPI.LONG],
        "int32": lambda: [array, (np.array(counts, "i"), np.array(places, "i"))],
        "packed": lambda: [array, counts],
        "packed int64": lambda: [array, np.array(counts), MPI.LONG],
    }[kind]()


FORMS = ("list", "pair", "tuples", "int64", "int32", "packed", "packed int64", "NumPy's scalars")


def laid_out(rng, counts, packed):
    """Return displacements and the length of an array for blocks of these counts, shuffled with gaps unless packed."""
    order = np.arange(len(counts)) if packed else rng.permutation(len(counts))
    gaps = np.zeros(len(counts), int) if packed else rng.integers(0, 3, len(counts))
    places = np.zeros(len(counts), int)
    places[order] = np.cumsum(counts[order] + gaps[order]) - counts[order]
    return places, int(sum(counts) + sum(gaps))


@pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("name", ["Alltoallv", "Allgatherv", "Gatherv", "Scatterv"])
def test_vectors(ours, name, kind, form):
    """Counts, displacements and lengths of arrays differ from call to call and from rank to rank."""
    p, rank, root = ours.size, ours.rank, ours.size - 1
    shared, own = np.random.default_rng(7), np.random.default_rng(rank)
    with Checks() as checks, ours.trace() as records:
        for turn in range(30):
            counts = shared.integers(0, 9, (p, p)) + (9 if turn < LEARNT else 0)
            if name in ("Allgatherv", "Gatherv"):
                counts[:] = counts[:, :1]  # to every rank the same
            elif name == "Scatterv":
                counts[:] = counts[root]
            sends, receives = counts[rank], counts[:, rank]
            send_at, n_sent = laid_out(own, sends, "packed" in kind)
            recv_at, n_received = laid_out(own, receives, "packed" in kind)
            sent, received = np.full(n_sent + 2, -1), np.full(n_received + 2, -2)
            want = received.copy()
            block = lambda source, target: 1000 * source + 100 * target * (name == "Alltoallv") + np.arange(9 + 9)
            after = ()
            if name in ("Alltoallv", "Scatterv"):
                for target, (at, n) in enumerate(zip(send_at, sends)):
                    sent[at : at + n] = block(rank, target)[:n]
                send = message(sent, sends, send_at, kind)
            else:
                send = np.asarray(block(rank, 0)[: sends[0]])
            if name == "Scatterv":
                received, after = np.full(sends[rank], -2), (root,)
                want, receive = block(root, 0)[: sends[rank]], received
                send = send if rank == root else None
            else:
                for source, (at, n) in enumerate(zip(recv_at, receives)):
                    want[at : at + n] = block(source, rank)[:n]
                receive = message(received, receives, recv_at, kind)
                if name == "Gatherv":
                    after = (root,)
                    if rank != root:
                        receive, want = None, received
            method = getattr(ours, name if form == BLOCKING else f"I{name.lower()}")
            complete(method(send, receive, *after))
            checks.equal(received, want, turn)
        checks.that(all(record.fast_path for record in records[8:]), "slow")  # counts may be the same by chance


@pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("Alltoallw", kind) for kind in ("list", "pair", "in place")] + [("Neighbor_alltoallw", "list")],
)
def test_a_datatype_for_every_block(comm, name, form, kind):
    """Counts, displacements in bytes and gaps between blocks differ from call to call, datatypes from pair to pair."""
    p, rank, shared, own = comm.size, comm.rank, np.random.default_rng(7), np.random.default_rng(comm.rank)
    triple = MPI.BYTE.Create_contiguous(3).Commit()
    types = [(MPI.INT32_T, triple, MPI.DOUBLE)[(rank + peer) % 3] for peer in range(p)]
    extents = [datatype.Get_extent()[1] for datatype in types]
    ours, native = mpicoll.Comm(comm.Dup()), comm.Dup()
    if name != "Alltoallw":
        old = ours, native
        ours, native = (on.Create_dist_graph_adjacent(range(p), range(p)) for on in old)
    method = getattr(ours, name if form == BLOCKING else f"I{name.lower()}")
    with Checks() as checks, ours.trace() as records:
        for turn in range(20):
            counts = shared.integers(0, 9, (p, p)) + (9 if turn < LEARNT else 0)
            if kind == "in place":
                counts += counts.T
            sides = []
            for of_side in (counts[rank], counts[:, rank]):
                gaps = own.integers(0, 5, p)
                places = [sum(of_side[:i] * extents[:i]) + sum(gaps[: i + 1]) for i in range(p)]
                array = own.integers(0, 255, sum(of_side * extents) + sum(gaps), np.uint8)
                of_side, places = of_side.tolist(), list(map(int, places))
                sides.append([array, (of_side, places), types] if kind == "pair" else [array, of_side, places, types])
            if kind == "in place":
                sides[0] = MPI.IN_PLACE
            copied = sides[1][0].copy()
            getattr(native, name)(sides[0], [copied, *sides[1][1:]])
            complete(method(*sides))
            checks.equal(sides[1][0], copied, turn)
        checks.that(all(record.fast_path for record in records[LEARNT:]), "slow")
    for on in (ours, native, *(old if name != "Alltoallw" else ())):
        on.Free()
    triple.Free()


@parametrize(*[(collective, spec) for collective, spec in collectives.specs() if collective == "reduce_scatter"])
@pytest.mark.parametrize("kind", [list, tuple, np.array])
def test_recvcounts(comm, collective, spec, kind):
    """Recvcounts differ from call to call; some are 0. Schedules that cut shares in parts take the slow path."""
    (quick, slow), p, records = fast_and_slow(comm), comm.size, []
    with Checks() as checks:
        for ours in (quick, slow):
            rng = np.random.default_rng(3)
            with ours.using(engine="compiled", **{collective: spec}), ours.trace() as traced:
                for turn in range(8):
                    counts = rng.integers(0, 9, p) + 9 * (turn < LEARNT)
                    sent, received = np.arange(sum(counts)) + comm.rank, np.zeros(counts[comm.rank], int)
                    ours.Reduce_scatter(sent, received, kind(counts.tolist()))
                    first = sum(counts[: comm.rank])
                    checks.equal(received, (np.arange(len(received)) + first) * p + p * (p - 1) // 2, turn)
                    result = sent.copy()
                    ours.Reduce_scatter(MPI.IN_PLACE, result, kind(counts.tolist()))
                    checks.equal(result[: len(received)], received, "in place")
            records.append(traced)
        went = equal_records(checks, *records, spec)
        wanted = [turn >= LEARNT and "segments" not in spec for turn in range(8) for _ in ("two arrays", "in place")]
        checks.that(went == wanted or 0 in (records[0][0].bytes, p - 1), went)
    quick.Free()
    slow.Free()


@pytest.mark.parametrize("name", [f"Neighbor_{name}" for name in ("allgather", "allgatherv", "alltoall", "alltoallv")])
@pytest.mark.parametrize("graph", ["ring", "line", "itself twice"])
def test_neighbours(comm, name, graph):
    """Sizes of blocks differ from call to call, and with v from edge to edge. The ends of a line miss neighbours."""
    p, rank, records = comm.size, comm.rank, []
    ends = [rank, rank, (rank + 1) % p] if graph == "itself twice" else [(rank - 1) % p, (rank + 1) % p]
    sources = [rank, rank, (rank - 1) % p] if graph == "itself twice" else ends

    def make(on):
        return on.Create_cart([p]) if graph == "line" else on.Create_dist_graph_adjacent(sources, ends)

    with Checks() as checks:
        for path in ("fast", "slow"):
            neighbours = make(mpicoll.Comm(comm))
            if path == "slow":
                neighbours._state.fast_path.close()
            native, rng = make(comm), np.random.default_rng(4)
            with neighbours.trace() as traced:
                for turn in range(8):
                    sizes = rng.integers(0, 9, p) + 9 * (turn < LEARNT)
                    mine, n = sizes[rank] if name.endswith("v") else sizes[0], len(ends)
                    others = [int(sizes[r] if name.endswith("v") else sizes[0]) for r in sources]
                    sent = np.arange(mine * (n if "alltoall" in name else 1)) + 100 * rank
                    send = [sent, [int(mine)] * n] if name.endswith("alltoallv") else sent
                    results = []
                    for on in (native, neighbours):
                        results.append(np.zeros(sum(others), int))
                        receive = [results[-1], others] if name.endswith("v") else results[-1]
                        getattr(on, name)(send, receive)
                    checks.equal(*results, turn)
            records.append(traced)
            native.Free()
            neighbours.Free()
        went = equal_records(checks, *records, name)
        if graph != "itself twice" and p > 1:  # else a rank sends itself several blocks
            checks.that(all(went[LEARNT:]), went)


def test_wrong_counts_are_refused(ours):
    """The fast path refuses what the slow path refuses, before a message is sent."""
    p = ours.size
    array, into = np.arange(12 * p), np.zeros(12 * p, int)

    def alltoallv(sends, receives, send_at=None, recv_at=None):
        places = [list(range(0, 12 * p, 12)) if at is None else at for at in (send_at, recv_at)]
        ours.Alltoallv([array, (sends, places[0])], [into, (receives, places[1])])

    for n in (2, 3, 4):
        alltoallv([n] * p, [n] * p)
    ours.Alltoall(array[: 2 * p], into[: 2 * p])
    ours.Alltoall(array[: 3 * p], into[: 3 * p])
    ours.Allreduce(array[:2], into[:2])
    ours.Allreduce(array[:3], into[:3])
    ours.Bcast([into, 2, 3, MPI.LONG])
    ours.Bcast([into, 3, 2, MPI.LONG])
    for n in (2, 3, 4):
        ours.Reduce_scatter(array[: n * p], into[:n], [n] * p)
    for error, call in (
        (CountMismatch, lambda: alltoallv([-2, *[5] * (p - 1)], [-2, *[5] * (p - 1)])),
        (CountMismatch, lambda: alltoallv([-2] * p, [-2] * p)),
        (CountMismatch, lambda: alltoallv([2] * p, [3] * p)),
        (BufferTooSmallError, lambda: alltoallv([13] * p, [13] * p)),
        (BufferTooSmallError, lambda: alltoallv([1 << 62] * p, [1 << 62] * p)),
        (BufferTooSmallError, lambda: alltoallv([2] * p, [2] * p, send_at=[-2] * p)),
        (BufferTooSmallError, lambda: alltoallv([2] * p, [2] * p, recv_at=[12 * p - 1] * p)),
        (CountMismatch, lambda: ours.Allreduce(array[:4], into[:5])),
        (CountMismatch, lambda: ours.Alltoall(array[: 4 * p], into[: 5 * p])),
        (OverlapError, lambda: ours.Allreduce(into[:4], into[2:6])),
        *[(MessageSpecError, lambda: ours.Alltoall(array[: 3 * p + 1], into[: 3 * p]))] * (p > 1),
        (CountMismatch, lambda: ours.Reduce_scatter(array[: 6 * p], into[:3], [3] * p)),
        (CountMismatch, lambda: ours.Reduce_scatter(array[: 3 * p], into[:4], [3] * p)),
        (CountMismatch, lambda: ours.Reduce_scatter(array[: 3 * p], into[:4], [4] * p)),
        (MessageSpecError, lambda: ours.Reduce_scatter(array[: 3 * p], into[:3], [3] * (p + 1))),
        (CountMismatch, lambda: ours.Reduce_scatter([array, 3 * p + 1, MPI.LONG], into[:3], [3] * p)),
        (MessageSpecError, lambda: ours.Bcast([into, -2, 3, MPI.LONG])),
        (MessageSpecError, lambda: ours.Bcast([into, 2, -3, MPI.LONG])),
        (BufferTooSmallError, lambda: ours.Bcast([into, 12 * p - 2, 3, MPI.LONG])),
        *[(OverlapError, lambda: alltoallv([4] * p, [4] * p, recv_at=list(range(0, 3 * p, 3))))] * (p > 1),
        *[(OverlapError, lambda: alltoallv([4] * p, [4] * p, recv_at=list(range(0, 3 * p, 3))[::-1]))] * (p > 1),
    ):
        with pytest.raises(error):
            call()
    with ours.trace() as records:
        alltoallv([5] * p, [5] * p)
        alltoallv([5] * p, [5] * p, recv_at=list(range(0, 12 * p, 12))[::-1])
    assert [record.fast_path for record in records] == [True, True]


@pytest.mark.parametrize("collective", ["Iallreduce", "Ialltoallv"])
def test_in_flight(ours, comm, collective):
    """A rank is late, so that calls leave the fast path while others with their key begin."""
    p, rank, rng = comm.size, comm.rank, np.random.default_rng(5)

    def begin(n):
        if collective == "Iallreduce":
            received = np.zeros(n)
            return ours.Iallreduce(np.arange(n) + float(rank), received), received, np.arange(n) * p + p * (p - 1) / 2
        sent, received = np.full(n * p, rank), np.zeros(n * p, int)
        return ours.Ialltoallv([sent, [n] * p], [received, [n] * p]), received, np.repeat(np.arange(p), n)

    for n in (3000, 2000):
        begin(n)[0].Wait()
    with Checks() as checks, ours.trace() as records:
        for turn in range(12):
            if turn % p == rank:
                time.sleep(0.03)
            calls = [begin(int(n)) for n in rng.integers(0, 3000, 6)]
            for i in rng.permutation(6):
                request, received, want = calls[i]
                request.Wait()
                checks.equal(received, want, turn)
        checks.that(sum(record.fast_path for record in records) >= 12, "few took the fast path")


def test_operators_and_types_are_part_of_the_key(ours, comm):
    """A row for any counts serves one datatype, one operator, and either in place or not."""
    p, rank = comm.size, comm.rank
    for n in range(1, 40):
        for dtype in ("d", "l"):
            send, received = np.full(n, rank + 1, dtype), np.zeros(n, dtype)
            for op, want in ((MPI.SUM, p * (p + 1) // 2), (MPI.MAX, p), (mpicoll.AVG, (p + 1) / 2)):
                if op == mpicoll.AVG and dtype == "l":
                    continue
                ours.Allreduce(send, received, op)
                assert (received == want).all()
            array = send.copy()
            ours.Allreduce(MPI.IN_PLACE, array)
            assert (array == p * (p + 1) // 2).all()
            array = send.copy()
            ours.Allreduce(array, array)
            assert (array == p * (p + 1) // 2).all()


def test_memory_stays_flat(ours):
    """Calls with 700 other counts add nothing to the caches."""
    fast_path = ours._state.fast_path
    for n in (700, 600, 500):
        ours.Allreduce(np.ones(n), np.zeros(n))
    before = fast_path.stats(), ours._state.cache.nbytes
    for n in range(700):
        ours.Allreduce(np.ones(n), np.zeros(n))
    assert (fast_path.stats(), ours._state.cache.nbytes) == before


def test_a_key_that_failed_is_not_retried(ours, monkeypatch):
    """Compiled code cannot read these counts."""
    tried = []
    kind = cached_calls.AnyCounts
    monkeypatch.setattr(cached_calls, "AnyCounts", lambda *arguments: tried.append(1) or kind(*arguments))
    p = ours.size
    for n in range(1, 6):
        blocks = ([n] * p, [8 * n * r for r in range(p)]), [MPI.DOUBLE] * p
        ours.Alltoallw([np.ones(n * p), *blocks], [np.zeros(n * p), *blocks])
    assert len(tried) == 1


def test_elements_without_data(ours):
    """Elements of size 0 do not divide by zero."""
    nothing = MPI.DOUBLE.Create_contiguous(0).Commit()
    for n in (2, 3, 4, 5):
        ours.Bcast([np.zeros(9), n, nothing])
        ours.Allgather([np.zeros(9), n, nothing], [np.zeros(9 * ours.size), n, nothing])
    nothing.Free()


def test_sizes_that_overflow_a_word(ours):
    """A product of counts and sizes that is 0 modulo 2**64 is refused."""
    wide, into = MPI.BYTE.Create_contiguous(1 << 20).Commit(), np.zeros(4 << 20, np.uint8)
    for n in (1, 2, 3):
        ours.Bcast([into, n, wide])
        ours.Allgatherv([into[: 1 << 20], 1, wide], [np.zeros(ours.size << 20, np.uint8), [1] * ours.size, None, wide])
    for n in (1 << 44, 1 << 21):
        with pytest.raises(BufferTooSmallError):
            ours.Bcast([into, n, wide])
    wide.Free()
