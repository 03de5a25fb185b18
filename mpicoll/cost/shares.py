"""Sizes of blocks where ranks' shares of the vector differ, as in an allgatherv: for simulations.

Blocks are cut as plans cut them: every chunk but the last of a block has `slice` bytes, and a shorter block has fewer
chunks. Sizes are whole bytes, so that sums are the same in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

import numpy as np

from ..errors import ArgumentError
from ..schedules import blocks as parts
from ..schedules.collectives import Block
from ..schedules.ir import Local, Send
from ..schedules.schedule import Schedule
from .messages import MESSAGES, OPS, Messages
from .profile import local_blocks

Lists = tuple[np.ndarray, np.ndarray]  # blocks of all lists, and the ends of the lists, beginning with 0


class UnequalBlocks:
    """The sizes of a schedule's blocks and of their chunks.

    nbytes: of the whole vector. shares: of every rank, as counts in any unit, shape (p,). chunk_bytes: None leaves
    blocks whole. Raises ArgumentError for shares that are no counts of p ranks, or if blocks do not belong to ranks.
    """

    def __init__(self, schedule: Schedule, nbytes: float, shares: Sequence[int], chunk_bytes: int | None) -> None:
        if schedule.collective.naming != "rank":
            raise ArgumentError(f"{schedule.collective.name} has no shares of ranks; leave out shares")
        if len(shares) != schedule.p or min(shares) < 0 or not any(shares):
            raise ArgumentError(f"shares are {list(shares)!r:.80}; give {schedule.p} counts >= 0, not all of them 0")
        self.schedule, total = schedule, sum(shares)
        ends = [int(nbytes) * so_far // total for so_far in accumulate(shares, initial=0)]
        lengths = [end - begin for begin, end in pairwise(ends)]
        self.sizes = [size for length in lengths for size in parts.sizes(length, schedule.parts)]
        largest = max(self.sizes)
        self.chunks = parts.chunks(largest, chunk_bytes) if chunk_bytes else 1
        self.slice = max(1, -(-largest // self.chunks))

    def moved(self, blocks: Iterable[Block], chunk: int) -> int:
        """Return the bytes of blocks in a chunk."""
        before = chunk * self.slice
        return sum(min(max(self.sizes[block] - before, 0), self.slice) for block in blocks)  # type: ignore[call-overload]

    def volumes(self, messages: Messages) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the bytes of messages, whether each is sent, and the bytes that steps reduce and copy, by chunk.

        messages: those of the schedule. Shapes (chunks, messages) twice, then (chunks, steps) twice. Plans send no
        message whose blocks are empty, but a token, which has no blocks.
        """
        sent, reduced, copied = _lists(self.schedule)
        before = np.arange(self.chunks)[:, None] * self.slice
        sizes = np.clip(np.array(self.sizes)[None] - before, 0, self.slice)
        ops = messages.words[messages.words[OPS] : messages.words[MESSAGES]]
        order = np.argsort(ops[ops % 2 == 1] // 2)
        nbytes = _sums(sizes, sent)[:, order]
        is_posted = (nbytes > 0) | (np.diff(sent[1]) == 0)[order]
        return nbytes, is_posted, _sums(sizes, reduced), _sums(sizes, copied)


def _sums(sizes: np.ndarray, lists: Lists) -> np.ndarray:
    """Return the bytes of every list of blocks in every chunk, shape (chunks, lists)."""
    blocks, ends = lists
    total = np.zeros((len(sizes), len(blocks) + 1), np.int64)
    np.cumsum(sizes[:, blocks], axis=1, out=total[:, 1:])
    sums: np.ndarray = np.diff(total[:, ends], axis=1)
    return sums


@lru_cache(maxsize=1)  # a model asks for one algorithm at several sizes
def _lists(schedule: Schedule) -> tuple[Lists, Lists, Lists]:
    """Return the blocks of each message in the order of sends, and those that each step reduces, and copies."""
    sent: list[Sequence[Block]] = []
    reduced: list[Sequence[Block]] = []
    copied: list[Sequence[Block]] = []
    for step in (step for rank in range(schedule.p) for strand in schedule.program(rank) for step in strand):
        sent += [op.blocks for op in step if not isinstance(op, Local) and isinstance(op, Send)]
        for lists, own in zip((reduced, copied), local_blocks(step)):
            lists.append([block for blocks in own for block in blocks])
    return _flat(sent), _flat(reduced), _flat(copied)


def _flat(lists: Sequence[Sequence[Block]]) -> Lists:
    blocks = np.array([block for listed in lists for block in listed], np.int64)
    return blocks, np.array([0, *accumulate(map(len, lists))], np.int64)
