"""Scatter: the root's blocks, one to every rank."""

from ..schedules.combinators import Layer, mirror
from ..schedules.grids import over
from ..schedules.grouping import dealt, leaders, members, uneven
from ..schedules.ir import Strands
from ..schedules.nested import Scattering
from ..schedules.parameters import NODES, Grouping, Radix
from ..schedules.registry import algorithm, every
from . import gather


@algorithm("scatter", direct=True)
def linear(p: int, rank: int) -> Strands:
    """The root sends each rank its block, all at once.

    Steps: p > 1
    Bytes per rank: n * (p - 1) / p
    Scratch: 0
    Cost: (p - 1) α + n (p - 1)/p β
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> linear(3, 1)[0]
    ((Recv(peer=0, blocks=(1,), buffer='value'),),)
    """
    return mirror(gather.linear(p, rank))


@algorithm("scatter", grid=[over(range(1, 17), k=(2, 3, 5, 8)), over((31, 64), k=(3, 8))])
def knomial(p: int, rank: int, *, k: Radix = 4) -> Strands:
    """A rank hands k - 1 subtrees of base k their blocks at once: gather's tree reversed in time.

    Steps: lg(p, k)
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * max([0] + [m for i in range(lg(p, k)) if (m := min(k**i, p - k**i)) > 1])
    Cost: lg(p, k) α + n (p - 1)/p β
    Source: Wilkins et al., Generalized collective algorithms for the exascale era, 2023

    >>> [[op.blocks for op in step] for step in knomial(7, 0, k=3)[0]]
    [[(3, 4, 5), (6,)], [(1,), (2,)]]
    """
    return mirror(gather.knomial(p, rank, k=k))


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


@algorithm(
    "scatter",
    layered=True,
    grid=[
        over((*range(1, 14), 31), groups=(3, uneven, dealt)),
        over((6, 7, 11), paired=True, inner=every("scatter"), middle=every("scatter"), groups=(uneven,)),
    ],
)
def hierarchical(
    p: int, *, inner: Scattering = "binomial", middle: Scattering = "binomial", groups: Grouping = NODES
) -> list[Layer]:
    """Scatter to the first rank of every group what its group gets, one message a group, then inside every group.

    Steps: at most steps(middle, len(groups)) + max(steps(inner, len(g)) for g in groups)
    Bytes per rank: n * (p - 1) / p
    Scratch: at most n * (p - 1) / p
    Cost: that of the parts; across h groups lg(h) α with binomial trees
    Source: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation \
performance, 2000

    >>> [op.blocks for step in hierarchical(5, 0, groups=3)[0] for op in step]
    [(3, 4), (2,), (1,)]
    """
    inside = [inner.layer(group, members(group)) for group in groups]
    return [middle.layer(leaders(groups), groups.__getitem__), *inside]
