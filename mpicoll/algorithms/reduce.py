"""Reduce: everybody's vectors combined, at the root."""

from ..blocks import powers_of_two
from ..ir import RecvReduce, Send, Steps
from ..schedule import algorithm


@algorithm("reduce", ordered=True)
def binomial(p: int, rank: int) -> Steps:
    """Ranks fold their neighbours' halves of a binomial tree, the nearest first.

    Steps: lg(p)
    Bytes per rank: n * lg(p)
    Scratch: n * ((p > 1) + (p > 6))
    Cost: lg(p) (α + n β + n γ)
    Source: Rabenseifner, Optimization of collective reduction operations, 2004

    >>> [op.peer for step in binomial(8, 0)[0] for op in step]
    [1, 2, 4]
    """
    for bit in powers_of_two(p):
        if rank & bit:
            yield Send(rank - bit, (0,))
            return
        if rank + bit < p:
            yield RecvReduce(rank + bit, (0,), "right")


@algorithm("reduce", ordered=True)
def chain(p: int, rank: int) -> Steps:
    """The vector comes down the line of ranks, each folding in its own; pipelined by chunks.

    Steps: p - 1
    Bytes per rank: n * (p > 1)
    Scratch: n * (p > 1)
    Cost: (p - 2 + chunks) (α + n/chunks (β + γ))
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [op.peer for step in chain(4, 2)[0] for op in step]
    [3, 1]
    """
    if rank < p - 1:
        yield RecvReduce(rank + 1, (0,), "right")
    if rank > 0:
        yield Send(rank - 1, (0,))
