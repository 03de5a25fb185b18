"""The plan: the flat tables by which an engine runs one rank's part of a collective.

A plan is made once per (schedule, rank, counts, element size, in place or not, chunk, window), from a template that is
without counts (see template.py), and cached. Its rows say which messages to post and which blocks to reduce.
A lane is one chunk of every block. The offsets in the tables are those of lane 0; those of any other lane follow:

    INPUT, OUTPUT   offset + lane * slice
    SCRATCH         offset + slot * lane_scratch,  slot = lane mod window
    CODED           as SCRATCH, which it is; what lies there is encoded

The last lanes of a block are shorter or empty, where the block is no multiple of the slice. A block is read from the
input until it is first written, so that nothing is copied without need. It is written to the output if this rank keeps
it, else to scratch, which it has from its first receive to its last use.

Tables (int64):
    rows     kind, peer, first segment, end segment, stage
    segments base, offset, length
    steps    first row, end of the rows to post, end row
    strands  first step, end step
A SEND or RECV of several segments goes through a contiguous stage in scratch; `stage` is its offset there, else -1. The
segments of such a RECV are where its blocks lie in the stage when all chunks are whole. Shorter chunks arrive closer
together, and are moved to those places on arrival.

The first segment of a REDUCE is the destination; the others are its operands from left to right. With one operand it
is a copy. It may overwrite its first operand if that is in scratch. REDUCE_SCALE is a REDUCE whose result is divided by
the number of ranks; with one operand it is a division, perhaps in place. Only plans of averages have REDUCE_SCALE rows.

CODED blocks and their slices have as many bytes as the codec makes of them. A REDUCE decodes its coded operands, and
encodes its result if its destination is coded. `group` elements are encoded together, into group_bytes.

Where partial sums are float32 (see schedules/partial_sums.py) they are what is CODED, and all else is elements of fewer
bits: a REDUCE with a plain destination rounds, and no other does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..schedules import blocks as parts
from ..schedules.collectives import NEIGHBORHOOD, Block, at_namesake
from ..schedules.graphs import Graph
from ..schedules.ir import INPUT, REST, Local
from ..schedules.schedule import Schedule

SEND, RECV, REDUCE, REDUCE_SCALE = range(4)
IN, OUT, SCRATCH, CODED = range(4)
ALIGN = 64
REQUEST_BYTES = 32  # about what a message in flight takes: its request and its status
OBJECT_BYTES = 4096  # about what the objects of a plan take beside the tables
MAX_MESSAGE = 1 << 30
ALONE = ("scatter", "gather", "alltoall", *NEIGHBORHOOD)  # what sends one block a message where it is direct
WHOLE = 1 << 62  # the slice of a plan with one lane, longer than any segment
WINDOW = 2  # the default number of chunks in flight: the engine reduces one while the next arrives
MAX_WINDOW, MAX_STRANDS, SEQUENCES = 32, 8, 127
TAGS = 1 << 15  # the smallest tag space MPI promises
NOTE_TAGS = range(SEQUENCES * MAX_STRANDS * MAX_WINDOW, TAGS)  # no plan uses these: see diagnostics/peer_status.py


def tag(sequence: int, strand: int, slot: int) -> int:
    """Return the tag of the lanes of one slot.

    The lanes of a slot run one after the other, so their messages match in the order in which they were sent.
    """
    return ((sequence % SEQUENCES) * MAX_STRANDS + strand) * MAX_WINDOW + slot


@dataclass(frozen=True)
class Shares:
    """One rank's blocks where they have sizes and places of their own, in bytes.

    sends and receives are the sizes of the blocks it starts and ends with, in the order of Schedule.starts and
    .ends, send_at and recv_at their places in input and output. every has the sizes of all blocks, in the order
    of Schedule.blocks, or the one size of all, and is equal on all ranks; None where this rank knows its own alone,
    which is enough for direct algorithms.
    """

    sends: tuple[int, ...]
    receives: tuple[int, ...]
    send_at: tuple[int, ...]
    recv_at: tuple[int, ...]
    every: tuple[int, ...] | int | None = None


Counts = int | tuple[int, ...] | Shares


@dataclass(frozen=True)
class Layout:
    """Sizes of this rank's blocks and their offsets in its input and output, in bytes."""

    size: Callable[[Block], int]
    input_at: Callable[[Block], int]
    output_at: Callable[[Block], int]
    largest: int
    total: int
    in_place: bool


