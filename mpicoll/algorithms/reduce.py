"""Reduce: the vectors of all ranks reduced, at the root."""

from collections.abc import Sequence
from math import lcm

from ..schedules.blocks import offsets, power_of_two_floor, sizes
from ..schedules.collectives import Block
from ..schedules.combinators import Layer, Program, embed, parallel, then
from ..schedules.grids import over
from ..schedules.grouping import Partition, dealt, in_order, leaders, uneven
from ..schedules.ir import RecvReduce, Send, Steps, Strands
from ..schedules.nested import Reducing
from ..schedules.parameters import NODES, Fanout, Grouping, Radix
from ..schedules.registry import Chosen, algorithm, every
from . import gather, reduce_scatter


@algorithm("reduce", ordered=True)
def linear(p: int, rank: int) -> Steps:
    """Every rank sends to the root, which receives all at once and reduces in rank order.

    Steps: p > 1
    Bytes per rank: n * (p - 1)
    Scratch: n * (p - 1)
    Cost: (p - 1) (α + n β + n γ)
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> linear(3, 1)[0]
    ((Send(peer=0, blocks=(0,), buffer='value'),),)
    """
    if rank > 0:
        yield Send(0, (0,))
    elif p > 1:
        yield tuple(RecvReduce(peer, (0,), "right") for peer in range(1, p))


@algorithm("reduce", ordered=True)
def binomial(p: int, rank: int) -> Strands:
    """A rank reduces the subtrees of a binomial tree, the nearest first, and sends the sum to its parent.

    Steps: lg(p)
    Bytes per rank: n * lg(p)
    Scratch: n * ((p > 1) + (p > 6))
    Cost: lg(p) (α + n β + n γ)
    Source: Rabenseifner, Optimization of collective reduction operations, 2004

    >>> [op.peer for step in binomial(8, 0)[0] for op in step]
    [1, 2, 4]
    """
    return knomial(p, rank, k=2)


@algorithm("reduce", ordered=True, grid=[over(range(1, 17), k=(2, 3, 5, 8)), over((31, 64), k=(3, 4, 7))])
def knomial(p: int, rank: int, *, k: Radix = 4) -> Steps:
    """A rank reduces the vectors of k - 1 others at once, 1, k, k² … apart: a binomial tree of radix k.

    Steps: lg(p, k)
    Bytes per rank: n * sum(min(k - 1, (p - 1) // k**i) for i in range(lg(p, k)))
    Scratch: n * (min(k, p) - 1 + (p > k * (2 * k - 1)))
    Cost: log_k(p) (α + (k - 1) (n β + n γ))
    Source: Wilkins et al., Generalized collective algorithms for the exascale era, 2023

    >>> [[op.peer for op in step] for step in knomial(9, 0, k=3)[0]]
    [[1, 2], [3, 6]]
    """
    stride = 1
    while stride < p:
        if digit := rank // stride % k:
            yield Send(rank - digit * stride, (0,))
            return
        if below := range(rank + stride, min(rank + k * stride, p), stride):
            yield tuple(RecvReduce(peer, (0,), "right") for peer in below)
        stride *= k


@algorithm("reduce", ordered=True, grid=[over(range(1, 17), k=(2, 3, 5)), over((31, 64), k=(2, 7))])
def chain(p: int, rank: int, *, k: Fanout = 1) -> Steps:
    """The vector passes down k lines of ranks to the root, each reduces its own into it; pipelined by chunks.

    Steps: -(-(p - 1) // k)
    Bytes per rank: n * min(k, p - 1)
    Scratch: n * min(k, p - 1)
    Cost: ((p - 1)/k - 1 + chunks) (α + k n/chunks (β + γ))
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [op.peer for step in chain(4, 2)[0] for op in step], [op.peer for op in chain(7, 0, k=2)[0][0]]
    ([3, 1], [1, 4])
    """
    heads = [1 + at for at in offsets(sizes(p - 1, k)) if 1 + at < p]
    above = [rank + 1] if rank + 1 < p and rank + 1 not in heads else []
    if sources := above if rank else heads:
        yield tuple(RecvReduce(peer, (0,), "right") for peer in sources)
    if rank > 0:
        yield Send(0 if rank in heads else rank - 1, (0,))


