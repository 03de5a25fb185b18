"""Gather: one block of every rank, at the root."""

from ..schedules.combinators import Layer
from ..schedules.grids import over
from ..schedules.grouping import dealt, leaders, members, uneven
from ..schedules.ir import Recv, Send, Steps, Strands
from ..schedules.nested import Gathering
from ..schedules.parameters import NODES, Grouping, Radix
from ..schedules.registry import algorithm, every


@algorithm("gather", direct=True)
def linear(p: int, rank: int) -> Steps:
    """All ranks send to the root, which receives all blocks at once.

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


@algorithm("gather", grid=[over(range(1, 17), k=(2, 3, 5, 8)), over((31, 64), k=(3, 8))])
def knomial(p: int, rank: int, *, k: Radix = 4) -> Steps:
    """Ranks collect the blocks of their subtree of base k, from k - 1 ranks at once, and pass them on in one message.

    Steps: lg(p, k)
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * max([0] + [2 * m - 1 for i in range(lg(p, k)) if (m := min(k**i, p - k**i)) > 1])
    Cost: lg(p, k) α + n (p - 1)/p β
    Source: Wilkins et al., Generalized collective algorithms for the exascale era, 2023

    >>> [[op.blocks for op in step] for step in knomial(7, 0, k=3)[0]]
    [[(1,), (2,)], [(3, 4, 5), (6,)]]
    """
    reach = 1
    while reach < p:
        if digit := rank // reach % k:
            yield Send(rank - digit * reach, tuple(range(rank, min(rank + reach, p))))
            return
        children = range(rank + reach, min(rank + k * reach, p), reach)
        if children:
            yield tuple(Recv(child, tuple(range(child, min(child + reach, p)))) for child in children)
        reach *= k


@algorithm("gather")
def binomial(p: int, rank: int) -> Strands:
    """Ranks collect the blocks of their binomial subtree, nearest first, and pass them on in one message.

    Steps: lg(p)
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * max([0] + [2 * m - 1 for i in range(lg(p)) if (m := min(2**i, p - 2**i)) > 1])
    Cost: lg(p) α + n (p - 1)/p β
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005

    >>> [op.blocks for step in binomial(5, 0)[0] for op in step]
    [(1,), (2, 3), (4,)]
    """
    return knomial(p, rank, k=2)


@algorithm(
    "gather",
    layered=True,
    grid=[
        over((*range(1, 14), 31), groups=(3, uneven, dealt)),
        over((6, 7, 11), paired=True, inner=every("gather"), middle=every("gather"), groups=(uneven,)),
    ],
)
def hierarchical(
    p: int, *, inner: Gathering = "binomial", middle: Gathering = "binomial", groups: Grouping = NODES
) -> list[Layer]:
    """Gather inside every group to its first rank, then among these, one message a group.

    Steps: at most max(steps(inner, len(g)) for g in groups) + steps(middle, len(groups))
    Bytes per rank: n * (p - 1) / p
    Scratch: at most 2 * n * (p - 1) / p
    Cost: that of the parts; across h groups lg(h) α with binomial trees
    Source: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation \
performance, 2000

    >>> [op.blocks for step in hierarchical(5, 0, groups=3)[0] for op in step]
    [(1,), (2,), (3, 4)]
    """
    inside = [inner.layer(group, members(group)) for group in groups]
    return [*inside, middle.layer(leaders(groups), groups.__getitem__)]
