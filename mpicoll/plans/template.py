"""Bind templates to counts: a template is a plan in which blocks have no sizes yet.

A template has the rows and steps of a plan. Its segments are ranges of entries. An entry is the place of one block in
the input, the output or scratch; entries are numbered in the order of memory. `bind` is compiled code that computes the
offset of each entry from the sizes of blocks, in time linear in the entries. So calls with different counts share one
template.

Tables (int64):
    rows     kind, peer, first segment, end segment, entry of the stage or -1
    segments base, first entry, number of entries
    entries  number of the block, whether it contains its codes; those of input and output come first
    events   (first entry, end entry) allocates a region of scratch, (first entry, FREED) frees it, (0, STRAND) begins a
             strand
    steps, strands   as in a plan
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import numpy as np

from ..kernels.cache import jit
from ..kernels.deferred import njit
from ..kernels.memory import address_of, line, table
from ..schedules.collectives import Block
from . import plan
from .plan import OBJECT_BYTES, RECV, WHOLE, Coding, Layout, Plan, align

FREED, STRAND = -1, -2
NUMBER, IS_CODED = range(2)  # columns of entries
SLICE, CODE_SLICE = range(2)  # indices in `scalars`
# the arrays of a binding, in order
ROWS, SEGMENTS, ENTRIES, EVENTS, SIZES, CODES, PLACES = range(7)
BOUND_ROWS, BOUND_SEGMENTS, AT, REGION_SIZES, FREE, SCALARS = range(7, 13)
SOURCES = (__file__, str(plan.__file__))


@dataclass(frozen=True, eq=False)
class Template:
    """The tables of a template.

    `blocks` are the names of blocks by number. The first `inputs` entries are of the input, the entries from there to
    `places` of the output. input_blocks and output_blocks map those in use to their blocks.
    """

    rows: np.ndarray
    segments: np.ndarray
    entries: np.ndarray
    events: np.ndarray
    steps: np.ndarray
    strands: np.ndarray
    most_messages: int
    blocks: tuple[Block, ...]
    places: int
    inputs: int
    input_blocks: dict[int, Block]
    output_blocks: dict[int, Block]
    idle: list[Binding] = field(default_factory=list)  # reused by the next plans

    def take_binding(self) -> Binding:
        """Return a binding that no other thread uses; append it to idle afterwards."""
        try:
            return self.idle.pop()
        except IndexError:
            return Binding(self)

    @property
    def nbytes(self) -> int:
        """Return the approximate memory of the tables and of a binding."""
        tables = self.rows, self.segments, self.entries, self.events, self.steps, self.strands
        return OBJECT_BYTES + 3 * sum(array.nbytes for array in tables)


class Binding:
    """The arrays that bind() reads and writes: rows and segments of a plan, in the form that engines run.

    Set `sizes` (and `codes`, with a codec) by number of block, and `places` by entry, then call `bind`.
    """

    def __init__(self, template: Template) -> None:
        blocks, entries = len(template.blocks), len(template.entries)
        rows, segments = len(template.rows), len(template.segments)
        lengths = blocks, blocks, template.places, 6 * rows, 4 * segments, entries, entries, 2 * (entries + 1), 2
        ends = list(accumulate(lengths, initial=0))
        memory = np.zeros(ends[-1], np.int64)  # of all arrays, since it takes long to ask an array for its address
        parts = [memory[first:end] for first, end in pairwise(ends)]
        self.sizes, self.codes, self.places, self.scalars = *parts[:3], parts[-1]
        self.rows, self.segments = parts[3].reshape(rows, 6), parts[4].reshape(segments, 4)
        self.rows[:, :-1], self.segments[:, :-1] = template.rows, template.segments
        self.scalars[:] = WHOLE
        # the tables and not the template, which would be a reference cycle
        self._tables = template.rows, template.segments, template.entries, template.events
        at = address_of(memory)
        counts = *lengths[:3], rows, segments, entries, entries, entries + 1, 2
        bound = [(at + memory.itemsize * first, n) for first, n in zip(ends, counts)]
        self._arrays = np.array([*((address_of(table), len(table)) for table in self._tables), *bound], np.int64)
        self.at = address_of(self._arrays)

    def bind(self, slice_: int, code_slice: int) -> int:
        """Compute rows and segments, and return the bytes of scratch per lane."""
        self.scalars[:] = slice_, code_slice
        return int(bind(self.at))  # without numba, bind returns a NumPy integer


round_up = njit(align)


@njit
def allocate(free, n, peak, size):  # type: ignore[no-untyped-def]
    """Allocate `size` bytes, first fit: return their offset, the number of free regions, and the peak."""
    for i in range(n):
        if free[i, 1] >= size:
            offset = free[i, 0]
            free[i, 0] += size
            free[i, 1] -= size
            if free[i, 1] == 0:
                n -= 1
                for j in range(i, n):
                    free[j, 0], free[j, 1] = free[j + 1, 0], free[j + 1, 1]
            return offset, n, peak
    if n > 0 and free[n - 1, 0] + free[n - 1, 1] == peak:
        n -= 1
        return free[n, 0], n, free[n, 0] + size
    return peak, n, peak + size


@njit
def release(free, n, offset, size):  # type: ignore[no-untyped-def]
    """Free a region, joined with free neighbours, and return the number of free regions."""
    i = n
    while i > 0 and free[i - 1, 0] > offset:
        i -= 1
    follows = i > 0 and free[i - 1, 0] + free[i - 1, 1] == offset
    precedes = i < n and offset + size == free[i, 0]
    if follows:
        free[i - 1, 1] += size + (free[i, 1] if precedes else 0)
        if not precedes:
            return n
        for j in range(i, n - 1):
            free[j, 0], free[j, 1] = free[j + 1, 0], free[j + 1, 1]
        return n - 1
    if precedes:
        free[i, 0] = offset
        free[i, 1] += size
        return n
    for j in range(n, i, -1):
        free[j, 0], free[j, 1] = free[j - 1, 0], free[j - 1, 1]
    free[i, 0], free[i, 1] = offset, size
    return n + 1


@njit
def size_of(entries, sizes, codes, e):  # type: ignore[no-untyped-def]
    """Return the bytes of an entry's block, or of its codes."""
    return codes[entries[e, NUMBER]] if entries[e, IS_CODED] else sizes[entries[e, NUMBER]]


