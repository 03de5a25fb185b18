"""Neighbourhood collectives: every form and method on grids and graphs, what arrives where, and wrong arguments."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from mpi4py import MPI
from support.cases import Checks
from support.in_form import FORMS
from support.neighbors import NAMES, lists, prepare

import mpicoll
from mpicoll.dispatch.methods import NEIGHBOR_METHODS
from mpicoll.errors import (
    ArgumentError,
    BufferTooSmallError,
    CommError,
    CountMismatch,
    InPlaceError,
    MismatchError,
    OverlapError,
    RankError,
)
from mpicoll.runtime.topology import graph_of
from mpicoll.schedules.graphs import ABSENT

parametrize = pytest.mark.parametrize
SIZE = MPI.COMM_WORLD.size


def grids():
    """Yield (dims, periods) of grids of all ranks, of 1 to 3 dimensions, some of which have 1 or 2 ranks."""
    shapes = {(SIZE,), (SIZE, 1), (1, SIZE), tuple(MPI.Compute_dims(SIZE, 2)), tuple(MPI.Compute_dims(SIZE, 3))}
    for dims in sorted(shapes):
        ways = {(True,) * len(dims), (False,) * len(dims), tuple(d % 2 == 0 for d in range(len(dims)))}
        yield from ((dims, periods) for periods in sorted(ways))


TOPOLOGIES = {
    **{f"{dims} {periods}": lambda c, d=dims, q=periods: c.Create_cart(d, q) for dims, periods in grids()},
    "repeated": lambda c: c.Create_dist_graph_adjacent(*lists(c.rank, c.size)),
    "ring": lambda c: c.Create_graph([2 * r + 2 for r in range(c.size)],
                                     [x % c.size for r in range(c.size) for x in (r - 1, r + 1)]),
    "no neighbours": lambda c: c.Create_dist_graph_adjacent([], []),
    "None for no neighbours": lambda c: c.Create_dist_graph_adjacent(None, None),
}


def builtin_is_right(graph, form):
    """Tell whether MPI's own methods place two blocks from one neighbour in a grid correctly.

    Open MPI 5.0.11 raises ERR_TRUNCATE in graphs of which ranks have different numbers of neighbours.
    """
    vendor = MPI.get_vendor()[0]
    if vendor == "Open MPI" and graph.Get_topology() == MPI.DIST_GRAPH and graph.size > 1:
        return False
    twice = graph.Get_topology() == MPI.CART and any(n < 3 and around for n, around in zip(graph.dims, graph.periods))
    return not (twice and (vendor == "Intel MPI" or (vendor == "Open MPI" and form != "blocking")))


@parametrize("form", FORMS)
@parametrize("topology", TOPOLOGIES)
def test_every_method(ours, engine, topology, form):
    """Of no elements, of one and of many; the fourth call is on the fast path, where there is one."""
    graph = TOPOLOGIES[topology](ours)
    with Checks() as checks, graph.using(engine=engine):
        for name, n in product(NAMES, (0, 1, 700)):
            call = prepare(graph, name, n)
            with graph.trace() as records:
                call.run(graph, form, 4)
            checks.call(call, name, n)
            ran = {(r.collective, r.algorithm, r.engine, r.form, r.name) for r in records}
            method = NEIGHBOR_METHODS[name].spelled(form)
            checks.equal(ran, {(name.lower(), "direct", engine, form, method)})
    graph.Free()


@parametrize("topology", TOPOLOGIES)
def test_equals_the_builtin(ours, topology):
    """Forced to native too, in each form in which this MPI has blocks in their right places."""
    graph = TOPOLOGIES[topology](ours)
    with Checks() as checks:
        for name, form in product(NAMES, ("blocking", "nonblocking")):
            if not builtin_is_right(graph, form):
                continue
            direct, native = prepare(graph, name, 3), prepare(graph, name, 3)
            direct.run(graph, form)
            with graph.using(**{name.lower(): "native"}), graph.trace() as records:
                native.run(graph, form)
            checks.call(direct, name, form)
            checks.call(native, name, form, "native")
            checks.equal({record.algorithm for record in records}, {"native"})
    graph.Free()


@parametrize("topology", TOPOLOGIES)
def test_the_graph_is_what_mpi_says(ours, topology):
    """The neighbours of every rank, as MPI's inquiries name them."""
    graph = TOPOLOGIES[topology](ours)
    ends = graph_of(graph).ends(graph.rank)
    sources, destinations = (
        [ABSENT if other == MPI.PROC_NULL else other for other in some] for some in (graph.inedges, graph.outedges)
    )
    assert [ABSENT if edge is None else edge[0] for edge in ends.receives] == sources
    assert [ABSENT if edge is None else edge[1] for edge in ends.sends] == destinations
    graph.Free()


def test_in_chunks(ours, engine):
    """Chunks smaller than blocks, of which repeated neighbours have several on one pair of ranks."""
    graph = ours.Create_dist_graph_adjacent(*lists(ours.rank, ours.size))
    with Checks() as checks, graph.using(engine=engine, chunk_bytes=64):
        for name in NAMES:
            call = prepare(graph, name, 50)
            call.run(graph)
            checks.call(call, name)


