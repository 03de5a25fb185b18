"""Neighbor_allgather: the block of every rank to each of its neighbours in a graph."""

from ..schedules.graphs import line, mixed, several, torus
from ..schedules.grids import over
from ..schedules.ir import Steps
from ..schedules.parameters import TOPOLOGY, Neighbourhood, StencilNeighbourhood
from ..schedules.registry import algorithm
from ..schedules.stencils import bounded_moore, far, moore
from .neighbor_alltoall import along_dimensions, along_edges


@algorithm("neighbor_allgather", direct=True, grid=[over(graph=(line, mixed, torus, several))])
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


@algorithm("neighbor_allgather", grid=[over(graph=(moore, bounded_moore, far))])
def combining(p: int, rank: int, *, graph: StencilNeighbourhood = TOPOLOGY) -> Steps:
    """Send blocks along one dimension of the grid after the other, all that go the same way in one message.

    Steps: at most dimensions(graph)
    Bytes per rank: at most n * hops(graph)
    Scratch: at most 3 * n * hops(graph) / 2
    Cost: dimensions(graph) α + n hops(graph) β
    Source: Träff, Hunold, Cartesian collective communication, 2019
    Excess: a copy for each neighbour, where the source sends one to a rank that copies it for those behind

    >>> from mpicoll.schedules.stencils import moore
    >>> [[(op.peer, len(op.blocks)) for op in step] for step in combining(9, 4, graph=moore(9))[0]]
    [[(7, 3), (1, 3), (1, 3), (7, 3)], [(5, 3), (3, 3), (3, 3), (5, 3)]]
    """
    return along_dimensions(graph, rank)
