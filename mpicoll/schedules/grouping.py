"""Partition ranks into groups, and name a rank by its place in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import isqrt
from typing import Any, Literal, get_args

Partition = tuple[tuple[int, ...], ...]  # groups of ranks, each in ascending order, the group of rank 0 first
Placement = Literal["block", "cyclic"]  # of ranks on nodes
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)
BLOCK: Placement = "block"


def uneven(p: int) -> Partition:
    """Return groups of 1, 2, 3, 1, 2, 3 … consecutive ranks: nodes of unequal size.

    >>> uneven(5)
    ((0,), (1, 2), (3, 4))
    """
    groups, first, size = [], 0, 1
    while first < p:
        groups.append(tuple(range(first, min(first + size, p))))
        first, size = first + size, size % 3 + 1
    return tuple(groups)


def within(node: Mapping[int, int] | None, ranks: Sequence[int]) -> Partition | None:
    """Return the nodes of some of the ranks, under their places among these; node is every rank's (see homes).

    >>> within(homes(((0, 2, 4), (1, 3, 5))), (4, 5, 2))
    ((0, 2), (1,))
    """
    if node is None:
        return None
    nodes = [node[rank] for rank in ranks]
    if len(set(nodes)) == 1:
        return (tuple(range(len(ranks))),)
    shared: dict[int, list[int]] = {}
    for place, home in enumerate(nodes):
        shared.setdefault(home, []).append(place)
    return tuple(map(tuple, shared.values()))


def leaders(groups: Partition) -> list[int]:
    """Return the first rank of every group."""
    return [group[0] for group in groups]


def in_order(p: int, inner: Any, middle: Any, groups: Partition, **others: Any) -> bool:
    """Return whether `inner` in each group, then `middle` among the groups, combine operands in rank order."""
    return consecutive(groups) and middle.ordered(leaders(groups)) and all(map(inner.ordered, groups))


def itself(block: int) -> tuple[int]:
    """Return the one block that makes up a block of the same name."""
    return (block,)


def members(ranks: Sequence[int]) -> Callable[[int], tuple[int]]:
    """Return a function from a place among these ranks to the one rank there.

    >>> members((2, 5))(1)
    (5,)
    """
    return lambda place: (ranks[place],)


@lru_cache(maxsize=16)
def homes(groups: Partition) -> Mapping[int, int]:
    """Return the number of every rank's group.

    >>> homes(((0, 2), (1,)))
    {0: 0, 2: 0, 1: 1}
    """
    return {rank: number for number, group in enumerate(groups) for rank in group}


def consecutive(groups: Partition) -> bool:
    """Return whether the ranks, group by group, are in rank order."""
    ranks = [rank for group in groups for rank in group]
    return ranks == sorted(ranks)


def by_blocks(p: int, size: int) -> Partition:
    """Return groups of so many consecutive ranks; the last one may have fewer.

    >>> by_blocks(5, 2)
    ((0, 1), (2, 3), (4,))
    """
    return tuple(tuple(range(first, min(first + size, p))) for first in range(0, p, size))


def dealt(p: int, groups: int = 3) -> Partition:
    """Return ranks dealt out to groups one by one: nodes whose ranks do not follow each other.

    >>> dealt(5)
    ((0, 3), (1, 4), (2,))
    """
    return tuple(tuple(range(first, p, groups)) for first in range(min(groups, p)))


@lru_cache(maxsize=256)
def balanced(p: int, dimensions: int) -> tuple[int, ...]:
    """Return the sizes of a grid of p ranks whose largest dimension is as small as can be, the larger ones first.

    >>> balanced(12, 2), balanced(24, 3), balanced(5, 2)
    ((4, 3), (4, 3, 2), (5, 1))
    """
    if dimensions == 1:
        return (p,)
    least = (size for size in range(1, isqrt(p) + 1) if p % size == 0)
    return min(tuple(sorted((size, *balanced(p // size, dimensions - 1)), reverse=True)) for size in least)
