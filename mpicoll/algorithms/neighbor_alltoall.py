"""Neighbor_alltoall: a block from every rank to each of its neighbours in a graph."""

from collections import defaultdict
from collections.abc import Callable, Iterator

from ..schedules.graphs import Edge, Graph, line, mixed, several, torus
from ..schedules.grids import over
from ..schedules.ir import Recv, Send, Step, Steps
from ..schedules.parameters import TOPOLOGY, Neighbourhood, StencilNeighbourhood
from ..schedules.registry import algorithm
from ..schedules.stencils import Stencil, bounded_moore, far, moore

SAMPLE = (*range(1, 31), 32, 36, 48, 60, 64)  # ranks that graphs are proved on: all few, and some that make large grids


@algorithm("neighbor_alltoall", direct=True, grid=[over(SAMPLE, graph=(line, mixed, torus, several))])
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


@algorithm("neighbor_alltoall", grid=[over(SAMPLE, graph=(moore, bounded_moore, far))])
def combining(p: int, rank: int, *, graph: StencilNeighbourhood = TOPOLOGY) -> Steps:
    """Send blocks along one dimension of the grid after the other, all that go the same way in one message.

    Steps: at most dimensions(graph)
    Bytes per rank: at most n * hops(graph)
    Scratch: at most 3 * n * hops(graph) / 2
    Cost: dimensions(graph) α + n hops(graph) β
    Source: Träff, Hunold, Cartesian collective communication, 2019

    >>> from mpicoll.schedules.stencils import moore
    >>> for step in combining(9, 4, graph=moore(9))[0]:
    ...     print([(op.peer, len(op.blocks)) for op in step if isinstance(op, Send)])
    [(1, 3), (7, 3)]
    [(3, 3), (5, 3)]
    """
    return along_dimensions(graph, rank, lambda edge, receiver: edge)


def along_dimensions(stencil: Stencil, rank: int, sent_as: Callable[[Edge, int], Edge]) -> Iterator[Step]:
    """Yield a step for each dimension of the grid, which moves every block by its offset in that dimension.

    sent_as(block, receiver) is the block that goes to a receiver in the place of another one.
    """
    for d in range(len(stencil.dims)):
        sends, receives = defaultdict[int, dict[Edge, None]](dict), defaultdict[int, dict[Edge, None]](dict)
        for blocks, dimensions in ((sends, d), (receives, d + 1)):
            for i, edge in stencil.passing(rank, dimensions):
                if shift := stencil.shift(d, stencil.offsets[i][d]):
                    receiver = rank if blocks is receives else stencil.along(rank, d, shift)
                    blocks[shift][sent_as(edge, receiver)] = None
        step: Step = (
            *(Recv(stencil.along(rank, d, -shift), tuple(blocks)) for shift, blocks in receives.items()),
            *(Send(stencil.along(rank, d, shift), tuple(blocks)) for shift, blocks in sends.items()),
        )
        if step:
            yield step
