"""Bcast: the root's vector, everywhere."""

from ..combine import mirror
from ..ir import Strands
from ..schedule import algorithm
from . import reduce


@algorithm("bcast")
def binomial(p: int, rank: int) -> Strands:
    """The number of ranks that have the vector doubles each step: reduce's binomial tree reversed in time.

    Steps: lg(p)
    Bytes per rank: n * lg(p)
    Scratch: 0
    Cost: lg(p) (α + n β)
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [op.peer for step in binomial(8, 0)[0] for op in step]
    [4, 2, 1]
    """
    return mirror(reduce.binomial(p, rank))


@algorithm("bcast")
def chain(p: int, rank: int) -> Strands:
    """The vector goes down the line of ranks, pipelined by chunks: the wire limit for long vectors.

    Steps: p - 1
    Bytes per rank: n * (p > 1)
    Scratch: 0
    Cost: (p - 2 + chunks) (α + n/chunks β)
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [op.peer for step in chain(4, 2)[0] for op in step]
    [1, 3]
    """
    return mirror(reduce.chain(p, rank))
