"""The cases that lowered plans are proved on: counts, chunks, blocks of many sizes strewn over memory, and codecs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..plans.plan import Counts, Shares
from ..schedules import blocks
from ..schedules.collectives import Block
from ..schedules.schedule import Schedule


@dataclass(frozen=True)
class Spread:
    """The bytes of every block that has a count, in the order of `counted`; known: whether all ranks get all sizes."""

    sizes: tuple[int, ...]
    known: bool

    def of_blocks(self, schedule: Schedule) -> dict[Block, int]:
        """Return the bytes of every block of the schedule, as plans cut them."""
        sizes = (part for size in self.sizes for part in blocks.sizes(size, schedule.parts))
        return dict(zip(schedule.blocks, sizes, strict=True))

    def shares(self, schedule: Schedule, rank: int) -> Shares:
        """Return one rank's shares: its blocks are out of order in memory, with gaps between them."""
        what, names = schedule.collective, counted(schedule)
        size = dict(zip(names, self.sizes, strict=True))
        starts, ends = (f(names, schedule.p, rank, schedule.root) for f in (what.starts, what.ends))
        sends, receives = tuple(size[b] for b in starts), tuple(size[b] for b in ends)
        return Shares(sends, receives, _strewn(sends), _strewn(receives), self.sizes if self.known else None)


@dataclass(frozen=True)
class OneCell:
    """The codec of proofs: one cell, the first, stands for each element, so that codes are shorter than elements."""

    group: int = 1

    def nbytes(self, n: int) -> int:
        """Return the cells of n elements' codes."""
        return n


@dataclass(frozen=True)
class TwiceTheCells:
    """The float32 of proofs: an element and what shows that it is a sum in float32."""

    itemsize: int
    group: int = 1

    def nbytes(self, n: int) -> int:
        """Return the cells of n elements' partial sums."""
        return n * 2 * self.itemsize


@dataclass(frozen=True)
class Case:
    """One way to call a collective: counts in elements, bytes per element, chunking, and whether to average.

    float32_sums: partial sums are float32, and elements have fewer bits.
    """

    counts: int | tuple[int, ...] | Spread
    itemsize: int
    chunk_bytes: int | None
    window: int
    averaged: bool = False
    float32_sums: bool = False

    def of(self, schedule: Schedule, rank: int) -> Counts:
        """Return the counts that one rank passes."""
        return self.counts.shares(schedule, rank) if isinstance(self.counts, Spread) else self.counts


def counted(schedule: Schedule) -> Sequence[Block]:
    """Return the blocks that have a count of their own in a form with counts: those of the schedule, or ranks'."""
    return schedule.blocks if schedule.parts == 1 else range(schedule.p)


def uneven(schedule: Schedule, most: int) -> Spread:
    """Return blocks of 0 to most bytes, some of each; ranks of direct algorithms (but allgather) get only their own."""
    contents = list(map(schedule.collective.content, counted(schedule)))
    numbers = {content: i for i, content in enumerate(dict.fromkeys(contents))}
    sizes = tuple((3 * i + 2 * (i // most)) % (most + 1) for i in map(numbers.__getitem__, contents))
    return Spread(sizes, not (schedule.algorithm.direct and schedule.collective.name != "allgather"))


def _strewn(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return offsets for blocks: odd blocks first, in descending order, then even ones; a gap before every third."""
    order = [*range(1, len(sizes), 2)[::-1], *range(0, len(sizes), 2)]
    at, end = [0] * len(sizes), 0
    for i in order:
        at[i] = end + (i % 3 == 0)
        end = at[i] + sizes[i]
    return tuple(at)
