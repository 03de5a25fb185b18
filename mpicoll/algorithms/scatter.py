"""Scatter: the root's blocks, one to every rank."""

from ..combine import mirror
from ..ir import Strands
from ..schedule import algorithm
from . import gather


@algorithm("scatter")
def linear(p: int, rank: int) -> Strands:
    """The root sends everybody's block, all at once.

    Steps: p > 1
    Bytes per rank: n * (p - 1) / p
    Scratch: 0
    Cost: (p - 1) α + n (p - 1)/p β
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> linear(3, 1)[0]
    ((Recv(peer=0, blocks=(1,), buffer='value'),),)
    """
    return mirror(gather.linear(p, rank))


@algorithm("scatter")
def binomial(p: int, rank: int) -> Strands:
    """The blocks of half the ranks go to the middle, and so on in each half: gather's tree reversed in time.

    Steps: lg(p)
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * max([0] + [m for i in range(lg(p)) if (m := min(2**i, p - 2**i)) > 1])
    Cost: lg(p) α + n (p - 1)/p β
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [op.blocks for step in binomial(5, 0)[0] for op in step]
    [(4,), (2, 3), (1,)]
    """
    return mirror(gather.binomial(p, rank))
