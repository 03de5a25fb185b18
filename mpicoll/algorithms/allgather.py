"""Allgather: one block of every rank, everywhere."""

from typing import Any

from ..schedules.blocks import consecutive, power_of_two_floor, powers_of_two
from ..schedules.combinators import Layer, embed, forward, mirror, then
from ..schedules.grids import over
from ..schedules.grouping import dealt, itself, leaders, members, uneven
from ..schedules.ir import Recv, Send, Steps, Strands, strands
from ..schedules.nested import Allgathering, Broadcasting, Gathering
from ..schedules.parameters import NODES, Grouping, Radix
from ..schedules.registry import Requirement, algorithm, every
from . import reduce_scatter


@algorithm("allgather", uniform=True)
def linear(p: int, rank: int) -> Steps:
    """Every rank sends its block to all others at once.

    Steps: p > 1
    Bytes per rank: n * (p - 1) / p
    Scratch: 0
    Cost: (p - 1) α + n (p - 1)/p β
    Source: the definition (MPI 1.1, 1995), carried out literally

    >>> [op.peer for op in linear(3, 1)[0][0]]
    [2, 0, 0, 2]
    """
    others = range(1, p)
    if others:
        yield (
            *(Send((rank + i) % p, (rank,)) for i in others),
            *(Recv((rank - i) % p, ((rank - i) % p,)) for i in others),
        )


@algorithm("allgather", uniform=True)
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


@algorithm("allgather", grid=[over(range(1, 17), k=(3, 5, 8)), over((27, 31, 64), k=(3, 8))])
def bruck(p: int, rank: int, *, k: Radix = 2) -> Steps:
    """In round i receive all blocks of the ranks k^i, 2 k^i … further on, so that a rank's blocks grow k-fold.

    k - 1 messages travel at once: this is the source's algorithm for that many ports.

    Steps: lg(p, k)
    Bytes per rank: n * (p - 1) / p
    Scratch: n / p * max([0] + [m[0] + sum(m) for i in range(lg(p, k))
        if (m := [x for z in range(k**i, min(k**(i + 1), p), k**i) if (x := min(k**i, p - z)) > 1])])
    Cost: lg(p, k) α + n (p - 1)/p β
    Source: Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997

    >>> [op.blocks for step in bruck(5, 3)[0] for op in step if isinstance(op, Recv)]
    [(4,), (0, 1), (2,)]
    """
    have = 1
    while have < p:
        counts = [(i, min(have, p - i)) for i in range(have, min(k * have, p), have)]
        yield (
            *(Send((rank - i) % p, tuple((rank + j) % p for j in range(count))) for i, count in counts),
            *(Recv((rank + i) % p, tuple((rank + i + j) % p for j in range(count))) for i, count in counts),
        )
        have *= k


@algorithm("allgather")
def recursive_doubling(p: int, rank: int) -> Strands:
    """Swap all blocks with the rank 1, 2, 4 … away; extra ranks hand a neighbour their block and get all at the end.

    Steps: lg(q) + 2 * (p > q)
    Bytes per rank: n / p * (p - 1 if p == q else p + q - 2 + sum(min(2**i, p - q) for i in range(lg(q))))
    Scratch: n / p * (p - 1 if p > q else p // 2 * (p > 2))
    Cost: lg(q) α + n (p - 1)/p β, and 2 α + n β where p is not a power of two
    Source: Thakur, Rabenseifner, Gropp, Optimization of collective communication operations in MPICH, 2005
    Excess: where p is not a power of two, about n for the ranks that send their neighbour all at the end

    >>> [op.blocks for step in recursive_doubling(5, 0)[0] for op in step]
    [(1,), (0, 1), (2,), (0, 1, 2), (3, 4), (0, 2, 3, 4)]
    """

    def swap(p: int, rank: int) -> Steps:
        for have in powers_of_two(p):
            first, peer = rank & -have, rank ^ have
            yield (
                Send(peer, consecutive(first, first + have)),
                Recv(peer, consecutive(first ^ have, (first ^ have) + have)),
            )

    extra = p - power_of_two_floor(p)
    if not extra:
        return strands(swap(p, rank))
    parts: dict[Any, tuple[int, ...]] = {i: (2 * i, 2 * i + 1) if i < extra else (i + extra,) for i in range(p - extra)}
    core = embed(swap, [part[0] for part in parts.values()], rank, parts.__getitem__)
    if rank >= 2 * extra:
        return core
    low, high = rank & ~1, rank | 1
    back = [block for block in range(p) if block != high]
    return then(forward([high], rank, high, low), core, forward(back, rank, low, high))