def test_many_at_once(ours):
    """Requests in flight side by side, completed in another order."""
    graph = ours.Create_cart([ours.size], [True])
    calls = [(name, prepare(graph, name, n)) for name in NAMES for n in (1, 300)]
    requests = [getattr(graph, NEIGHBOR_METHODS[name].spelled("nonblocking"))(*c.arguments) for name, c in calls]
    MPI.Request.Waitall(requests[::-1])
    with Checks() as checks:
        for name, call in calls:
            checks.call(call, name)


def test_elements_with_holes(ours):
    """Every second element of both arrays; what lies between, and at the border of the grid, stays."""
    graph = ours.Create_cart([ours.size], [False])
    every_second = MPI.DOUBLE.Create_resized(0, 16).Commit()
    before, after = graph.Shift(0, 1)
    for _ in range(4):
        send, recv = np.arange(8.0) + 100 * graph.rank, np.full(8, -1.0)
        graph.Neighbor_alltoall([send, 2, every_second], [recv, 2, every_second])
        want = np.full(8, -1.0)
        if before != MPI.PROC_NULL:
            want[[0, 2]] = 100 * before + np.array([4.0, 6.0])
        if after != MPI.PROC_NULL:
            want[[4, 6]] = 100 * after + np.array([0.0, 2.0])
        assert recv.tolist() == want.tolist()
    every_second.Free()


def test_dup_and_sub_have_neighbours(ours):
    """A Dup of a grid, and a row of it."""
    graph = ours.Create_cart([ours.size, 1], [True, True])
    for other in (graph.Dup(), graph.Sub([True, False])):
        call = prepare(other, "Neighbor_alltoall", 2)
        call.run(other)
        assert not call.difference
        other.Free()


# -- what is refused


def test_needs_a_topology(ours):
    """A communicator without a topology has no neighbourhood collectives to explain."""
    with pytest.raises(CommError, match="has no topology"):
        ours.explain("neighbor_alltoall")


def test_neighbours_out_of_range(ours):
    """Every rank names one that is not in the communicator."""
    p = ours.size
    with pytest.raises(RankError, match=f"sources have rank {p}; the communicator has ranks 0 to {p - 1}"):
        ours.Create_dist_graph_adjacent([p], [0])
    with pytest.raises(RankError, match="destinations have rank"):
        ours.Create_dist_graph([ours.rank], [1], [p + 3])
    with pytest.raises(RankError, match="edges have rank"):
        ours.Create_graph([1] * p, [p])


def test_a_graph_must_name_edges_at_both_ends(ours):
    """A Graphcomm whose rank 0 has a neighbour that does not have it."""
    if ours.size < 2:
        return
    graph = ours.Create_graph([1] * ours.size, [1])
    with pytest.raises(ArgumentError, match="rank 1 is a neighbour of rank 0 1 times"):
        graph.Neighbor_allgather(np.zeros(1), np.zeros(1))
    graph.Free()


@parametrize("method", ["Neighbor_alltoall", "Ineighbor_alltoall", "Neighbor_alltoall_init"])
def test_wrong_buffers(ours, method):
    """On every rank, before any message."""
    graph = ours.Create_cart([ours.size], [True])
    call, x = getattr(graph, method), np.zeros(4)
    with pytest.raises(InPlaceError, match="no in-place form"):
        call(MPI.IN_PLACE, x)
    with pytest.raises(BufferTooSmallError):
        call(np.zeros(4), [x, 3, MPI.DOUBLE])
    with pytest.raises(OverlapError):
        call(x, x)
    call = prepare(graph, "Neighbor_alltoall", 2)
    call.run(graph)
    assert not call.difference


def test_blocks_outside_of_the_buffer(ours):
    """The error names the neighbour by its place."""
    graph = ours.Create_cart([ours.size], [True])
    with pytest.raises(BufferTooSmallError, match="the block of neighbour 1, 3 of"):
        graph.Neighbor_alltoallv([np.zeros(6), [3, 3]], [np.zeros(5), [3, 3]])


def test_a_self_loop_of_two_lengths(ours):
    """Refuse a self-loop whose send and receive differ in length."""
    graph = ours.Create_dist_graph_adjacent([ours.rank], [ours.rank])
    with pytest.raises(CountMismatch, match="is its own neighbour: it sends 8 bytes"):
        graph.Neighbor_alltoallv([np.zeros(1), [1]], [np.zeros(2), [2]])


def test_check_mode_compares_neighbours(comm, monkeypatch):
    """Counts that differ between two neighbours, and an edge that only its sender names, on every rank."""
    monkeypatch.setenv("MPICOLL_CHECK", "1")
    checked = mpicoll.Comm(comm)
    graph = checked.Create_cart([comm.size], [True])
    for name, algorithm in product(NAMES, ("direct", "native")):
        if algorithm == "native" and not builtin_is_right(graph, "nonblocking"):
            continue
        call = prepare(graph, name, 2)
        with graph.using(**{name.lower(): algorithm}):
            call.run(graph)
        assert not call.difference, (name, algorithm)
    if comm.size > 1:
        n = 1 + (comm.rank == 1)
        with pytest.raises(MismatchError, match="the bytes they send each other"):
            graph.Neighbor_allgather(np.zeros(n), np.zeros(2))
        near = [1] if comm.rank == 0 else []
        lopsided = checked.Create_dist_graph_adjacent([], near)
        with pytest.raises(MismatchError, match="the blocks they send each other"):
            lopsided.Neighbor_allgather(np.zeros(1), np.zeros(0))
