"""Neighbor_allgather: the block of every rank to each of its neighbours in a graph."""

from ..schedules.graphs import line, mixed, several, torus
from ..schedules.grids import over
from ..schedules.ir import Steps
from ..schedules.parameters import TOPOLOGY, Neighbourhood
from ..schedules.registry import algorithm
from .neighbor_alltoall import along_edges


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