@njit
def bind_segments(segments, bound, entries, sizes, codes, at):  # type: ignore[no-untyped-def]
    """Compute offsets and lengths of segments from the offsets of entries."""
    for s in range(len(segments)):
        first = segments[s, 1]
        last = first + segments[s, 2] - 1
        bound[s, 1] = at[first]
        bound[s, 2] = at[last] - at[first] + size_of(entries, sizes, codes, last)


@njit
def bind_tables(arrays):  # type: ignore[no-untyped-def]
    """Compute the offsets of entries, then rows and segments; return the bytes of scratch per lane."""
    entries, events = table(arrays[ENTRIES, 0], arrays[ENTRIES, 1], 2), table(arrays[EVENTS, 0], arrays[EVENTS, 1], 2)
    sizes, codes = line(arrays[SIZES, 0], arrays[SIZES, 1]), line(arrays[CODES, 0], arrays[CODES, 1])
    places, at = line(arrays[PLACES, 0], arrays[PLACES, 1]), line(arrays[AT, 0], arrays[AT, 1])
    region_sizes, scalars = line(arrays[REGION_SIZES, 0], arrays[REGION_SIZES, 1]), line(arrays[SCALARS, 0], 2)
    free = table(arrays[FREE, 0], arrays[FREE, 1], 2)
    peak, n = 0, 0
    for e in range(len(places)):
        at[e] = places[e]
    for i in range(len(events)):
        first, end = events[i, 0], events[i, 1]
        if end == STRAND:
            n = 0
        elif end == FREED:
            if region_sizes[first] > 0:
                n = release(free, n, at[first], region_sizes[first])
        else:
            total = 0
            for e in range(first, end):
                total += min(size_of(entries, sizes, codes, e), scalars[CODE_SLICE if entries[e, IS_CODED] else SLICE])
            region_sizes[first] = round_up(total)
            offset, n, peak = allocate(free, n, peak, region_sizes[first])
            for e in range(first, end):
                at[e] = offset
                most = scalars[CODE_SLICE if entries[e, IS_CODED] else SLICE]
                offset += min(size_of(entries, sizes, codes, e), most)
    bind_segments(
        table(arrays[SEGMENTS, 0], arrays[SEGMENTS, 1], 3),
        table(arrays[BOUND_SEGMENTS, 0], arrays[BOUND_SEGMENTS, 1], 4),
        entries, sizes, codes, at,
    )  # fmt: skip
    rows = table(arrays[ROWS, 0], arrays[ROWS, 1], 5)
    bound_rows = table(arrays[BOUND_ROWS, 0], arrays[BOUND_ROWS, 1], 6)
    for r in range(len(rows)):
        bound_rows[r, 4] = at[rows[r, 4]] if rows[r, 4] >= 0 else -1
    return peak