def layout(schedule: Schedule, counts: Counts, itemsize: int, in_place: bool, rank: int = 0) -> Layout:
    """Return where one rank's blocks lie in its buffers.

    counts are elements of itemsize bytes: of the whole vector where blocks are parts of it; of each rank's share (one
    number for all, or a tuple) where blocks are named after ranks; of one pair in an alltoall; of one edge between
    neighbours. A rank's Shares are in bytes instead. Only they differ from rank to rank.
    """
    naming, p = schedule.collective.naming, schedule.p
    if isinstance(counts, Shares):
        return _layout_of_shares(schedule, counts, in_place, rank)
    if naming == "pair":
        assert isinstance(counts, int)
        size = counts * itemsize
        return Layout(lambda b: size, lambda b: b[1] * size, lambda b: b[0] * size, size, size * p, in_place)  # type: ignore[index]
    if naming == "edge":
        assert isinstance(counts, int)
        size = itemsize * counts
        starts, ends = schedule.starts(rank), schedule.ends(rank)
        of_start, of_end = ({b: i * size for i, b in enumerate(blocks)} for blocks in (starts, ends))
        return Layout(lambda b: size, of_start.__getitem__, of_end.__getitem__, size, size, in_place)
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
    input_at, output_at = dict(zip(starts, shares.send_at, strict=True)), dict(zip(ends, shares.recv_at, strict=True))
    if isinstance(shares.every, int):
        of_all = shares.every
        return Layout(lambda b: of_all, input_at.__getitem__, output_at.__getitem__, of_all, of_all, in_place)
    if shares.every is None:
        known = {**dict(zip(ends, shares.receives, strict=True)), **dict(zip(starts, shares.sends, strict=True))}
    else:
        known = dict(zip(schedule.blocks, shares.every, strict=True))
    largest, total = max(known.values(), default=0), sum(known.values())
    return Layout(known.__getitem__, input_at.__getitem__, output_at.__getitem__, largest, total, in_place)


class Coding(Protocol):
    """The interface of a codec that plans need: elements encoded together, and bytes of codes."""

    @property
    def group(self) -> int:
        """Return how many elements are encoded together; the codes of whole groups are contiguous."""

    def nbytes(self, n: int) -> int:
        """Return the bytes of codes of n elements."""


@dataclass(frozen=True)
class Float32:
    """Partial sums in float32, which take the place of codes, for elements with fewer than 32 bits."""

    group: int = 1

    def nbytes(self, n: int) -> int:
        """Return the bytes of n partial sums."""
        return 4 * n


@dataclass(frozen=True, eq=False)
class PlanTables:
    """The fields that both forms of a plan share: tables, and the sizes needed to run them."""

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
    group: int = 1
    group_bytes: int = 0

    @property
    def code_slice(self) -> int:
        """Return the bytes of the codes of a slice."""
        return WHOLE if self.lanes == 1 else self.slice // self.itemsize // self.group * self.group_bytes

    @property
    def tables(self) -> tuple[np.ndarray, ...]:
        """Return rows, segments, steps and strands."""
        return self.rows, self.segments, self.steps, self.strands

    @property
    def scalars(self) -> tuple[int, ...]:
        """Return all fields but the tables, in order."""
        sizes = self.slice, self.lanes, self.window, self.lane_scratch
        return *sizes, self.most_messages, self.itemsize, self.group, self.group_bytes

    @property
    def scratch_bytes(self) -> int:
        """Return the scratch memory that the plan needs beside the user's buffers."""
        return self.window * self.lane_scratch

    @property
    def nbytes(self) -> int:
        """Return the memory of the plan itself; an execution takes about as much again."""
        lanes = len(self.strands) * self.window * max(1, self.most_messages) * REQUEST_BYTES
        return OBJECT_BYTES + self.rows.nbytes + self.segments.nbytes + self.steps.nbytes + lanes


