"""Neighbor_alltoall: a block from every rank to each of its neighbours in a graph."""

from ..schedules.graphs import Graph, line, mixed, several, torus
from ..schedules.grids import over
from ..schedules.ir import Recv, Send, Step, Steps
from ..schedules.parameters import TOPOLOGY, Neighbourhood
from ..schedules.registry import algorithm


@algorithm("neighbor_alltoall", direct=True, grid=[over(graph=(line, mixed, torus, several))])
def direct(p: int, rank: int, *, graph: Neighbourhood = TOPOLOGY) -> Steps:
    """Send each neighbour its block and receive a block from each, all at once.

    Steps: min(1, degree(graph))
    Bytes per rank: n * degree(graph)
    Scratch: 0
    Cost: degree(graph) (α + n β)
    Source: MPI Forum, MPI: a message-passing interface standard, version 4.1, 2023

    >>> from mpicoll.schedules.graphs import cartesian
    >>> [(type(op).__name__, op.peer, op.blocks) for step in direct(2, 0, graph=cartesian((2,), (True,)))[0]
    ...     for op in step if isinstance(op, Recv)]
    [('Recv', 1, ((1, 0, 0),)), ('Recv', 1, ((1, 0, 1),))]
    """
    return along_edges(graph, rank)


def along_edges(graph: Graph, rank: int) -> Steps:
    """Return the one step in which a rank sends and receives along all its edges; none for a rank without any."""
    receives = sorted(graph.entering(rank), key=lambda edge: edge[2])  # messages of one sender match in this order
    step: Step = (
        *(Recv(edge[0], (edge,)) for edge in receives if edge[0] != rank),
        *(Send(edge[1], (edge,)) for edge in graph.leaving(rank) if edge[1] != rank),
    )
    return [step] if step else []
