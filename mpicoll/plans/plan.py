"""Lowers one rank's program to a flat table that an engine runs as it stands.

A plan is made once per (schedule, rank, counts, element size, placement, chunk, window) and cached. Its
rows say what to post and what to fold; offsets are those of chunk 0, and one rule moves them to any other:

    INPUT, OUTPUT   offset + lane * slice      (a chunk is a slice of every block)
    SCRATCH         offset + slot * lane_scratch,  slot = lane mod window

and a segment's length in a lane is what that slice leaves of its block. A block is read from the input
until it is first written, so no copy is made that is not needed; it is written to the output where this
rank keeps it, else to scratch from its first receive to its last use.

Tables (int64):
    rows     kind, peer, first segment, end segment, stage
    segments base, offset, length
    steps    first row, end of the rows to post, end row
    strands  first step, end step
SEND and RECV of several segments go through a contiguous stage at that scratch offset (else -1); a RECV's
segments are the places in that stage where blocks lie when their chunk is whole, so shorter ones are
spread out on arrival. FOLD's first segment is the destination, the others its operands from left to
right; with one operand it is a copy. It may overwrite its first operand when that lies in scratch.
LAST is a FOLD whose result is then divided by the number of ranks, or, with one operand, a copy divided on its
way, perhaps in its own place. It occurs in plans of averages only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..schedules import blocks as parts
from ..schedules.collectives import Block, at_namesake
from ..schedules.schedule import Schedule

SEND, RECV, FOLD, LAST = range(4)
IN, OUT, SCRATCH = range(3)
ALIGN = 64
REQUEST_BYTES = 32  # of a message in flight: its request and its status, about
OBJECT_BYTES = 4096  # of what is there once: arrays, tuples, the objects around them, about
MAX_MESSAGE = 1 << 30
WHOLE = 1 << 62  # the slice of a plan with one lane: joined segments are never cut
WINDOW = 2  # chunks in flight where nothing else is said: one is looked after while the next is on its way
MAX_WINDOW, MAX_STRANDS, SEQUENCES = 32, 8, 127
TAGS = 1 << 15  # the smallest tag space MPI promises
NOTE_TAGS = range(SEQUENCES * MAX_STRANDS * MAX_WINDOW, TAGS)  # what no plan uses: for notes between ranks


def tag(sequence: int, strand: int, slot: int) -> int:
    """Return the tag of one lane: lanes of a slot follow each other, so their messages match in order."""
    return ((sequence % SEQUENCES) * MAX_STRANDS + strand) * MAX_WINDOW + slot


@dataclass(frozen=True)
class Shares:
    """One rank's blocks where they have sizes and places of their own, in bytes.

    sends and receives are the sizes of the blocks it starts and ends with, in the order of Schedule.starts and
    .ends, send_at and recv_at their places in input and output. every has the sizes of all blocks, in the order
    of Schedule.blocks, and is equal on all ranks; None where this rank knows its own alone, which is enough for
    direct algorithms.
    """

    sends: tuple[int, ...]
    receives: tuple[int, ...]
    send_at: tuple[int, ...]
    recv_at: tuple[int, ...]
    every: tuple[int, ...] | None = None


Counts = int | tuple[int, ...] | Shares


@dataclass(frozen=True)
class Layout:
    """Where this rank's blocks lie, in bytes: their sizes and their places in its input and output."""

    size: Callable[[Block], int]
    input_at: Callable[[Block], int]
    output_at: Callable[[Block], int]
    largest: int
    total: int
    in_place: bool


def layout(schedule: Schedule, counts: Counts, itemsize: int, in_place: bool, rank: int = 0) -> Layout:
    """Return the memory of one rank in a collective call: n elements one behind the other, or p shares of them.

    counts is the whole vector's elements where blocks are parts of a vector, each rank's share (one for
    all, or a tuple) where they are named after ranks, the elements of one pair in an alltoall; or this
    rank's Shares, the only ones that differ from rank to rank.
    """
    naming, p = schedule.collective.naming, schedule.p
    if isinstance(counts, Shares):
        return _layout_of_shares(schedule, counts, in_place, rank)
    if naming == "pair":
        assert isinstance(counts, int)
        size = counts * itemsize
        return Layout(lambda b: size, lambda b: b[1] * size, lambda b: b[0] * size, size, size * p, in_place)  # type: ignore[index]
    if naming == "vector":
        assert isinstance(counts, int)
        lengths = [x * itemsize for x in parts.sizes(counts, len(schedule.blocks))]
    else:
        lengths = [x * itemsize for x in ((counts,) * p if isinstance(counts, int) else counts)]
    at = parts.offsets(lengths)
    length_of: Callable[[Any], int] = lengths.__getitem__
    spread: Callable[[Any], int] = at.__getitem__
    alone: Callable[[Any], int] = lambda b: 0
    return Layout(
        length_of,
        alone if schedule.collective.starts is at_namesake else spread,
        alone if schedule.collective.ends is at_namesake else spread,
        max(lengths, default=0),
        sum(lengths),
        in_place,
    )


