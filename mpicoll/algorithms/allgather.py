"""Allgather: one block of every rank, everywhere."""

from ..blocks import powers_of_two
from ..combine import mirror
from ..ir import Recv, Send, Steps, Strands
from ..schedule import algorithm
from . import reduce_scatter


@algorithm("allgather")
def ring(p: int, rank: int) -> Strands:
    """Each block goes round the ring once: reduce_scatter's ring reversed in time.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p
    Scratch: 0
    Cost: (p - 1) α + n (p - 1)/p β
    Source: Patarasu, Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009

    >>> [op.blocks for step in ring(3, 0)[0] for op in step if isinstance(op, Send)]
    [(0,), (1,)]
    """
    return mirror(reduce_scatter.ring(p, rank))


@algorithm("allgather")
def bruck(p: int, rank: int) -> Steps:
    """In round k get from the rank 2^k further on all it has, so that what one has doubles each round, for any p.

    Steps: lg(p)
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * max([0] + [2 * m for i in range(lg(p)) if (m := min(2**i, p - 2**i)) > 1])
    Cost: lg(p) α + n (p - 1)/p β
    Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997

    >>> [op.blocks for step in bruck(5, 3)[0] for op in step if isinstance(op, Recv)]
    [(4,), (0, 1), (2,)]
    """
    for have in powers_of_two(p):
        count = min(have, p - have)
        yield (
            Send((rank - have) % p, tuple((rank + i) % p for i in range(count))),
            Recv((rank + have) % p, tuple((rank + have + i) % p for i in range(count))),
        )