@jit("int64(int64)", also=SOURCES)
def bind(at):  # type: ignore[no-untyped-def]
    """Call bind_tables() on the arrays of the Binding with this `at`; the fast path also calls this, by its address."""
    return bind_tables(table(at, SCALARS + 1, 2))


def bound(
    template: Template,
    memory: Layout,
    slice_: int,
    lanes: int,
    window: int,
    itemsize: int,
    codec: Coding | None,
) -> Plan:
    """Return the plan of a template for these sizes and offsets of blocks."""
    code_slice, coding = WHOLE, (1, 0)
    binding = template.take_binding()
    binding.sizes[:] = lengths = list(map(memory.size, template.blocks))
    if codec is not None:
        binding.codes[:] = [codec.nbytes(size // itemsize) for size in lengths]
        coding = codec.group, codec.nbytes(codec.group)
        if lanes > 1:
            code_slice = codec.nbytes(slice_ // itemsize)
    for at, block in template.input_blocks.items():
        binding.places[at] = memory.input_at(block)
    for at, block in template.output_blocks.items():
        binding.places[at] = memory.output_at(block)
    lane_scratch = binding.bind(slice_, code_slice)
    rows, segments, steps = binding.rows[:, :-1].copy(), binding.segments[:, :-1].copy(), template.steps
    template.idle.append(binding)
    most = template.most_messages
    if not segments[:, 2].all():
        rows, segments, steps = _without_empty_blocks(rows, segments, steps)
        most = most_messages(rows, steps)
    return Plan(rows, segments, steps, template.strands, slice_, lanes, window, lane_scratch, most, itemsize, *coding)


def _without_empty_blocks(
    rows: np.ndarray, segments: np.ndarray, steps: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tables without empty segments, and without rows that had only those.

    A message that never had a segment, which is a token, remains.
    """
    full = segments[:, 2] > 0
    before = np.append(0, np.cumsum(full))
    first, end = before[rows[:, 2]], before[rows[:, 3]]
    kept = (first < end) | (rows[:, 2] == rows[:, 3])
    rows = np.column_stack([rows[:, :2], first, end, np.where(end - first > 1, rows[:, 4], -1)])[kept]
    return rows, segments[full], np.append(0, np.cumsum(kept))[steps]


def most_messages(rows: np.ndarray, steps: np.ndarray) -> int:
    """Return the largest number of messages in a step."""
    before = np.append(0, np.cumsum(rows[:, 0] <= RECV))
    return int((before[steps[:, 1]] - before[steps[:, 0]]).max(initial=0))
