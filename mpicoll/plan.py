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
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import blocks as parts
from .collectives import Block, at_namesake
from .schedule import Schedule

SEND, RECV, FOLD = range(3)
IN, OUT, SCRATCH = range(3)
ALIGN = 64
MAX_MESSAGE = 1 << 30
WHOLE = 1 << 62  # the slice of a plan with one lane: joined segments are never cut
MAX_WINDOW, MAX_STRANDS, SEQUENCES = 32, 8, 128  # their product is the smallest tag space MPI promises


def tag(sequence: int, strand: int, slot: int) -> int:
    """The tag of one lane: lanes of a slot follow each other, so their messages match in order."""
    return ((sequence % SEQUENCES) * MAX_STRANDS + strand) * MAX_WINDOW + slot


@dataclass(frozen=True)
class Layout:
    """Where this rank's blocks lie, in bytes: their sizes and their places in its input and output."""

    size: Callable[[Block], int]
    input_at: Callable[[Block], int]
    output_at: Callable[[Block], int]
    largest: int
    total: int
    in_place: bool


def layout(schedule: Schedule, counts: int | tuple[int, ...], itemsize: int, in_place: bool) -> Layout:
    """The memory of one collective call: n elements one behind the other, or p shares of them.

    counts is the whole vector's elements where blocks are parts of a vector, each rank's share (one for
    all, or a tuple) where they are named after ranks, the elements of one pair in an alltoall.
    """
    naming, p = schedule.collective.naming, schedule.p
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
    )  # type: ignore[arg-type]


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


def lanes_of(largest: int, total: int, itemsize: int, blocks: int, chunk_bytes: int | None) -> tuple[int, int]:
    """(slice in bytes, number of lanes), the same on every rank; no message can pass MAX_MESSAGE."""
    wanted = largest if chunk_bytes is None else chunk_bytes
    if total > MAX_MESSAGE:
        wanted = min(wanted, MAX_MESSAGE // max(1, blocks))
    slice_ = max(itemsize, wanted // itemsize * itemsize)
    lanes = parts.chunks(largest, slice_)
    return (WHOLE, 1) if lanes == 1 else (slice_, lanes)
