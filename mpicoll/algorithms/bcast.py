"""Bcast: the root's vector, everywhere."""

from ..schedules.combinators import Layer, embed, mirror, then
from ..schedules.grids import over
from ..schedules.grouping import dealt, itself, leaders, uneven
from ..schedules.ir import Recv, Send, Strands
from ..schedules.nested import Allgathering, Broadcasting
from ..schedules.parameters import NODES, Fanout, Grouping, Radix
from ..schedules.registry import Chosen, algorithm, every
from . import reduce, scatter


@algorithm("bcast")
def linear(p: int, rank: int) -> Strands:
    """The root sends to all ranks at once: reduce's linear reversed in time.

    Steps: p > 1
    Bytes per rank: n * (p - 1)
    Scratch: 0
    Cost: (p - 1) (α + n β)
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> linear(3, 1)[0]
    ((Recv(peer=0, blocks=(0,), buffer='value'),),)
    """
    return mirror(reduce.linear(p, rank))


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


@algorithm("bcast", grid=[over(range(1, 17), k=(2, 3, 5, 8)), over((31, 64), k=(3, 4, 7))])
def knomial(p: int, rank: int, *, k: Radix = 4) -> Strands:
    """Ranks that have the vector send to k - 1 others at once, so that they grow k-fold each step.

    Steps: lg(p, k)
    Bytes per rank: n * sum(min(k - 1, (p - 1) // k**i) for i in range(lg(p, k)))
    Scratch: 0
    Cost: log_k(p) (α + (k - 1) n β)
    Source: Wilkins et al., Generalized collective algorithms for the exascale era, 2023

    >>> [[op.peer for op in step] for step in knomial(9, 0, k=3)[0]]
    [[3, 6], [1, 2]]
    """
    return mirror(reduce.knomial(p, rank, k=k))


@algorithm("bcast", grid=[over(range(1, 17), k=(2, 3, 5)), over((31, 64), k=(2, 7))])
def chain(p: int, rank: int, *, k: Fanout = 1) -> Strands:
    """The vector goes down k lines of ranks, pipelined by chunks: with k=1 the wire limit for long vectors.

    Steps: -(-(p - 1) // k)
    Bytes per rank: n * min(k, p - 1)
    Scratch: 0
    Cost: ((p - 1)/k - 1 + chunks) (α + k n/chunks β)
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [op.peer for step in chain(4, 2)[0] for op in step], [op.peer for op in chain(7, 0, k=2)[0][0]]
    ([1, 3], [1, 4])
    """
    return mirror(reduce.chain(p, rank, k=k))


@algorithm("bcast")
def binary_tree(p: int, rank: int) -> Strands:
    """The vector goes down the complete binary tree, every rank sending to its two children; pipelined by chunks.

    Steps: lg(q)
    Bytes per rank: n * min(p - 1, 2)
    Scratch: 0
    Cost: (lg(p) + chunks) (α + 2 n/chunks β)
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [[op.peer for op in step] for step in binary_tree(6, 1)[0]]
    [[0], [3, 4]]
    """
    return mirror(reduce.binary_tree(p, rank))


@algorithm("bcast", blocks=2)
def split_binary(p: int, rank: int) -> Strands:
    """Half the vector goes down the left of a binary tree, half down the right; then ranks of the two sides swap.

    Each side is a complete binary tree; the ranks at the same place in both are a pair. Where the left has one rank
    more, the root gives that one its other half.

    Steps: lg(p // 2 + 1) + 1 if p > 1 else 0
    Bytes per rank: n * (p > 1) + n / 2 * (p == 4 or p > 5)
    Scratch: 0
    Cost: (lg(p) + chunks) (α + n/chunks β) + α + n/2 β
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [[(op.peer, op.blocks) for op in step] for step in split_binary(7, 1)[0]]
    [[(0, (0,))], [(2, (0,)), (3, (0,))], [(4, (0,)), (4, (1,))]]
    """
    sides = range(1, p // 2 + 1), range(p // 2 + 1, p)
    if rank == 0:
        halves = tuple(Send(side[0], (half,)) for half, side in enumerate(sides) if side)
        return then([halves] if halves else [], [Send(p // 2, (1,))] if p % 2 == 0 else [])
    own = int(rank in sides[1])
    place = sides[own].index(rank)
    pair = sides[1 - own][place] if place < len(sides[1 - own]) else 0
    top = [Recv(0, (own,))] if place == 0 else []
    swap = (Send(pair, (own,)), Recv(pair, (1 - own,))) if pair else Recv(0, (1,))
    return then(top, embed(binary_tree, sides[own], rank, lambda block: (own,)), [swap])


@algorithm("bcast", blocks=2, strand=lambda block: block % 2)
def double_tree(p: int, rank: int) -> Strands:
    """Half of the vector goes down each of two binary trees, in which no rank but the root has children twice.

    It is reduce's double tree reversed in time.

    Steps: lg(p)
    Bytes per rank: n * (p > 1)
    Scratch: 0
    Cost: (lg(p) + chunks) (2 α + n/chunks β)
    Source: Sanders, Speck, Träff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009

    >>> [[[op.peer for op in step] for step in strand] for strand in double_tree(7, 2)]
    [[[4], [1, 3]], [[1]]]
    """
    return mirror(reduce.double_tree(p, rank))


@algorithm(
    "bcast", layered=True, blocks=lambda p, allgather: p, grid=[over(range(1, 17), allgather=every("allgather"))]
)
def scatter_allgather(p: int, *, allgather: Allgathering = "ring") -> list[Layer]:
    """Every rank gets a p-th of the vector from a binomial scatter, then the rest by any registered allgather.

    Steps: at most lg(p) + steps(allgather, p)
    Bytes per rank: at most n * (p - 1) / p + moved(allgather, p)
    Scratch: at most scratch(allgather, p)
    Cost: (lg(p) + p - 1) α + 2 n (p - 1)/p β with allgather=ring
    Source: Barnett, Shuler, Gupta, Payne, van de Geijn, Watts, Building a high-performance collective communication \
library, 1994

    >>> [len(step[0].blocks) for step in scatter_allgather(4, 0)[0]]
    [2, 1, 1, 1, 1]
    """
    return [
        Chosen(scatter.binomial).layer(range(p), itself),
        allgather.layer(range(p), itself),
    ]


@algorithm(
    "bcast",
    layered=True,
    blocks=reduce.common_blocks,
    grid=[
        over(range(1, 17), groups=(3, uneven, dealt)),
        over((31, 64), groups=(8, uneven)),
        over(
            (6, 7, 11),
            paired=True,
            inner=every("bcast", "hierarchical"),
            middle=every("bcast", "hierarchical"),
            groups=(uneven,),
        ),
    ],
)
def hierarchical(
    p: int, *, inner: Broadcasting = "binomial", middle: Broadcasting = "binomial", groups: Grouping = NODES
) -> list[Layer]:
    """Broadcast among the first ranks of every node, then inside every node.

    Steps: at most max(steps(inner, len(g)) for g in groups) + steps(middle, len(groups))
    Bytes per rank: at most max(moved(inner, len(g)) for g in groups) + moved(middle, len(groups))
    Scratch: at most max(scratch(inner, len(g)) for g in groups) + scratch(middle, len(groups))
    Cost: that of the parts
    Source: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation \
performance, 2000

    >>> [step[0].peer for step in hierarchical(6, 3, groups=3)[0]]
    [0, 5, 4]
    """
    total = reduce.common_blocks(p, inner, middle, groups)
    return [middle.evenly(leaders(groups), total), *(inner.evenly(group, total) for group in groups)]
