"""Read the topology of a communicator as the graph of its neighbourhood collectives.

A rank knows all edges of a Cartcomm and of a Graphcomm, and its own edges of a Distgraphcomm.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import numpy as np
from mpi4py import MPI

from ..errors import ArgumentError, CommError, MismatchError, PreconditionError, RankError, spans
from ..kernels.digest import digest
from ..schedules.graphs import ABSENT, Ends, Graph, cartesian, listed, numbered
from ..schedules.stencils import Stencil

MAX_CHARACTERS = 200  # of a rank's offsets in an error


def graph_of(comm: MPI.Comm) -> Graph:
    """Return the graph of a communicator. Local. Raises CommError for a communicator without a topology.

    Raises ArgumentError for a Graphcomm in which only one of two ranks names the other as a neighbour: messages go
    both ways along an edge, so a rank would wait for a message that is never sent.
    """
    topology, plain = comm.Get_topology(), MPI.Intracomm(comm)
    if topology == MPI.CART:
        dims, periods, _ = MPI.Cartcomm(plain).Get_topo()
        return cartesian(dims, list(map(bool, periods)))
    if topology == MPI.GRAPH:
        return _graph_of_graphcomm(MPI.Graphcomm(plain))
    if topology == MPI.DIST_GRAPH:
        sources, destinations, _ = MPI.Distgraphcomm(plain).Get_dist_neighbors()
        return _graph_of_own_edges(comm.rank, comm.size, sources, destinations)
    raise CommError("the communicator has no topology; make one with Create_cart or Create_dist_graph_adjacent")


def stencil_of(comm: MPI.Cartcomm, offsets: Sequence[Sequence[int]]) -> Stencil:
    """Return the stencil with these offsets on a grid. Collective.

    Raises ArgumentError for wrong offsets, MismatchError if the ranks' offsets differ.
    """
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
        raise MismatchError("offsets", [value[:MAX_CHARACTERS] for value in values])
    return Stencil(dims, list(map(bool, periods)), checked)


def dup_with_topology(private: MPI.Intracomm, comm: MPI.Comm) -> MPI.Intracomm:
    """Duplicate a private communicator, with the topology of the program's communicator. Collective.

    MPI's own neighbourhood collectives can run on the duplicate.
    """
    topology, plain = comm.Get_topology(), MPI.Intracomm(comm)
    if topology == MPI.CART:
        dims, periods, _ = MPI.Cartcomm(plain).Get_topo()
        return MPI.Intracomm(MPI.Intracomm.Create_cart(private, dims, list(map(bool, periods))))
    if topology == MPI.GRAPH:
        return MPI.Intracomm(MPI.Intracomm.Create_graph(private, *MPI.Graphcomm(plain).Get_topo()))
    if topology == MPI.DIST_GRAPH:
        sources, destinations, _ = MPI.Distgraphcomm(plain).Get_dist_neighbors()
        return MPI.Intracomm(MPI.Intracomm.Create_dist_graph_adjacent(private, sources, destinations))
    return MPI.Intracomm(private.Dup())


def _graph_of_graphcomm(comm: MPI.Graphcomm) -> Graph:
    index, edges = comm.Get_topo()
    lists = [edges[first:end] for first, end in zip([0, *index], index)]
    graph = listed(len(lists), "graph", lambda rank: (lists[rank], lists[rank]))
    for rank, neighbours in enumerate(lists):
        for other in neighbours:
            if neighbours.count(other) != lists[other].count(rank):
                raise ArgumentError(
                    f"in this Graphcomm rank {other} is a neighbour of rank {rank} {neighbours.count(other)} times, "
                    f"and rank {rank} one of rank {other} {lists[other].count(rank)} times; list an edge at both ranks"
                )
    return graph


def _graph_of_own_edges(rank: int, p: int, sources: Sequence[int], destinations: Sequence[int]) -> Graph:
    """Return the graph of a Distgraphcomm, of which this rank knows its own edges only."""
    neighbours = [[ABSENT if other == MPI.PROC_NULL else other for other in ranks] for ranks in (sources, destinations)]
    own = numbered(rank, *neighbours)

    def ends(other: int) -> Ends:
        if other != rank:
            raise PreconditionError(
                f"rank {rank} of a distributed graph does not know the neighbours of rank {other}, which an algorithm "
                "that forwards blocks needs; use direct, or Create_stencil"
            )
        return own

    return Graph(p, "distributed graph", ends)


def check_neighbour_ranks(argument: str, ranks: Sequence[int] | None, p: int) -> None:
    """Raise RankError if an argument of ranks has any that are not in a communicator of p ranks; None has none."""
    ranks = () if ranks is None else ranks
    if wrong := sorted({int(rank) for rank in ranks if not 0 <= rank < p and rank != MPI.PROC_NULL}):
        raise RankError(
            f"{argument} have rank{'s' * (len(wrong) > 1)} {spans(wrong)}; the communicator has ranks 0 to {p - 1}"
        )
