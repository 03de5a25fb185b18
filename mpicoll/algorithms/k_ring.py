"""Rings inside groups and between them, so that every link between groups carries few of the ring's messages."""

from collections.abc import Sequence

from ..schedules.combinators import mirror, relabel, then
from ..schedules.grids import over
from ..schedules.grouping import Partition, dealt, uneven
from ..schedules.ir import RecvReduce, Send, Steps, Strands, strands
from ..schedules.parameters import NODES, Grouping
from ..schedules.registry import algorithm
from .reduce_scatter import ring

GRID = [over(range(1, 14), groups=(2, uneven, dealt)), over((31, 64), groups=(8, uneven))]


def crossings(
    home: Sequence[int], group: Sequence[int], rank: int, other: Sequence[int]
) -> dict[int, tuple[int, ...]]:
    """Return the blocks of a home that a rank of a group passes to, or gets from, each rank of another group.

    The ranks of either group have the blocks dealt out.

    >>> crossings((3, 4, 5), (1, 2), 1, (0,)), crossings((3, 4, 5), (0,), 0, (1, 2))
    ({0: (3, 5)}, {1: (3, 5), 2: (4,)})
    """
    messages: dict[int, tuple[int, ...]] = {}
    for i in range(group.index(rank), len(home), len(group)):
        peer = other[i % len(other)]
        messages[peer] = (*messages.get(peer, ()), home[i])
    return messages


def _homeward(groups: Partition, rank: int) -> Steps:
    """Yield the reduce-scatter: groups reduce the blocks of others in a ring, and pass the sums on to their home."""
    number = next(i for i, group in enumerate(groups) if rank in group)
    group, before, after = groups[number], groups[number - 1], groups[(number + 1) % len(groups)]
    inside = ring.make(len(group), {})(group.index(rank))
    for turn in reversed(range(len(groups))):
        home = groups[number - turn]
        parcels = [home[place :: len(group)] for place in range(len(group))]
        yield from relabel(inside, group.__getitem__, parcels.__getitem__)[0]
        if turn:
            arrives = groups[(number + 1 - turn) % len(groups)]
            yield (
                *(Send(to, blocks) for to, blocks in crossings(home, group, rank, before).items()),
                *(RecvReduce(source, b, "left") for source, b in crossings(arrives, group, rank, after).items()),
            )


@algorithm("reduce_scatter", name="k_ring", grid=GRID)
def reduce_scatter(p: int, rank: int, *, groups: Grouping = NODES) -> Strands:
    """Reduce a group's blocks in a ring inside every group, pass the sums on to the group before, and so on.

    Of the p - 1 steps of a ring, every step sends between groups somewhere. Here that is one step in k where groups
    have k ranks, and the ranks of a group share its messages. Ranks of a smaller group have several blocks each.

    Steps: at most len(groups) * largest(groups) - 1
    Bytes per rank: at most n / p * (p - 1 + (len(groups) - 1) * (len(groups) * largest(groups) > p))
    Scratch: at most 3 * n / p * -(-largest(groups) // min(len(g) for g in groups))
    Cost: (p - h) (α + n/p (β + γ)) inside h groups of one size and (h - 1) (α + n/p (β + γ)) between them
    Source: Wilkins et al., Generalized collective algorithms for the exascale era, 2023

    >>> [(step[0].peer, step[0].blocks) for step in reduce_scatter(4, 0, groups=2)[0]]
    [(1, (3,)), (2, (2,)), (1, (1,))]
    """
    return strands(_homeward(groups, rank))


@algorithm("allgather", name="k_ring", grid=GRID)
def allgather(p: int, rank: int, *, groups: Grouping = NODES) -> Strands:
    """Blocks go round their group in a ring, then on to the next group and round that: reduce_scatter's reversed.

    Steps: at most len(groups) * largest(groups) - 1
    Bytes per rank: at most n / p * (p - 1 + (len(groups) - 1) * (len(groups) * largest(groups) > p))
    Scratch: at most 2 * n / p * -(-largest(groups) // min(len(g) for g in groups))
        * (len(groups) * largest(groups) > p)
    Cost: (p - h) (α + n/p β) inside h groups of one size and (h - 1) (α + n/p β) between them
    Source: Wilkins et al., Generalized collective algorithms for the exascale era, 2023

    >>> [(step[0].peer, step[0].blocks) for step in allgather(4, 0, groups=2)[0]]
    [(1, (1,)), (2, (2,)), (1, (3,))]
    """
    return mirror(_homeward(groups, rank))


@algorithm("allreduce", name="k_ring", blocks=lambda p, groups: p, divides_at_owner=True, grid=GRID)
def allreduce(p: int, rank: int, *, groups: Grouping = NODES) -> Strands:
    """Reduce-scatter by rings inside groups and between them, then allgather by the same steps reversed in time.

    Steps: at most 2 * (len(groups) * largest(groups) - 1)
    Bytes per rank: at most 2 * n / p * (p - 1 + (len(groups) - 1) * (len(groups) * largest(groups) > p))
    Scratch: at most 2 * n / p * -(-largest(groups) // min(len(g) for g in groups))
    Cost: (p - h) (2 α + n/p (2 β + γ)) inside h groups of one size and (h - 1) (2 α + n/p (2 β + γ)) between them
    Source: Wilkins et al., Generalized collective algorithms for the exascale era, 2023

    >>> [(step[0].peer, step[0].blocks) for step in allreduce(4, 0, groups=2)[0]]
    [(1, (3,)), (2, (2,)), (1, (1,)), (1, (1,)), (2, (2,)), (1, (3,))]
    """
    there = strands(_homeward(groups, rank))
    return then(there, mirror(there))
