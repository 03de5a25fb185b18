"""Stencils: neighbours at the same offsets everywhere, whose blocks may travel in fewer messages."""

from __future__ import annotations

from itertools import cycle, product

import numpy as np
import pytest
from mpi4py import MPI
from support.cases import Checks
from support.in_form import FORMS
from support.neighbors import NAMES, prepare

import mpicoll
from mpicoll.dispatch.methods import NEIGHBOR_METHODS
from mpicoll.errors import ArgumentError, CountMismatch, MismatchError, ParameterError

parametrize = pytest.mark.parametrize
EQUAL = [name for name in NAMES if name[-1] not in "vw"]
OTHER = [name for name in NAMES if name not in EQUAL]


def around(dimensions):
    """Return the offsets of all ranks around one."""
    return [offset for offset in product((-1, 0, 1), repeat=dimensions) if any(offset)]


# periods, and offsets in a grid of as many dimensions
STENCILS = {
    "9 points, periodic": ((True, True), around(2)),
    "9 points, bounded": ((False, False), around(2)),
    "27 points, partly periodic": ((True, False, True), around(3)),
    "far, repeated, itself": ((True, False), [(1, 0), (2, -1), (0, 1), (0, 0), (2, -1), (-1, 1)]),
    "one way": ((True,), [(1,)]),
    "upwind, bounded": ((False, False), [(1, 0), (1, 1), (0, 1)]),
}


def stencil(comm, name):
    """Return a communicator of that stencil, on a grid of all ranks."""
    periods, offsets = STENCILS[name]
    grid = comm.Create_cart(MPI.Compute_dims(comm.size, len(periods)), periods)
    graph = grid.Create_stencil(offsets)
    grid.Free()
    return graph


@parametrize("algorithm", ["direct", "combining"])
@parametrize("name", STENCILS)
def test_every_algorithm(ours, engine, name, algorithm):
    """Of no elements, of one and of many, whole and in chunks; the fourth call is on the fast path, if there is one.

    Forms take turns, so that every method and every size meets each of them.
    """
    graph, forms = stencil(ours, name), cycle(FORMS)
    with Checks() as checks:
        for method, (n, chunk) in product(NAMES, ((0, None), (1, None), (700, None), (700, 64))):
            call, form = prepare(graph, method, n), next(forms)
            chosen = {method.lower(): algorithm}
            with graph.using(engine=engine, chunk_bytes=chunk, **chosen), graph.trace() as records:
                call.run(graph, form, 4)
            checks.call(call, method, n, chunk)
            ran = {(r.collective, r.algorithm, r.engine, r.name) for r in records}
            checks.equal(ran, {(method.lower(), algorithm, engine, NEIGHBOR_METHODS[method].spelled(form))})
    graph.Free()


@parametrize("name", STENCILS)
def test_blocks_travel_in_few_messages(ours, name):
    """One is sent and one received for each way along each dimension, where direct has them for each neighbour."""
    graph = stencil(ours, name)
    sent = {}
    for algorithm in ("direct", "combining"):
        call = prepare(graph, "Neighbor_alltoall", 3)
        with graph.using(neighbor_alltoall=algorithm), graph.trace() as records:
            call.run(graph)
        sent[algorithm] = records[0].messages
    periods, offsets = STENCILS[name]
    ways = sum(len({offset[d] for offset in offsets} - {0}) for d in range(len(periods)))
    assert sent["combining"] <= 2 * ways
    if ours.size == 8 and len(offsets) > 6 and any(periods):
        assert 2 * sent["combining"] < sent["direct"], sent
    graph.Free()


@parametrize("name", STENCILS)
def test_equals_the_builtin(ours, name):
    """All give the MPI's result. Open MPI 5.0.11 raises ERR_TRUNCATE if degrees differ, so it is skipped there."""
    has_builtin = MPI.get_vendor()[0] != "Open MPI" or ours.size == 1
    graph = stencil(ours, name)
    with Checks() as checks:
        for method, algorithm in product(NAMES, ("auto", "direct", "combining")):
            call, native = prepare(graph, method, 5), prepare(graph, method, 5)
            with graph.using(**{method.lower(): algorithm}):
                call.run(graph)
            if has_builtin:
                with graph.using(**{method.lower(): "native"}):
                    native.run(graph)
                checks.call(native, "native")
            checks.call(call, algorithm)
    graph.Free()


@parametrize("method", OTHER)
def test_blocks_of_other_lengths_go_directly(ours, method):
    """By auto, which exchanges no counts."""
    graph = stencil(ours, "9 points, periodic")
    call = prepare(graph, method, 4)
    with graph.trace() as records:
        call.run(graph)
    assert not call.difference and {r.algorithm for r in records} == {"direct"}
    graph.Free()


@parametrize("method", OTHER)
def test_other_lengths_in_every_call_are_exchanged(ours, engine, method):
    """Blocks of a rank, of no bytes too, pass others that learn how long they are in each call."""
    graph = stencil(ours, "27 points, partly periodic")
    with Checks() as checks, graph.using(engine=engine, **{method.lower(): "combining"}):
        for n in (3, 0, 50, 3, 4, 3):
            call = prepare(graph, method, n)
            call.run(graph)
            checks.call(call, method, n)
    graph.Free()


