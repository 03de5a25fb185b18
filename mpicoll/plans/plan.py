"""Define plans: the flat tables by which an engine runs one rank's part of a collective.

A plan is computed once per (schedule, rank, counts, element size, in place or not, chunk, window) from a template
without counts (see template.py), and cached. Its rows are the messages to post and the blocks to reduce.
A lane is one chunk of every block. The tables contain the offsets of lane 0; those of other lanes are:

    IN, OUT   offset + lane * slice
    SCRATCH   offset + slot * lane_scratch,  slot = lane mod window
    CODED     as SCRATCH, for encoded blocks

If a block is no multiple of the slice, its last lanes are shorter or empty. To avoid copies, a block is read from the
input until it is first written. It is written to the output if this rank keeps it, else to scratch, which it occupies
from its first receive to its last use.

Tables (int64):
    rows     kind, peer, first segment, end segment, stage
    segments base, offset, length
    steps    first row, end of the rows to post, end row
    strands  first step, end step
A SEND or RECV of several segments uses a contiguous stage in scratch; `stage` is its offset there, else -1. The
segments of such a RECV are the places of its blocks in the stage if all chunks are whole. Shorter chunks arrive packed,
and are moved to those places on arrival.

The first segment of a REDUCE is the destination; the others are its operands from left to right. With one operand it
is a copy. It may overwrite its first operand if that is in scratch. REDUCE_SCALE is a REDUCE whose result is divided by
the number of ranks; with one operand it is a division, perhaps in place. Only plans of averages have REDUCE_SCALE rows.

The codec determines the bytes of CODED blocks and of their slices. A REDUCE decodes its coded operands, and encodes its
result if its destination is coded. `group` elements are encoded together, into group_bytes.

If partial sums are float32 (see schedules/partial_sums.py), they are the CODED blocks, and all others are elements with
fewer bits. A REDUCE whose destination is not coded rounds, and no other does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
REQUEST_BYTES = 32  # approximate size of the request and status of a message
OBJECT_BYTES = 4096  # approximate size of the objects of a plan, without the tables
MAX_MESSAGE = 1 << 30
# collectives whose direct algorithms send one block per message
ONE_BLOCK_MESSAGES = ("scatter", "gather", "alltoall", *NEIGHBORHOOD)
WHOLE = 1 << 62  # the slice of a plan with one lane, longer than any segment
WINDOW = 2  # default number of chunks in flight: the engine reduces one while the next arrives
MAX_WINDOW, MAX_STRANDS, SEQUENCES = 32, 8, 127
TAGS = 1 << 15  # the smallest tag space that MPI allows
NOTE_TAGS = range(SEQUENCES * MAX_STRANDS * MAX_WINDOW, TAGS)  # no plan uses these: see diagnostics/peer_status.py


def align(number: int) -> int:
    """Return a length or an address rounded up to a multiple of ALIGN.

    >>> align(0), align(1), align(64)
    (0, 64, 64)
    """
    return (number + ALIGN - 1) // ALIGN * ALIGN


def tag(sequence: int, strand: int, slot: int) -> int:
    """Return the tag of the lanes of one slot; they run one after the other, so their messages match in order."""
    return ((sequence % SEQUENCES) * MAX_STRANDS + strand) * MAX_WINDOW + slot


@dataclass(frozen=True)
class Shares:
    """The sizes and offsets of one rank's blocks, in bytes, for collectives in which they vary.

    - sends, receives: the sizes of the blocks it starts and ends with, in the order of Schedule.starts and .ends.
    - send_at, recv_at: their offsets in input and output.
    - every: the sizes of all blocks in the order of Schedule.blocks, or one size for all; equal on all ranks. None if
      this rank knows only its own blocks, which is enough for direct algorithms.

    If the schedule cuts the shares of ranks in parts, these are the sizes and offsets of whole shares.
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
    """Return the sizes and offsets of one rank's blocks in its buffers.

    counts are in elements of itemsize bytes: of the whole vector if blocks are parts of it; of each rank's share (one
    number for all, or a tuple) if blocks are those or parts of them; of one pair in an alltoall; of one edge between
    neighbours. Shares are in bytes, and the only counts that differ from rank to rank.
    """
    naming, p, n = schedule.collective.naming, schedule.p, schedule.parts
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
        shares = (counts,) * p if isinstance(counts, int) else counts
        lengths = [x * itemsize for x in _parts(shares, n)]
    at = parts.offsets(lengths)
    length_of: Callable[[Any], int] = lengths.__getitem__
    spread: Callable[[Any], int] = at.__getitem__
    alone: Callable[[Any], int] = lambda b: at[b] - at[b - b % n]
    return Layout(
        length_of,
        alone if schedule.collective.starts is at_namesake else spread,
        alone if schedule.collective.ends is at_namesake else spread,
        max(lengths, default=0),
        sum(lengths),
        in_place,
    )


def _parts(sizes: Sequence[int], n: int) -> list[int]:
    """Return the sizes of the n parts of each block."""
    return [part for size in sizes for part in parts.sizes(size, n)] if n > 1 else list(sizes)


