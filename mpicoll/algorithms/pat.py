"""Parallel aggregated trees: every rank is the root of a binomial tree, and messages carry blocks of a few of them."""

from collections.abc import Iterator

from ..schedules.combinators import mirror
from ..schedules.grids import over
from ..schedules.ir import RecvReduce, Send, Steps, Strands, strands
from ..schedules.parameters import Fanout
from ..schedules.registry import algorithm


def ways(p: int, most: int) -> Iterator[tuple[int, range]]:
    """Yield (distance to the receiver, distances to the roots) of each step of the reductions.

    The rank at distance x from a root sends its partial sum to the rank at distance x - (x & -x), so the tree of each
    root is binomial. Distances that differ in their highest bits alone share a message. The other bits are traversed
    depth first, so that few partial sums are in progress at a time.

    >>> [(distance, [*backs]) for distance, backs in ways(8, 2)]
    [(1, [3, 7]), (2, [2, 6]), (1, [1, 5]), (4, [4])]
    """
    bits = (p - 1).bit_length()
    apart = 1 << max(0, bits - most.bit_length() + 1)
    for low in range(min(apart, p) - 1, 0, -1):
        yield low & -low, range(low, p, apart)
    while apart < p:
        yield apart, range(apart, p, 2 * apart)
        apart *= 2


def _reduce_scatter(p: int, rank: int, most: int) -> Steps:
    for distance, backs in ways(p, most):
        sender = rank + distance
        yield (
            Send((rank - distance) % p, tuple((rank - back) % p for back in backs)),
            RecvReduce(sender % p, tuple((sender - back) % p for back in backs), "right"),
        )


GRID = [over(range(1, 33), most=(1, 2, 3, 64)), over((48, 63, 64), most=(4,))]


@algorithm("reduce_scatter", name="pat", grid=GRID)
def reduce_scatter(p: int, rank: int, *, most: Fanout = 8) -> Strands:
    """Sums go up binomial trees, one for each block, near ranks first, with `most` blocks in a message.

    Steps: min(p - 1, few + 2**(lg(p) - few) - 1) if (few := min(lg(most + 1) - 1, lg(p))) else p - 1
    Bytes per rank: n * (p - 1) / p
    Scratch: at most n / p * min(p, most * (lg(p) + 1))
    Cost: (lg(most) + p/most) α + n (p - 1)/p (β + γ)
    Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025

    >>> [(op.peer, op.blocks) for step in reduce_scatter(8, 0, most=2)[0] for op in step if isinstance(op, Send)]
    [(7, (5, 1)), (6, (6, 2)), (7, (7, 3)), (4, (4,))]
    """
    return strands(_reduce_scatter(p, rank, most))


@algorithm("allgather", name="pat", grid=GRID)
def allgather(p: int, rank: int, *, most: Fanout = 8) -> Strands:
    """Blocks go down binomial trees, far ranks first, with `most` blocks in a message: reduce_scatter's reversed.

    Steps: min(p - 1, few + 2**(lg(p) - few) - 1) if (few := min(lg(most + 1) - 1, lg(p))) else p - 1
    Bytes per rank: n * (p - 1) / p
    Scratch: at most n / p * min(p, most) * 2
    Cost: (lg(most) + p/most) α + n (p - 1)/p β
    Source: Jeaugey, PAT: a new algorithm for all-gather and reduce-scatter operations at scale, 2025

    >>> [(op.peer, op.blocks) for step in allgather(8, 0, most=2)[0] for op in step if isinstance(op, Send)]
    [(4, (0,)), (1, (0, 4)), (2, (0, 4)), (1, (6, 2))]
    """
    return mirror(reduce_scatter(p, rank, most=most))
