"""Reduce-scatter: the vectors of all ranks reduced, a block of the result at every rank."""

from ..schedules.blocks import consecutive, power_of_two_floor, powers_of_two
from ..schedules.combinators import Layer, Program, fold
from ..schedules.grids import over
from ..schedules.grouping import dealt, in_order, itself, leaders, members, uneven
from ..schedules.ir import RecvReduce, Send, Steps, Strands
from ..schedules.nested import ReduceScattering, Reducing, Scattering
from ..schedules.parameters import NODES, Grouping
from ..schedules.registry import algorithm, every


@algorithm("reduce_scatter", uniform=True)
def ring(p: int, rank: int) -> Steps:
    """Each block goes round the ring once, every rank reduces its share into it, and it ends at its owner.

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


@algorithm("reduce_scatter", uniform=True)
def pairwise(p: int, rank: int) -> Steps:
    """In step i send rank + i its block, and receive and reduce the own block from rank - i.

    Steps: p - 1
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * (p > 1)
    Cost: (p - 1) α + n (p - 1)/p (β + γ)
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [(op.peer, op.blocks) for step in pairwise(3, 0)[0] for op in step]
    [(1, (1,)), (2, (0,)), (2, (2,)), (1, (0,))]
    """
    for i in range(1, p):
        to = (rank + i) % p
        yield Send(to, (to,)), RecvReduce((rank - i) % p, (rank,), "left")


def folded(core: Program, p: int, rank: int) -> Strands:
    """Run a power-of-two reduce-scatter on any p: a rank and the one folded into it share one block of the core."""
    extra = p - power_of_two_floor(p)

    def blocks(virtual: int) -> tuple[int, ...]:
        return (2 * virtual, 2 * virtual + 1) if virtual < extra else (virtual + extra,)

    return fold(core, p, rank, range(p), blocks, keep=lambda low: (low,))


def halving(p: int, rank: int) -> Steps:
    """Yield the power-of-two core: swap halves with the rank half the range away, reduce, repeat in the own half."""
    half = p // 2
    first = 0
    while half:
        lower, upper = consecutive(first, first + half), consecutive(first + half, first + 2 * half)
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
    return folded(halving, p, rank)


def _doubling(p: int, rank: int) -> Steps:
    """The power-of-two core: runs of 1, 2, 4 … ranks swap sums of the peers' blocks and of all beyond both runs."""
    for bit in powers_of_two(p):
        peer, first = rank ^ bit, rank & -2 * bit
        onward = (*range(first), *range(first + 2 * bit, p))
        yield Send(peer, (peer, *onward)), RecvReduce(peer, (rank, *onward), "left" if rank & bit else "right")


@algorithm("reduce_scatter", ordered=True)
def recursive_doubling(p: int, rank: int) -> Strands:
    """Swap sums of the peer's block and all beyond both runs with the rank 1, 2, 4 … away; extra ranks fold first.

    Blocks go whole runs at a time, in rank order. The peer forwards only a part of them; the butterfly sends that part
    alone.

    Steps: lg(q) + 2 * (p > q)
    Bytes per rank: n / p * ((p + 1) * lg(q) - 2 * (q - 1)
        + (p - sum((p - q - 1) % 2**i for i in range(1, lg(q) + 1)) if p > q else 0))
    Scratch: n / p * ((0, 0, 1, 5, 6, 9)[p] if p < 6 else 3 * p - (7 if p == q else 5 if p == q + 1 else 4 - p % 2))
    Cost: lg(q) α + n (lg(q) - 2 (q - 1)/q + lg(q)/q) (β + γ), and 2 α + n (β + γ) where p is not a power of two
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005
    Excess: up to n where p is not a power of two, for which the source gives no formula: the extra ranks' vectors

    >>> [op.blocks for step in recursive_doubling(4, 0)[0] for op in step]
    [(1, 2, 3), (0, 2, 3), (2,), (0,)]
    """
    return folded(_doubling, p, rank)


@algorithm(
    "reduce_scatter",
    layered=True,
    ordered=lambda p, reduce, scatter: reduce.ordered(range(p)),
    grid=[over((2, 3, 5, 6, 8, 13), paired=True, reduce=every("reduce"), scatter=every("scatter"))],
)
def reduce_scatterv(p: int, *, reduce: Reducing = "binomial", scatter: Scattering = "binomial") -> list[Layer]:
    """Reduce to rank 0, then scatter from there, each by any registered algorithm.

    Steps: at most steps(reduce, p) + steps(scatter, p)
    Bytes per rank: at most moved(reduce, p, cut(reduce, p, p)) + moved(scatter, p)
    Scratch: at most n + scratch(reduce, p, cut(reduce, p, p)) + scratch(scatter, p)
    Cost: 2 lg(p) α + n (lg(p) + (p - 1)/p) β + lg(p) n γ with binomial trees
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [(step[0].peer, step[0].blocks) for step in reduce_scatterv(4, 1)[0]]
    [(0, (0, 1, 2, 3)), (0, (1,))]
    """
    return [reduce.evenly(range(p), p), scatter.layer(range(p), itself)]


@algorithm(
    "reduce_scatter",
    layered=True,
    ordered=in_order,
    grid=[
        over(range(1, 17), groups=(3, uneven, dealt)),
        over((31, 64), groups=(8, uneven)),
        over(
            (6, 7, 11),
            paired=True,
            inner=every("reduce", "hierarchical"),
            middle=every("reduce_scatter", "hierarchical"),
            scatter=every("scatter"),
            groups=(uneven, dealt),
        ),
    ],
)
def hierarchical(
    p: int,
    *,
    inner: Reducing = "binomial",
    middle: ReduceScattering = "ring",
    scatter: Scattering = "binomial",
    groups: Grouping = NODES,
) -> list[Layer]:
    """Reduce inside every node to its first rank, reduce-scatter nodes' parts among those, scatter inside every node.

    Steps: at most max(steps(inner, len(g)) + steps(scatter, len(g)) for g in groups) + steps(middle, len(groups))
    Bytes per rank: at most max(moved(inner, len(g), cut(inner, len(g), p)) + moved(scatter, len(g), n / p * len(g))
        for g in groups) + moved(middle, len(groups), n / p * largest(groups) * len(groups))
    Scratch: at most n + max(scratch(inner, len(g), cut(inner, len(g), p)) + scratch(scatter, len(g), n / p * len(g))
        for g in groups) + scratch(middle, len(groups), n / p * largest(groups) * len(groups))
    Cost: that of the parts; across nodes n (h - 1)/h β for h nodes of one size
    Source: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation \
performance, 2000

    >>> [(step[0].peer, step[0].blocks) for step in hierarchical(6, 3, groups=3)[0]]
    [(4, (0, 1, 2, 3, 4, 5)), (5, (0, 1, 2, 3, 4, 5)), (0, (0, 1, 2)), (5, (5,)), (4, (4,))]
    """
    inside = [inner.evenly(group, p) for group in groups]
    outside = [scatter.layer(group, members(group)) for group in groups]
    return [*inside, middle.layer(leaders(groups), groups.__getitem__), *outside]
