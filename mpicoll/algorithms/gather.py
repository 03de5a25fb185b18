"""Gather: one block of every rank, at the root."""

from ..blocks import powers_of_two
from ..ir import Recv, Send, Steps
from ..schedule import algorithm


@algorithm("gather")
def linear(p: int, rank: int) -> Steps:
    """Everybody sends to the root, which takes all at once.

    Steps: p > 1
    Bytes per rank: n * (p - 1) / p
    Scratch: 0
    Cost: (p - 1) α + n (p - 1)/p β
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> linear(3, 1)[0]
    ((Send(peer=0, blocks=(1,), buffer='value'),),)
    """
    if rank > 0:
        yield Send(0, (rank,))
    elif p > 1:
        yield tuple(Recv(peer, (peer,)) for peer in range(1, p))


@algorithm("gather")
def binomial(p: int, rank: int) -> Steps:
    """Ranks collect the blocks of their binomial subtree, nearest first, and pass them on in one message.

    Steps: lg(p)
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * max([0] + [2 * m - 1 for i in range(lg(p)) if (m := min(2**i, p - 2**i)) > 1])
    Cost: lg(p) α + n (p - 1)/p β
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [op.blocks for step in binomial(5, 0)[0] for op in step]
    [(1,), (2, 3), (4,)]
    """
    for bit in powers_of_two(p):
        if rank & bit:
            yield Send(rank - bit, tuple(range(rank, min(rank + bit, p))))
            return
        if rank + bit < p:
            yield Recv(rank + bit, tuple(range(rank + bit, min(rank + 2 * bit, p))))
