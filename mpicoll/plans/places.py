"""Describe where blocks are while a plan is lowered: in entries of the input, the output or a region of scratch.

See template.py for entries.
"""

from __future__ import annotations

from typing import Any

from ..schedules.collectives import Block, at_namesake
from ..schedules.schedule import Schedule
from .plan import Counts, Shares
from .rows import Segment


class Region:
    """A region of scratch, by its first entry. It is freed when refs is 0: the blocks in it, and 1 during its step."""

    __slots__ = ("entry", "refs")

    def __init__(self, entry: int) -> None:
        self.entry, self.refs = entry, 1


Home = tuple[int, int, Region | None]  # of a block: base, entry, region of scratch


class Places:
    """The indices of blocks in one rank's input and output, in the order of memory."""

    def __init__(self, schedule: Schedule, rank: int) -> None:
        collective, p = schedule.collective, schedule.p
        self.is_pair = collective.naming == "pair"
        self.of_edge: tuple[dict[Block, int], dict[Block, int]] | None = None
        if collective.naming == "edge":
            graph: Any = schedule.blocks
            leaving, entering = graph.leaving(rank), graph.entering(rank)
            self.of_edge = ({b: i for i, b in enumerate(leaving)}, {b: i for i, b in enumerate(entering)})
            self.counts = [len(leaving), len(entering)]
            return
        n, self.parts = p if self.is_pair else len(schedule.blocks), schedule.parts
        self.is_alone = collective.starts is at_namesake, collective.ends is at_namesake
        self.counts = [self.parts if is_alone else n for is_alone in self.is_alone]

    def input(self, block: Block) -> int:
        """Return the index of a block in the input."""
        if self.of_edge is not None:
            return self.of_edge[0][block]
        return block[1] if self.is_pair else block % self.parts if self.is_alone[0] else block  # type: ignore[index, operator, return-value]

    def output(self, block: Block) -> int:
        """Return the index of a block in the output."""
        if self.of_edge is not None:
            return self.of_edge[1][block]
        return block[0] if self.is_pair else block % self.parts if self.is_alone[1] else block  # type: ignore[index, operator, return-value]


def segment(home: Home) -> Segment:
    """Return the segment of one block in its home."""
    return home[0], home[1], 1


def is_apart(counts: Counts) -> bool:
    """Return whether blocks of the input or output are not adjacent, or not in order."""
    if not isinstance(counts, Shares):
        return False
    sides = (counts.sends, counts.send_at), (counts.receives, counts.recv_at)
    return any(at + n != later for sizes, places in sides for at, n, later in zip(places, sizes, places[1:]))