@algorithm("reduce")
def binary_tree(p: int, rank: int) -> Steps:
    """A rank reduces its two children's vectors in the complete binary tree and sends the sum up; pipelined by chunks.

    Steps: lg(q)
    Bytes per rank: n * min(p - 1, 2)
    Scratch: n * min(p - 1, 2)
    Cost: (lg(p) + chunks) (α + 2 n/chunks (β + γ))
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [[op.peer for op in step] for step in binary_tree(6, 1)[0]]
    [[3, 4], [0]]
    """
    if children := range(2 * rank + 1, min(2 * rank + 3, p)):
        yield tuple(RecvReduce(child, (0,)) for child in children)
    if rank > 0:
        yield Send((rank - 1) // 2, (0,))


@algorithm("reduce", ordered=True)
def in_order_binary(p: int, rank: int) -> Steps:
    """A binary tree of ranks 1..p-1 numbered in order, so that every subtree is a run of ranks; rank 0 on top.

    The more trailing zeros a rank has, the higher it is: left∘own∘right is rank order, whatever the operator.

    Steps: lg(p)
    Bytes per rank: n * ((p > 1) + (p > 3))
    Scratch: n * ((p > 1) + (p > 3))
    Cost: (lg(p) + chunks) (α + 2 n/chunks (β + γ))
    Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009

    >>> [[op.peer for op in step] for step in in_order_binary(8, 4)[0]]
    [[2, 6], [0]]
    """
    low = rank & -rank or p  # the lowest set bit: the subtree is rank - low + 1 .. rank + low - 1, up to p - 1
    left = [RecvReduce(rank - low // 2, (0,), "left")] if rank and low > 1 else []
    after = min(low, p - rank) - 1
    right = [RecvReduce(rank + power_of_two_floor(after), (0,), "right")] if after else []
    if left or right:
        yield *left, *right
    if rank > 0:
        above = rank - low | 2 * low
        yield Send(above if above < p else rank - low, (0,))


@algorithm("reduce", blocks=2, strand=lambda block: block % 2)
def double_tree(p: int, rank: int) -> Strands:
    """Half of the vector comes up each of two binary trees, in which no rank but the root has children twice.

    Rank 0 is on top of both: the tree of in_order_binary, and the same with ranks 1..p-1 mirrored or, where they are
    odd in number, shifted by one, so that every rank works on the whole vector's bytes both ways.

    Steps: lg(p)
    Bytes per rank: n * (p > 1)
    Scratch: n * (p > 1)
    Cost: (lg(p) + chunks) (2 α + n/chunks (β + γ))
    Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009

    >>> [[[op.peer for op in step] for step in strand] for strand in double_tree(7, 2)]
    [[[1, 3], [4]], [[1]]]
    """
    others = range(p - 1, 0, -1) if p % 2 else [*range(2, p), 1]
    tree = in_order_binary.body
    return parallel(tree(p, rank), embed(tree, [0, *others[: p - 1]], rank, lambda block: (1,)))


@algorithm("reduce", blocks=power_of_two_floor)
def rabenseifner(p: int, rank: int) -> Strands:
    """Reduce-scatter by recursive halving, then gather by the same tree; extra ranks fold into a neighbour first.

    Steps: 2 * lg(q) + (p > q)
    Bytes per rank: 2 * n * (q - 1) / q + n * (p > q)
    Scratch: n / 2 * ((p > 1) + (p > 2) + (p > q + 1))
    Cost: 2 lg(q) α + 2 n (q - 1)/q β + n (q - 1)/q γ, and α + n β + n γ where p is not a power of two
    Source: Rabenseifner, Optimization of collective reduction operations, 2004

    >>> [len(step[0].blocks) for step in rabenseifner(8, 0)[0]]
    [4, 2, 1, 1, 2, 4]
    """
    return folded(_halve_and_gather, p, rank, range(power_of_two_floor(p)))


def folded(core: Program, p: int, rank: int, blocks: Sequence[Block]) -> Strands:
    """Run a power-of-two reduce on any p: an extra rank hands its vector to the one before, and is done."""
    paired = 2 * (p - power_of_two_floor(p))
    if rank < paired and rank % 2:
        return then([Send(rank - 1, tuple(blocks))])
    first = [RecvReduce(rank + 1, tuple(blocks))] if rank < paired else []
    return then(first, embed(core, [*range(0, paired, 2), *range(paired, p)], rank))


def _halve_and_gather(p: int, rank: int) -> Strands:
    return then(reduce_scatter.halving(p, rank), gather.binomial(p, rank))


def common_blocks(p: int, inner: Chosen, middle: Chosen, groups: Partition) -> int:
    """Blocks that divide evenly into those of `middle` among the groups and of `inner` in each of them."""
    return lcm(middle.blocks(leaders(groups)), *map(inner.blocks, groups))


@algorithm(
    "reduce",
    layered=True,
    blocks=common_blocks,
    ordered=in_order,
    grid=[
        over(range(1, 17), groups=(3, uneven, dealt)),
        over((31, 64), groups=(8, uneven)),
        over(
            (6, 7, 11),
            paired=True,
            inner=every("reduce", "hierarchical"),
            middle=every("reduce", "hierarchical"),
            groups=(uneven,),
        ),
    ],
)
def hierarchical(
    p: int, *, inner: Reducing = "binomial", middle: Reducing = "binomial", groups: Grouping = NODES
) -> list[Layer]:
    """Reduce inside every node to its first rank, then among those ranks to the root.

    Steps: at most max(steps(inner, len(g)) for g in groups) + steps(middle, len(groups))
    Bytes per rank: at most max(moved(inner, len(g)) for g in groups) + moved(middle, len(groups))
    Scratch: at most n + max(scratch(inner, len(g)) for g in groups) + scratch(middle, len(groups))
    Cost: that of the parts
    Source: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation \
performance, 2000

    >>> [step[0].peer for step in hierarchical(6, 3, groups=3)[0]]
    [4, 5, 0]
    """
    total = common_blocks(p, inner, middle, groups)
    return [*(inner.evenly(group, total) for group in groups), middle.evenly(leaders(groups), total)]