def _layout_of_shares(schedule: Schedule, shares: Shares, in_place: bool, rank: int) -> Layout:
    starts, ends, n = schedule.starts(rank), schedule.ends(rank), schedule.parts
    sends, receives = _parts(shares.sends, n), _parts(shares.receives, n)
    input_at = dict(zip(starts, _places(shares.send_at, sends, n), strict=True))
    output_at = dict(zip(ends, _places(shares.recv_at, receives, n), strict=True))
    if isinstance(shares.every, int):
        of_all = shares.every
        return Layout(lambda b: of_all, input_at.__getitem__, output_at.__getitem__, of_all, of_all, in_place)
    if shares.every is None:
        known = {**dict(zip(ends, receives, strict=True)), **dict(zip(starts, sends, strict=True))}
    else:
        known = dict(zip(schedule.blocks, _parts(shares.every, n), strict=True))
    largest, total = max(known.values(), default=0), sum(known.values())
    return Layout(known.__getitem__, input_at.__getitem__, output_at.__getitem__, largest, total, in_place)


def _places(offsets: Sequence[int], sizes: Sequence[int], n: int) -> list[int]:
    """Return the offsets of the n parts of each block, which has these offsets, from the sizes of the parts."""
    return [at + x for i, at in enumerate(offsets) for x in parts.offsets(list(sizes[i * n : (i + 1) * n]))]


class Coding(Protocol):
    """The part of a codec's interface that plans need."""

    @property
    def group(self) -> int:
        """Return the number of elements encoded together; the codes of whole groups are contiguous."""

    def nbytes(self, n: int) -> int:
        """Return the bytes of the codes of n elements."""


@dataclass(frozen=True)
class Float32:
    """The format of partial sums in float32, which replace codes in plans for elements with fewer than 32 bits."""

    group: int = 1

    def nbytes(self, n: int) -> int:
        """Return the bytes of n partial sums."""
        return 4 * n


@dataclass(frozen=True, eq=False)
class PlanTables:
    """The tables of a plan and the sizes that engines need, common to Plan and RolledPlan."""

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
        """Return the scratch memory that the plan needs besides the user's buffers."""
        return self.window * self.lane_scratch

    @property
    def nbytes(self) -> int:
        """Return the approximate memory of the plan and the requests of its execution."""
        lanes = len(self.strands) * self.window * max(1, self.most_messages) * REQUEST_BYTES
        return OBJECT_BYTES + self.rows.nbytes + self.segments.nbytes + self.steps.nbytes + lanes


@dataclass(frozen=True, eq=False)
class Plan(PlanTables):
    """The plan of one rank, with a row of `steps` for every step. Engines run its rolled form."""


def add_stride_column(table: np.ndarray) -> np.ndarray:
    """Return a table with a last column of zeros, the strides that engines expect (see rolled.py)."""
    wider = np.zeros((len(table), table.shape[1] + 1), np.int64)
    wider[:, :-1] = table
    return wider


def is_staged(schedule: Schedule, rank: int) -> bool:
    """Return whether an in-place call needs separate memory, since its result would overwrite unread input.

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
    """Return (slice in bytes, number of lanes) of a plan; codes may be `widest` times as long as their elements.

    See lanes_of. Ranks that know only their own counts use lanes_of_own.
    """
    if isinstance(counts, Shares) and counts.every is None:
        return lanes_of_own(memory.largest, chunk_bytes)
    if schedule.algorithm.direct and schedule.collective.name in ONE_BLOCK_MESSAGES:
        total, most = memory.largest, 1  # a message contains the one block that its two ranks share
    elif schedule.collective.naming == "pair":  # a forwarded message may contain the pairs of many ranks
        total, most = memory.total * (1 if isinstance(counts, Shares) else schedule.p), schedule.p**2
    elif isinstance(schedule.blocks, Graph):
        most = schedule.blocks.most_forwarded
        total = memory.largest * most
    else:
        total, most = memory.total, len(schedule.blocks)
    return lanes_of(memory.largest, total, itemsize, most, chunk_bytes, MAX_MESSAGE // widest)


def lanes_of_own(largest: int, chunk_bytes: int | None) -> tuple[int, int]:
    """Return (slice in bytes, number of lanes) for a rank of a direct algorithm that knows only its own blocks.

    The slice does not depend on counts, so it is equal on all ranks. The number of lanes may differ, which is harmless.
    A message contains one block, whose chunks are the same lanes on its sender and its receiver. They have equal tags
    there, since lane mod min(window, lanes) = lane mod window for every lane < lanes.
    """
    slice_ = min(chunk_bytes or MAX_MESSAGE, MAX_MESSAGE)
    lanes = parts.chunks(largest, slice_)
    return (WHOLE, 1) if lanes == 1 else (slice_, lanes)


def lanes_of(
    largest: int, total: int, itemsize: int, blocks: int, chunk_bytes: int | None, most: int = MAX_MESSAGE
) -> tuple[int, int]:
    """Return (slice in bytes, number of lanes), equal on every rank, such that no message exceeds `most` bytes.

    A message of whole blocks has at most `total` bytes and `blocks` blocks. The longest block has `largest` bytes.
    """
    wanted = largest if chunk_bytes is None else chunk_bytes
    if total > most:
        wanted = min(wanted, most // max(1, blocks))
    slice_ = max(itemsize, wanted // itemsize * itemsize)
    lanes = parts.chunks(largest, slice_)
    return (WHOLE, 1) if lanes == 1 else (slice_, lanes)
