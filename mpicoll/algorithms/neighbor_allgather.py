"""Neighbor_allgather: the block of every rank to each of its neighbours in a graph."""

from collections import defaultdict
from functools import partial

from ..schedules.graphs import Edge, line, mixed, several, torus
from ..schedules.grids import over
from ..schedules.ir import VALUE, Copy, Loc, Recv, Steps
from ..schedules.parameters import TOPOLOGY, Neighbourhood, StencilNeighbourhood
from ..schedules.registry import algorithm
from ..schedules.stencils import Stencil, bounded_moore, far, moore
from .neighbor_alltoall import SAMPLE, along_dimensions, along_edges


@algorithm("neighbor_allgather", direct=True, grid=[over(SAMPLE, graph=(line, mixed, torus, several))])
def direct(p: int, rank: int, *, graph: Neighbourhood = TOPOLOGY) -> Steps:
    """Send the own block to each neighbour and receive a block from each, all at once.

    Steps: min(1, degree(graph))
    Bytes per rank: n * degree(graph)
    Scratch: 0
    Cost: degree(graph) (α + n β)
    Source: MPI Forum, MPI: a message-passing interface standard, version 4.1, 2023

    >>> from mpicoll.schedules.graphs import line
    >>> [(type(op).__name__, op.peer) for step in direct(3, 1, graph=line(3))[0] for op in step]
    [('Recv', 0), ('Recv', 2), ('Send', 0), ('Send', 2)]
    """
    return along_edges(graph, rank)


@algorithm("neighbor_allgather", grid=[over(SAMPLE, graph=(moore, bounded_moore, far))])
def combining(p: int, rank: int, *, graph: StencilNeighbourhood = TOPOLOGY) -> Steps:
    """Send blocks along one dimension of the grid after the other, one copy for all neighbours in that direction.

    A block goes along each edge of a tree once. A rank that receives it copies it to its own place, and sends it on.

    Steps: at most dimensions(graph)
    Bytes per rank: at most n * branches(graph)
    Scratch: at most 2 * n * branches(graph)
    Cost: dimensions(graph) α + n branches(graph) β
    Source: Träff, Hunold, Cartesian collective communication, 2019

    >>> from mpicoll.schedules.stencils import moore
    >>> for step in combining(9, 4, graph=moore(9))[0]:
    ...     print([(op.peer, len(op.blocks)) for op in step if type(op).__name__ == "Send"])
    [(1, 1), (7, 1)]
    [(3, 3), (5, 3)]
    """
    ends = defaultdict[int, list[Edge]](list)
    for edge in graph.entering(rank):
        ends[edge[0]].append(edge)
    for step in along_dimensions(graph, rank, partial(first_hop, graph)):
        received = [block for op in step if isinstance(op, Recv) for block in op.blocks]
        copies = [(edge, block) for block in received for edge in ends[block[0]] if edge != block]  # type: ignore[index]
        yield *step, *(Copy(Loc(VALUE, edge), Loc(VALUE, block)) for edge, block in copies)


def first_hop(stencil: Stencil, edge: Edge, receiver: int) -> Edge:
    """Return the block that travels for all blocks of the edge's sender on the way to a receiver.

    It is the block for the first rank on the way if that rank is a neighbour, which then receives it in place.
    """
    hop, own = stencil.towards(edge[0], receiver), stencil.leaving(edge[0])
    return next((block for block in own if block[1] == hop), own[0])