@algorithm("allgather", requires=Requirement("an even number of ranks", lambda p: p == 1 or p % 2 == 0))
def neighbor_exchange(p: int, rank: int) -> Steps:
    """Swap with the neighbour on one side and on the other by turns, each time the two blocks that came last.

    Steps: p // 2
    Bytes per rank: n * (p - 1) / p
    Scratch: 2 * n / p * (p > 2)
    Cost: p/2 α + n (p - 1)/p β
    Source: Chen, Zhang, Zhang, Yuan, Performance evaluation of allgather algorithms on terascale Linux cluster with \
fast Ethernet, 2005

    >>> [(op.peer, op.blocks) for step in neighbor_exchange(6, 0)[0] for op in step if isinstance(op, Recv)]
    [(1, (1,)), (5, (4, 5)), (1, (2, 3))]
    """

    def got(rank: int, step: int) -> tuple[int, int]:
        pair = (rank // 2 + (-1) ** (rank + step) * ((step + 1) // 2)) % (p // 2)
        return 2 * pair, 2 * pair + 1

    for step in range(p // 2):
        peer = (rank + (-1) ** (rank + step)) % p
        if step == 0:
            yield Send(peer, (rank,)), Recv(peer, (peer,))
        else:
            yield Send(peer, got(rank, step - 1)), Recv(peer, got(peer, step - 1))


@algorithm("allgather", uniform=True)
def sparbit(p: int, rank: int) -> Steps:
    """Send the own blocks half of all ranks further on, a quarter … one: most go the shortest way, each alone.

    Steps: lg(p)
    Bytes per rank: n * (p - 1) / p
    Scratch: 0
    Cost: lg(p) α + (p - 1) g + n (p - 1)/p β, where every further message takes a gap g
    Source: Loch, Koslovski, Sparbit: a new logarithmic-cost and data locality-aware MPI allgather algorithm, 2021

    >>> [(op.peer, op.blocks) for step in sparbit(6, 0)[0] for op in step if isinstance(op, Send)]
    [(4, (0,)), (2, (0,)), (1, (0,)), (1, (2,)), (1, (4,))]
    """
    have = [0]  # how many ranks back each of the blocks is from
    for distance in reversed(powers_of_two(p)):
        onward = [back for back in have if back + distance < p]
        yield (
            *(Send((rank + distance) % p, ((rank - back) % p,)) for back in onward),
            *(Recv((rank - distance) % p, ((rank - distance - back) % p,)) for back in onward),
        )
        have += [back + distance for back in onward]


@algorithm(
    "allgather",
    layered=True,
    grid=[over((5, 6, 8, 11), paired=True, gather=every("gather"), bcast=every("bcast"))],
)
def gather_bcast(p: int, *, gather: Gathering = "binomial", bcast: Broadcasting = "binomial") -> list[Layer]:
    """Gather to rank 0, then broadcast everything, each by any registered algorithm.

    Steps: at most steps(gather, p) + steps(bcast, p)
    Bytes per rank: at most moved(gather, p) + moved(bcast, p, cut(bcast, p, p))
    Scratch: at most scratch(gather, p) + 2 * moved(bcast, p, cut(bcast, p, p))
    Cost: 2 lg(p) α + n (lg(p) + (p - 1)/p) β with binomial trees
    Source: Pješivac-Grbović et al., Performance analysis of MPI collective operations, 2007

    >>> [op.blocks for step in gather_bcast(4, 0)[0] for op in step]
    [(1,), (2, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    """
    return [gather.layer(range(p), itself), bcast.evenly(range(p), p)]


@algorithm(
    "allgather",
    layered=True,
    grid=[
        over((*range(1, 14), 31), groups=(3, uneven, dealt)),
        over(
            (6, 7, 11),
            paired=True,
            inner=every("gather"),
            middle=every("allgather"),
            bcast=every("bcast"),
            groups=(uneven,),
        ),
    ],
)
def hierarchical(
    p: int,
    *,
    inner: Gathering = "binomial",
    middle: Allgathering = "ring",
    bcast: Broadcasting = "binomial",
    groups: Grouping = NODES,
) -> list[Layer]:
    """Gather inside every group to its first rank, allgather among these, broadcast everything inside every group.

    Steps: at most max(steps(inner, len(g)) + steps(bcast, len(g)) for g in groups) + steps(middle, len(groups))
    Bytes per rank: at most moved(middle, len(groups), n / p * len(groups) * largest(groups))
        + max(moved(inner, len(g), n / p * len(g)) + moved(bcast, len(g), cut(bcast, len(g), p))
        for g in groups)
    Scratch: at most 2 * moved(middle, len(groups), n / p * len(groups) * largest(groups))
        + max(scratch(inner, len(g), n / p * len(g)) + 2 * moved(bcast, len(g), cut(bcast, len(g), p))
        for g in groups)
    Cost: that of the parts; across h nodes n (h - 1)/h β with middle=ring, whatever the placement
    Source: Karonis et al., Exploiting hierarchy in parallel computer networks to optimize collective operation \
performance, 2000

    >>> [op.blocks for step in hierarchical(4, 0, groups=2)[0] for op in step]
    [(1,), (2, 3), (0, 1), (0, 1, 2, 3)]
    """
    inside = [inner.layer(group, members(group)) for group in groups]
    return [*inside, middle.layer(leaders(groups), groups.__getitem__), *(bcast.evenly(group, p) for group in groups)]