@parametrize("check", ["0", "1"])
@parametrize("algorithm", ["direct", "combining"])
def test_counts_that_differ_at_the_ends_of_an_edge(comm, monkeypatch, algorithm, check):
    """A rank that expects other counts raises, and every rank with MPICOLL_CHECK=1; blocks are not forwarded before."""
    monkeypatch.setenv("MPICOLL_CHECK", check)
    graph = stencil(mpicoll.Comm(comm), "one way")
    if comm.size > 1 and (algorithm == "combining" or check == "1"):
        arguments = [np.zeros(2), [2]], [np.zeros(3), [3]]
        error = MismatchError if check == "1" else CountMismatch
        with graph.using(neighbor_alltoallv=algorithm), pytest.raises(error, match="sends"):
            graph.Neighbor_alltoallv(*arguments)
    call = prepare(graph, "Neighbor_alltoallv", 4)
    call.run(graph)
    assert not call.difference
    graph.Free()


def test_auto_goes_by_the_network(comm, monkeypatch):
    """Small blocks are combined, large ones go directly; explain says what runs."""
    monkeypatch.setenv("MPICOLL_NETWORK", "infiniband")
    graph = stencil(mpicoll.Comm(comm), "27 points, partly periodic")
    ran = {}
    for n in (1, 1 << 14):
        call = prepare(graph, "Neighbor_alltoall", n)
        with graph.trace() as records:
            call.run(graph, times=4)
        ran[n] = {record.algorithm for record in records}
        assert ran[n] == {graph.explain("neighbor_alltoall", 8 * n).algorithm}
        assert not call.difference
    if comm.size == 8:
        assert ran == {1: {"combining"}, 1 << 14: {"direct"}}
    graph.Free()


@parametrize("algorithm", ["auto", "combining"])
@parametrize("name", STENCILS)
def test_other_counts_in_every_call(comm, monkeypatch, algorithm, name):
    """The fast path for any counts must not serve these calls: a rank forwards blocks of others."""
    monkeypatch.setenv("MPICOLL_NETWORK", "fugaku")
    graph = stencil(mpicoll.Comm(comm), name)
    with Checks() as checks, graph.using(neighbor_alltoall=algorithm, neighbor_allgather=algorithm):
        for method, n in product(EQUAL, (*range(1, 9), 5000, 3, 6000, 4)):
            call = prepare(graph, method, n)
            with graph.trace() as records:
                call.run(graph)
            checks.call(call, method, n)
            checks.equal([r.algorithm for r in records], [graph.explain(method.lower(), 8 * n).algorithm], method, n)
    graph.Free()


def test_a_duplicate_is_a_stencil_too(ours):
    """And other graphs are none."""
    graph = stencil(ours, "9 points, bounded")
    copy = graph.Dup()
    call = prepare(copy, "Neighbor_alltoall", 2)
    with copy.using(neighbor_alltoall="combining"):
        call.run(copy)
    assert not call.difference
    plain = ours.Create_dist_graph_adjacent([ours.rank], [ours.rank])
    with plain.using(neighbor_alltoall="combining"), pytest.raises(ParameterError, match="Create_stencil"):
        plain.Neighbor_alltoall(np.zeros(1), np.zeros(1))
    for comm in (copy, graph, plain):
        comm.Free()


def test_a_stencil_without_nearest_neighbours_is_not_combined(ours):
    """A rank that has no neighbour would not know how long the blocks are that it forwards."""
    grid = ours.Create_cart([ours.size], [False])
    graph = grid.Create_stencil([(2,)])
    call = prepare(graph, "Neighbor_alltoall", 2)
    call.run(graph)
    assert not call.difference
    if ours.size > 1:
        with graph.using(neighbor_alltoall="combining"), pytest.raises(ParameterError, match="along every dimension"):
            call.run(graph)
    for comm in (graph, grid):
        comm.Free()


@parametrize("offsets", [[(1,)], [(1, 0), (0, 1, 0)], [(1, 0.5)], [1, 2], 7])
def test_offsets_that_are_none(ours, offsets):
    """On every rank, or on one, where the others say so."""
    grid = ours.Create_cart([ours.size, 1], [True, True])
    with pytest.raises(ArgumentError, match="each must be a sequence of 2 integers"):
        grid.Create_stencil(offsets)
    if ours.size > 1:
        error = ArgumentError if ours.rank == 0 else MismatchError
        with pytest.raises(error, match="offsets"):
            grid.Create_stencil(offsets if ours.rank == 0 else [(1, 0)])
        with pytest.raises(MismatchError, match="the ranks differ in offsets"):
            grid.Create_stencil([(ours.rank, 0)])
    grid.Free()


def test_check_mode(comm, monkeypatch):
    """Counts of neighbours are compared, and combined blocks arrive."""
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    graph = stencil(mpicoll.Comm(comm), "9 points, periodic")
    for method in NAMES:
        call = prepare(graph, method, 2)
        with graph.using(**{method.lower(): "combining"}):
            call.run(graph)
        assert not call.difference
