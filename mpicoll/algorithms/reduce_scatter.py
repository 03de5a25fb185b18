"""Reduce-scatter: everybody's vectors combined, a block of the result at every rank."""

from typing import Any

from ..blocks import power_of_two_floor
from ..combine import fold
from ..ir import RecvReduce, Send, Steps, Strands
from ..schedule import algorithm


@algorithm("reduce_scatter")
def ring(p: int, rank: int) -> Steps:
    """Each block goes round the ring once, every rank folding in its share, and ends at its owner.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p
    Scratch: min(p - 1, 2) * n / p
    Cost: (p - 1) α + n (p - 1)/p (β + γ)
    Source: Patarasu, Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009

    >>> [op.blocks for step in ring(3, 0)[0] for op in step]
    [(2,), (1,), (1,), (0,)]
    """
    for s in range(1, p):
        yield Send((rank + 1) % p, ((rank - s) % p,)), RecvReduce((rank - 1) % p, ((rank - s - 1) % p,), "left")


def halving(p: int, rank: int) -> Steps:
    """The power-of-two core: swap halves with the rank half the range away, fold, go on in one's own half."""
    half = p // 2
    first = 0
    while half:
        lower, upper = tuple(range(first, first + half)), tuple(range(first + half, first + 2 * half))
        peer = rank ^ half
        mine, theirs = (lower, upper) if rank < peer else (upper, lower)
        yield Send(peer, theirs), RecvReduce(peer, mine, "right" if rank < peer else "left")
        first, half = mine[0], half // 2


@algorithm("reduce_scatter")
def recursive_halving(p: int, rank: int) -> Strands:
    """Swap halves of what is left with a rank half the range away; extra ranks fold into a neighbour first.

    Steps: lg(q) + 2 * (p > q)
    Bytes per rank: n / p * (p - 1 if p == q else p + q - 1 + sum(min(2**i, p - q) for i in range(lg(q))))
    Scratch: n / p * (0 if p == 1 else 1 if p == 2 else p * 3 // 4 if p == q
        else p + (q // 2 + min(q // 2, p - q)) * (q > 1))
    Cost: lg(q) α + n (q - 1)/q (β + γ), and 2 α + n (β + γ) where p is not a power of two
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [op.blocks for step in recursive_halving(4, 0)[0] for op in step]
    [(2, 3), (0, 1), (1,), (0,)]
    """
    extra = p - power_of_two_floor(p)

    def blocks(virtual: Any) -> tuple[int, ...]:
        return (2 * virtual, 2 * virtual + 1) if virtual < extra else (virtual + extra,)

    return fold(halving, p, rank, range(p), blocks, keep=lambda low: (low,))