@dataclass(frozen=True, eq=False)
class Plan(PlanTables):
    """The plan of one rank for some counts and an element size, step by step. Engines run its rolled form."""


def wider(table: np.ndarray) -> np.ndarray:
    """Return a table with a column of zeros behind the others: in the form that engines run (see rolled.py)."""
    return np.hstack([table, np.zeros((len(table), 1), np.int64)])


def is_staged(schedule: Schedule, rank: int) -> bool:
    """Return whether a call in place needs separate memory, since its result would overwrite unread input.

    reduce_scatter and alltoall write their results across their input, and some programs reread their contribution.
    """
    if schedule.collective.name in ("reduce_scatter", "alltoall"):
        return True
    ops = (op for strand in schedule.program(rank) for step in strand for op in step)
    own = (INPUT, REST)
    return any(
        op.dst.buffer in own or op.src.buffer in own if isinstance(op, Local) else op.buffer in own for op in ops
    )


def cut(
    schedule: Schedule, memory: Layout, counts: Counts, itemsize: int, chunk_bytes: int | None, widest: int = 1
) -> tuple[int, int]:
    """Return (slice in bytes, number of lanes) of a plan, whose messages may have `widest` times a block's bytes.

    See lanes_of; lanes_of_own is for ranks that know only their own counts.
    """
    if isinstance(counts, Shares) and counts.every is None:
        return lanes_of_own(memory.largest, chunk_bytes)
    if schedule.algorithm.direct and schedule.collective.name in ALONE:
        total, most = memory.largest, 1  # a message has the one block that two ranks share
    elif schedule.collective.naming == "pair":  # on its way a message may carry the pairs of many ranks
        total, most = memory.total * (1 if isinstance(counts, Shares) else schedule.p), schedule.p**2
    elif isinstance(schedule.blocks, Graph):
        most = schedule.blocks.most_forwarded
        total = memory.largest * most
    else:
        total, most = memory.total, len(schedule.blocks)
    return lanes_of(memory.largest, total, itemsize, most, chunk_bytes, MAX_MESSAGE // widest)


def lanes_of_own(largest: int, chunk_bytes: int | None) -> tuple[int, int]:
    """Return (slice in bytes, number of lanes) for a rank of a direct algorithm that knows only its own blocks.

    The slice does not depend on counts, so that all ranks have the same. The number of lanes may differ between ranks,
    which does no harm: a message carries one block, whose chunks are the same lanes at its sender and its receiver;
    and they have the same tags there, since lane mod min(window, lanes) = lane mod window for every lane < lanes.
    """
    slice_ = min(chunk_bytes or MAX_MESSAGE, MAX_MESSAGE)
    lanes = parts.chunks(largest, slice_)
    return (WHOLE, 1) if lanes == 1 else (slice_, lanes)


def lanes_of(
    largest: int, total: int, itemsize: int, blocks: int, chunk_bytes: int | None, most: int = MAX_MESSAGE
) -> tuple[int, int]:
    """Return (slice in bytes, number of lanes), the same on every rank, such that no message exceeds `most` bytes.

    total is the most bytes that a message of whole blocks carries, blocks the most blocks, largest the size in bytes
    of the longest one.
    """
    wanted = largest if chunk_bytes is None else chunk_bytes
    if total > most:
        wanted = min(wanted, most // max(1, blocks))
    slice_ = max(itemsize, wanted // itemsize * itemsize)
    lanes = parts.chunks(largest, slice_)
    return (WHOLE, 1) if lanes == 1 else (slice_, lanes)
