"""The topology of a communicator as the graph of its neighbourhood collectives. Every call here is local.

Of a grid and of a Graphcomm every rank knows all edges; of a Distgraphcomm it knows its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np
from mpi4py import MPI

from ..errors import ArgumentError, CommError, MismatchError, RankError, spans
from ..kernels.digest import digest
from ..schedules.graphs import ABSENT, Ends, Graph, cartesian, listed, numbered
from ..schedules.stencils import Stencil

LONG = 200  # characters of a rank's offsets in an error


def graph_of(comm: MPI.Comm) -> Graph:
    """Return the graph of a communicator. Raises CommError for one without a topology, ArgumentError.

    A Graphcomm in which a rank is the neighbour of one that is not its neighbour raises: neighbours of a Graphcomm
    send both ways, so a rank would wait for a message that is never sent.
    """
    kind, of = comm.Get_topology(), MPI.Intracomm(comm)
    if kind == MPI.CART:
        dims, periods, _ = MPI.Cartcomm(of).Get_topo()
        return cartesian(dims, list(map(bool, periods)))
    if kind == MPI.GRAPH:
        return _of_graphcomm(MPI.Graphcomm(of))
    if kind == MPI.DIST_GRAPH:
        sources, destinations, _ = MPI.Distgraphcomm(of).Get_dist_neighbors()
        return _of_lists(comm.rank, comm.size, sources, destinations)
    raise CommError("the communicator has no topology; make one with Create_cart or Create_dist_graph_adjacent")


def stencil_of(comm: MPI.Cartcomm, offsets: Sequence[Sequence[int]]) -> Stencil:
    """Return the stencil of a grid. Collective. Raises ArgumentError, MismatchError if the ranks' offsets differ."""
    dims, periods, _ = MPI.Cartcomm.Get_topo(comm)
    checked: tuple[tuple[int, ...], ...] = ()
    wrong: object = None
    try:
        checked = tuple(tuple(map(index, offset)) for offset in offsets)
        wrong = next((offset for offset in checked if len(offset) != len(dims)), None)
    except TypeError:
        wrong = offsets
    words = repr(checked) if wrong is None else "offsets that it refuses"
    own, digests = np.frombuffer(digest(words.encode(), 8), np.int64), np.empty(comm.size, np.int64)
    comm.Allgather(own, digests)
    values = MPI.Intracomm.allgather(comm, words) if (digests != own).any() else []
    if wrong is not None:
        raise ArgumentError(
            f"offsets have {wrong!r:.60}; each must be a sequence of {len(dims)} integers, one for every dimension"
        )
    if values:
        raise MismatchError("offsets", [value[:LONG] for value in values])
    return Stencil(dims, list(map(bool, periods)), checked)


def with_topology(own: MPI.Intracomm, comm: MPI.Comm) -> MPI.Intracomm:
    """Return a copy of a private communicator with the topology of the program's communicator of its ranks. Collective.

    MPI's own neighbourhood collectives can run on it.
    """
    kind, of = comm.Get_topology(), MPI.Intracomm(comm)
    if kind == MPI.CART:
        dims, periods, _ = MPI.Cartcomm(of).Get_topo()
        return MPI.Intracomm(MPI.Intracomm.Create_cart(own, dims, list(map(bool, periods))))
    if kind == MPI.GRAPH:
        return MPI.Intracomm(MPI.Intracomm.Create_graph(own, *MPI.Graphcomm(of).Get_topo()))
    if kind == MPI.DIST_GRAPH:
        sources, destinations, _ = MPI.Distgraphcomm(of).Get_dist_neighbors()
        return MPI.Intracomm(MPI.Intracomm.Create_dist_graph_adjacent(own, sources, destinations))
    return MPI.Intracomm(own.Dup())


def _of_graphcomm(comm: MPI.Graphcomm) -> Graph:
    index, edges = comm.Get_topo()
    lists = [edges[first:end] for first, end in zip([0, *index], index)]
    graph = listed(len(lists), "graph", lambda rank: (lists[rank], lists[rank]))
    for rank, near in enumerate(lists):
        for other in near:
            if near.count(other) != lists[other].count(rank):
                raise ArgumentError(
                    f"in this Graphcomm rank {other} is a neighbour of rank {rank} {near.count(other)} times, and rank "
                    f"{rank} one of rank {other} {lists[other].count(rank)} times; name each edge at both of its ranks"
                )
    return graph


def _of_lists(rank: int, p: int, sources: Sequence[int], destinations: Sequence[int]) -> Graph:
    """Return the graph of a Distgraphcomm, which has the edges of this rank only."""
    near = [[ABSENT if other == MPI.PROC_NULL else other for other in ranks] for ranks in (sources, destinations)]
    own = numbered(rank, *near)

    def ends(other: int) -> Ends:
        if other != rank:
            raise LookupError(f"rank {rank} does not know the neighbours of rank {other}")
        return own

    return Graph(p, "distributed graph", ends)


def check_neighbours(what: str, ranks: Sequence[int], p: int) -> None:
    """Raise RankError for neighbours that are not in a communicator of p ranks."""
    if wrong := sorted({int(rank) for rank in ranks if not 0 <= rank < p and rank != MPI.PROC_NULL}):
        raise RankError(
            f"{what} have rank{'s' * (len(wrong) > 1)} {spans(wrong)}; the communicator has ranks 0 to {p - 1}"
        )
