"""Algorithms that split: the ranks into two trees, or the data among the ranks of every node."""

from collections.abc import Sequence
from functools import partial
from itertools import product

from ..schedules.combinators import Layer, then
from ..schedules.grids import over
from ..schedules.grouping import Partition, dealt, in_order, uneven
from ..schedules.ir import Recv, RecvReduce, Send, Step, Strands
from ..schedules.nested import Allgathering, Allreducing, Alltoalling, ReduceScattering
from ..schedules.parameters import ALL, NODES, AtMost, Grouping
from ..schedules.registry import Chosen, algorithm, every


def post_order(ranks: range, rank: int, parent: int) -> tuple[list[int], int]:
    """Return a rank's children and parent in the binary tree whose root is the last rank, and which keeps rank order.

    >>> [post_order(range(7), rank, -1) for rank in (2, 5, 6)]
    [([0, 1], 6), ([3, 4], 6), ([2, 5], -1)]
    """
    root, middle = ranks[-1], ranks.start + len(ranks) // 2
    parts = [part for part in (range(ranks.start, middle), range(middle, root)) if part]
    if rank == root:
        return [part[-1] for part in parts], parent
    return post_order(next(part for part in parts if rank in part), rank, root)


@algorithm("allreduce", ordered=True, divides_at_owner=True)
def dual_root(p: int, rank: int) -> Strands:
    """Sums come up two trees of half the ranks each, the roots swap, and the result goes down; pipelined by chunks.

    Steps: at most 2 * lg(p)
    Bytes per rank: at most 3 * n
    Scratch: at most 3 * n
    Cost: 2 lg(p) (α + n/chunks β) + 3 n β + 2 n γ
    Source: Träff, A doubly-pipelined, dual-root reduction-to-all algorithm and implementation, 2021

    >>> [[type(op).__name__ for op in step] for step in dual_root(8, 3)[0]]
    [['RecvReduce', 'RecvReduce'], ['Send', 'RecvReduce'], ['Send', 'Send']]
    """
    halves = [half for half in (range(p // 2), range(p // 2, p)) if half]
    half = next(half for half in halves if rank in half)
    children, parent = post_order(half, rank, -1)
    up: list[Step] = [tuple(RecvReduce(child, (0,), "left") for child in reversed(children))] if children else []
    down: list[Step] = [tuple(Send(child, (0,)) for child in children)] if children else []
    if parent >= 0:
        return then(up, [(Send(parent, (0,)),), (Recv(parent, (0,)),)], down)
    others = [half[-1] for half in halves if rank not in half]
    return then(up, *([(Send(o, (0,)), RecvReduce(o, (0,), "left" if o < rank else "right"))] for o in others), down)


def rails(groups: Partition) -> list[list[int]]:
    """Return the ranks of every rail: all groups' first ranks, their second ranks … while all have one."""
    return [[group[i] for group in groups] for i in range(min(map(len, groups)))]


def _share(groups: Partition, middle: Chosen) -> int:
    """Return how many blocks a rail has."""
    return middle.blocks([group[0] for group in groups])


@algorithm(
    "allreduce",
    layered=True,
    blocks=lambda p, inner, middle, allgather, groups: min(map(len, groups)) * _share(groups, middle),
    ordered=in_order,
    grid=[
        over((*range(1, 17), 31), groups=(2, 4, uneven, dealt)),
        over(
            (6, 7, 8, 12),
            paired=True,
            inner=every("reduce_scatter", "hierarchical"),
            middle=every("allreduce", "hierarchical", "split_rail"),
            allgather=every("allgather", "hierarchical"),
            groups=(3, 2),
        ),
        over((8, 12, 24), middle=("split_rail(groups=2)",), groups=(2, 3)),
    ],
)
def split_rail(
    p: int,
    *,
    inner: ReduceScattering = "pairwise",
    middle: Allreducing = "ring",
    allgather: Allgathering = "linear",
    groups: Grouping = NODES,
) -> list[Layer]:
    """Reduce-scatter inside every node, allreduce each share among the ranks that hold it, allgather inside every node.

    Every rank drives a rail between nodes, where `hierarchical` has one rank of each do so. With middle=ring and as
    many ranks in every group it is the torus of two dimensions, which has a name: `torus`. As many ranks of each group
    have a share as the smallest group has.

    Steps: at most max(steps(inner, len(g)) + steps(allgather, len(g)) for g in groups) + steps(middle, len(groups))
    Bytes per rank: at most max(moved(inner, len(g), m * len(g)) + moved(allgather, len(g), m * len(g)) for g in groups
        for m in [n / min(len(g) for g in groups)]) + moved(middle, len(groups), n / min(len(g) for g in groups))
    Scratch: at most 2 * n + max(scratch(inner, len(g), m * len(g)) + scratch(allgather, len(g), m * len(g))
        for g in groups for m in [n / min(len(g) for g in groups)]) + scratch(middle, len(groups))
    Cost: that of the parts; across h nodes of m ranks 2 n/m (h - 1)/h β on each of m rails
    Source: Jia et al., Highly scalable deep learning training system with mixed-precision: training ImageNet in four \
minutes, 2018

    >>> [(step[0].peer, step[0].blocks) for step in split_rail(4, 0, groups=2)[0]]
    [(1, (2, 3)), (2, (1,)), (2, (1,)), (1, (0, 1))]
    """
    lines, share = rails(groups), _share(groups, middle)

    def blocks(rail: int) -> range:
        return range(rail * share, (rail + 1) * share) if rail < len(lines) else range(0)

    inside = [inner.layer(group, blocks) for group in groups]
    between = [middle.layer(line, lambda b, i=i: (i * share + b,)) for i, line in enumerate(lines)]
    return [*inside, *between, *(allgather.layer(group, blocks) for group in groups)]


@algorithm(
    "alltoall",
    name="split_rail",
    layered=True,
    grid=[
        over(range(1, 14), groups=(2, uneven, dealt), leaders=(ALL, 2)),
        over((5, 6, 7), paired=True, inner=every("alltoall"), middle=every("alltoall"), groups=(uneven, 3)),
    ],
)
def alltoall_split_rail(
    p: int,
    *,
    inner: Alltoalling = "pairwise",
    middle: Alltoalling = "pairwise",
    groups: Grouping = NODES,
    leaders: AtMost = ALL,
) -> list[Layer]:
    """Swap blocks inside every node by the rank that sends them on, then swap with that rank's peers on other nodes.

    The i-th leaders of all nodes are a rail: they carry the blocks to the i-th ranks. There are as many leaders as the
    smallest node has ranks, or fewer: with leaders=1 one rank of each node sends between nodes. Leaders hand the blocks
    for other ranks of their node on at the end. Blocks for the own node go straight there.

    Steps: at most max(steps(inner, len(g)) * (1 + (len(g) > m)) for g in groups
        for m in [min(leaders, min(len(g) for g in groups))]) + steps(middle, len(groups))
    Bytes per rank: at most max(moved(inner, len(g), n / p * len(g) * (sum(-(-len(g) // m) for g in groups)
        + (p - len(g)) * (len(g) > m))) + moved(middle, len(groups), n / p * len(groups) * largest(groups)
        * -(-largest(groups) // m)) for g in groups for m in [min(leaders, min(len(g) for g in groups))])
    Scratch: at most 2 * max(moved(inner, len(g), n / p * len(g) * (sum(-(-len(g) // m) for g in groups)
        + (p - len(g)) * (len(g) > m))) + moved(middle, len(groups), n / p * len(groups) * largest(groups)
        * -(-largest(groups) // m)) for g in groups for m in [min(leaders, min(len(g) for g in groups))])
    Cost: that of the parts; for h nodes of m ranks, all leaders, (m + h - 2) α + n ((m - 1)/m + (h - 1)/h) β
    Source: Träff, Hunold, Decomposing MPI collectives for exploiting multi-lane communication, 2020

    >>> [op.blocks for step in alltoall_split_rail(4, 0, groups=2)[0] for op in step if isinstance(op, Send)]
    [((0, 1), (0, 3)), ((0, 2), (1, 2))]
    """
    rails = min(leaders, *map(len, groups))
    layers = [inner.layer(group, partial(_to_rails, groups, rails, group)) for group in groups]
    for rail in range(rails):
        line = [group[rail] for group in groups]
        layers.append(middle.layer(line, partial(_between, groups, rails, rail)))
    return [*layers, *(inner.layer(group, partial(_from_rails, p, rails, group)) for group in groups)]


def _to_rails(groups: Partition, rails: int, group: Sequence[int], pair: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the blocks that one rank of a group sends a leader: the block for that rank, and those for its rail."""
    source, leader = pair
    onward = [to for other in groups if other is not group for to in other[leader::rails]] if leader < rails else []
    return [(group[source], to) for to in (group[leader], *onward)]


def _between(groups: Partition, rails: int, rail: int, pair: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the blocks that a rail carries from one group to another."""
    return list(product(groups[pair[0]], groups[pair[1]][rail::rails]))


def _from_rails(p: int, rails: int, group: Sequence[int], pair: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the blocks from other groups that a leader passes to a rank of its group that is no leader."""
    leader, place = pair
    if leader == place or leader != place % rails:
        return []
    return [(source, group[place]) for source in range(p) if source not in group]
