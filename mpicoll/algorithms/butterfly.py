"""The butterfly: halving that meets the nearest rank first, and so keeps operand order."""

from ..schedules.blocks import power_of_two_floor, powers_of_two
from ..schedules.combinators import fold, mirror, relabel, then
from ..schedules.ir import RecvReduce, Send, Steps, Strands
from ..schedules.registry import algorithm
from . import reduce_scatter


def mirrored(p: int) -> list[int]:
    """0..p-1, for a power of two, in the order of their bits read backwards.

    >>> mirrored(8)
    [0, 4, 2, 6, 1, 5, 3, 7]
    """
    order = [0]
    while len(order) < p:
        order = [2 * x for x in order] + [2 * x + 1 for x in order]
    return order


def halving(p: int, rank: int) -> Steps:
    """The power-of-two core: swap halves with the rank 1, 2, 4 … away, in mirrored order, so that block b ends at b."""
    mine = tuple(mirrored(p))
    for bit in powers_of_two(p):
        lower, upper = mine[: len(mine) // 2], mine[len(mine) // 2 :]
        mine, theirs = (upper, lower) if rank & bit else (lower, upper)
        yield Send(rank ^ bit, theirs), RecvReduce(rank ^ bit, mine, "left" if rank & bit else "right")


@algorithm("reduce_scatter", ordered=True)
def butterfly(p: int, rank: int) -> Strands:
    """Halve with the nearest rank first, blocks in mirrored order, so that any operator will do; extra ranks fold.

    Steps: lg(q) + 2 * (p > q)
    Bytes per rank: n / p * (p - 1 if p == q else p + q - 1 + sum(-(-(p - q) // 2**i) for i in range(1, lg(q) + 1)))
    Scratch: n * (1 + (p > q)) if p > 3 else n / p * (0, 0, 1, 5)[p]
    Cost: lg(q) α + n (q - 1)/q (β + γ), and 2 α + n (β + γ) where p is not a power of two
    Source: Träff, An improved algorithm for (non-commutative) reduce-scatter with an application, 2005

    >>> [op.blocks for step in butterfly(4, 0)[0] for op in step]
    [(1, 3), (0, 2), (2,), (0,)]
    """
    return reduce_scatter.folded(halving, p, rank)


def _there_and_back(p: int, rank: int) -> Strands:
    place = mirrored(p)
    there = relabel(halving(p, rank), lambda peer: peer, lambda block: (place[block],))
    return then(there, mirror(there))


@algorithm("allreduce", ordered=True, divides_at_owner=True, blocks=power_of_two_floor, name="butterfly")
def allreduce_butterfly(p: int, rank: int) -> Strands:
    """The butterfly's reduce-scatter, then the same steps reversed in time: the least bytes for any operator.

    Steps: 2 * lg(q) + 2 * (p > q)
    Bytes per rank: 2 * n * (q - 1) / q + n * (p > q)
    Scratch: n if p > q else n / 2 * (p > 1)
    Cost: 2 lg(q) α + 2 n (q - 1)/q β + n (q - 1)/q γ, and 2 α + 2 n β + n γ where p is not a power of two
    Source: Träff, An improved algorithm for (non-commutative) reduce-scatter with an application, 2005

    >>> [step[0].blocks for step in allreduce_butterfly(4, 1)[0]]
    [(0, 1), (3,), (3,), (0, 1)]
    """
    return fold(_there_and_back, p, rank, range(power_of_two_floor(p)))
