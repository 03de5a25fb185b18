"""Blocks of many sizes, strewn over memory: what the plans of collectives with counts of their own are proved on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..plans.plan import Shares
from ..schedules.schedule import Schedule


@dataclass(frozen=True)
class Spread:
    """The bytes of every block, in the order of Schedule.blocks; known: whether every rank is told all of them."""

    sizes: tuple[int, ...]
    known: bool

    def shares(self, schedule: Schedule, rank: int) -> Shares:
        """Return what one rank says: its blocks lie out of order, and with gaps."""
        size = dict(zip(schedule.blocks, self.sizes, strict=True))
        starts, ends = schedule.starts(rank), schedule.ends(rank)
        sends, receives = tuple(size[b] for b in starts), tuple(size[b] for b in ends)
        return Shares(sends, receives, _strewn(sends), _strewn(receives), self.sizes if self.known else None)


def uneven(schedule: Schedule, most: int) -> Spread:
    """Blocks of 0 to most bytes, some of each; what direct algorithms need not be told they are not told."""
    sizes = tuple((3 * i + 2 * (i // most)) % (most + 1) for i in range(len(schedule.blocks)))
    return Spread(sizes, not (schedule.algorithm.direct and schedule.collective.name != "allgather"))


def _strewn(sizes: Sequence[int]) -> tuple[int, ...]:
    """Places for blocks: the odd ones first, the last of them at the front, a gap before every third."""
    order = [*range(1, len(sizes), 2)[::-1], *range(0, len(sizes), 2)]
    at, end = [0] * len(sizes), 0
    for i in order:
        at[i] = end + (i % 3 == 0)
        end = at[i] + sizes[i]
    return tuple(at)