def _layout_of_shares(schedule: Schedule, shares: Shares, in_place: bool, rank: int) -> Layout:
    starts, ends = schedule.starts(rank), schedule.ends(rank)
    if shares.every is None:
        known = {**dict(zip(ends, shares.receives, strict=True)), **dict(zip(starts, shares.sends, strict=True))}
    else:
        known = dict(zip(schedule.blocks, shares.every, strict=True))
    return Layout(
        known.__getitem__,
        dict(zip(starts, shares.send_at, strict=True)).__getitem__,
        dict(zip(ends, shares.recv_at, strict=True)).__getitem__,
        max(known.values(), default=0),
        sum(known.values()),
        in_place,
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """A schedule lowered for one rank, count and element size: the tables and what it takes to run them."""

    rows: np.ndarray
    segments: np.ndarray
    steps: np.ndarray
    strands: np.ndarray
    slice: int
    lanes: int
    window: int
    lane_scratch: int
    most_messages: int
    itemsize: int

    @property
    def scratch_bytes(self) -> int:
        """Memory the plan needs beside the user's buffers."""
        return self.window * self.lane_scratch

    @property
    def nbytes(self) -> int:
        """The memory of the plan itself; one execution takes about as much again."""
        lanes = len(self.strands) * self.window * max(1, self.most_messages) * REQUEST_BYTES
        return OBJECT_BYTES + self.rows.nbytes + self.segments.nbytes + self.steps.nbytes + lanes


def cut(
    schedule: Schedule, memory: Layout, counts: Counts, itemsize: int, chunk_bytes: int | None
) -> tuple[int, int]:
    """(slice in bytes, number of lanes) of a plan: see lanes_of, and lanes_of_own where counts are not known."""
    if isinstance(counts, Shares) and counts.every is None:
        return lanes_of_own(memory.largest, chunk_bytes)
    if schedule.algorithm.direct and schedule.collective.name in ("scatter", "gather", "alltoall"):
        total, most = memory.largest, 1  # the one block that two ranks share
    elif schedule.collective.naming == "pair":  # on its way a message may carry the pairs of many ranks
        total, most = memory.total * (1 if isinstance(counts, Shares) else schedule.p), schedule.p**2
    else:
        total, most = memory.total, len(schedule.blocks)
    return lanes_of(memory.largest, total, itemsize, most, chunk_bytes)


def lanes_of_own(largest: int, chunk_bytes: int | None) -> tuple[int, int]:
    """lanes_of for a rank of a direct algorithm that knows its own blocks alone: the slice is no matter of counts.

    Lanes may be fewer or more than another rank's. What two ranks send each other is in the same lanes at both, for a
    block has so many chunks and the others are empty, and these have the same tags, for lane mod min(window, lanes)
    is lane mod window for every lane there is. A message is one block.
    """
    slice_ = min(chunk_bytes or MAX_MESSAGE, MAX_MESSAGE)
    lanes = parts.chunks(largest, slice_)
    return (WHOLE, 1) if lanes == 1 else (slice_, lanes)


def lanes_of(largest: int, total: int, itemsize: int, blocks: int, chunk_bytes: int | None) -> tuple[int, int]:
    """(slice in bytes, number of lanes), the same on every rank; no message can pass MAX_MESSAGE.

    No message carries more than `total` bytes, nor more than so many blocks, the longest of which is `largest`.
    """
    wanted = largest if chunk_bytes is None else chunk_bytes
    if total > MAX_MESSAGE:
        wanted = min(wanted, MAX_MESSAGE // max(1, blocks))
    slice_ = max(itemsize, wanted // itemsize * itemsize)
    lanes = parts.chunks(largest, slice_)
    return (WHOLE, 1) if lanes == 1 else (slice_, lanes)
