"""The local work of a plan's rows, jitted and GIL-free: where segments are, packing, spreading, folding.

Both engines run these; they differ in who posts the messages. A plan's geometry is the int64 array
[slice, lanes, window, lane_scratch, itemsize], bases the addresses of input, output and scratch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .. import kernels
from ..kernels.cache import jit
from ..kernels.deferred import njit
from ..kernels.memory import addresses, line, table
from ..kernels.serving import call_address, copy_bytes, move_bytes
from ..plans import plan, rolled
from ..plans.plan import FOLD, LAST, RECV, SCRATCH, PlanTables
from ..plans.rolled import OFFSET_STRIDE

# sources whose code is compiled into what is jitted here
_KERNELS = (str(Path(kernels.__path__[0]) / name) for name in ("pack.py", "reduce.py"))
INLINED = (*_KERNELS, str(plan.__file__), str(rolled.__file__))
STRIP = 16 << 10  # bytes: with an operand's, well within a first-level cache
# the arrays that a row's local work takes
ROWS, SEGMENTS, GEOMETRY, BASES, MESSAGE = range(5)


def geometry(plan: PlanTables) -> np.ndarray:
    """Return the numbers of a plan that place a segment in a lane."""
    return np.array([plan.slice, plan.lanes, plan.window, plan.lane_scratch, plan.itemsize], np.int64)


@njit
def place(segments, geometry, bases, s, lane, slot, turn):  # type: ignore[no-untyped-def]
    """Address of segment s in a lane, in a turn of the loop that its step is in."""
    base = segments[s, 0]
    shift = slot * geometry[3] if base == SCRATCH else lane * geometry[0]
    return bases[base] + segments[s, 1] + segments[s, OFFSET_STRIDE] * turn + shift


@njit
def length(segments, geometry, s, lane):  # type: ignore[no-untyped-def]
    """Bytes of segment s in a lane: what the lane's slice leaves of the block."""
    return max(0, min(geometry[0], segments[s, 2] - lane * geometry[0]))


@njit
def total(segments, geometry, first, end, lane):  # type: ignore[no-untyped-def]
    """Bytes of a message in a lane."""
    n = 0
    for s in range(first, end):
        n += length(segments, geometry, s, lane)
    return n


@njit
def pack(segments, geometry, bases, first, end, stage, lane, slot, turn):  # type: ignore[no-untyped-def]
    """Lay the segments of a message one behind the other at the stage."""
    at = stage
    for s in range(first, end):
        n = length(segments, geometry, s, lane)
        copy_bytes(at, place(segments, geometry, bases, s, lane, slot, turn), n)
        at += n


@njit
def spread(segments, geometry, bases, first, end, stage, lane, slot, turn):  # type: ignore[no-untyped-def]
    """Move what arrived in one piece to its places, last first: they lie further on in the same stage."""
    at = stage + total(segments, geometry, first, end, lane)
    for s in range(end - 1, first - 1, -1):
        n = length(segments, geometry, s, lane)
        at -= n
        there = place(segments, geometry, bases, s, lane, slot, turn)
        if there != at:
            move_bytes(there, at, n)


@njit
def fold(segments, geometry, bases, first, end, lane, slot, turn, kernel, scale, divisor):  # type: ignore[no-untyped-def]
    """Destination = operands from left to right, divided unless scale is 0; a copy where there is one operand.

    Strip by strip where a result is worked on again, so that it stays in the cache: each operand is read once.
    """
    n = length(segments, geometry, first, lane)
    if n == 0:
        return
    to = place(segments, geometry, bases, first, lane, slot, turn)
    left = place(segments, geometry, bases, first + 1, lane, slot, turn)
    if end - first == 2:
        if scale != 0:
            call_address(scale, to, left, divisor, n // geometry[4])
        elif to != left:
            copy_bytes(to, left, n)
        return
    strip = n
    if end - first > 3 or scale != 0:
        strip = max(1, STRIP // geometry[4]) * geometry[4]
    for at in range(0, n, strip):
        elements = min(strip, n - at) // geometry[4]
        fold_strip(segments, geometry, bases, first, end, lane, slot, turn, kernel, at, elements)
        if scale != 0:
            call_address(scale, to + at, to + at, divisor, elements)


@njit
def fold_strip(segments, geometry, bases, first, end, lane, slot, turn, kernel, at, elements):  # type: ignore[no-untyped-def]
    """Fold some elements as fold() does, `at` bytes on."""
    to = place(segments, geometry, bases, first, lane, slot, turn) + at
    left = place(segments, geometry, bases, first + 1, lane, slot, turn) + at
    into = to
    for s in range(first + 3, end):
        if place(segments, geometry, bases, s, lane, slot, turn) + at == to:
            into = left  # the destination is still to be read: gather in the first operand, which is scratch then
    for s in range(first + 2, end):
        target = to if s == end - 1 else into
        call_address(kernel, target, left, place(segments, geometry, bases, s, lane, slot, turn) + at, elements)
        left = target


@njit
def finish(rows, segments, geometry, bases, first, posts, end, lane, slot, turn, kernel, scale, divisor):  # type: ignore[no-untyped-def]
    """Do what is left of a step once its messages are in."""
    for r in range(first, posts):
        if rows[r, 0] == RECV and rows[r, 4] >= 0:
            stage = bases[SCRATCH] + rows[r, 4] + slot * geometry[3]
            spread(segments, geometry, bases, rows[r, 2], rows[r, 3], stage, lane, slot, turn)
    for r in range(posts, end):
        by = scale if rows[r, 0] == LAST else 0
        fold(segments, geometry, bases, rows[r, 2], rows[r, 3], lane, slot, turn, kernel, by, divisor)


@njit
def prepare(rows, segments, geometry, bases, r, lane, slot, turn, kernel):  # type: ignore[no-untyped-def]
    """Get the message of row r ready, or do its local work: (address, bytes)."""
    first, end, stage = rows[r, 2], rows[r, 3], rows[r, 4]
    if rows[r, 0] == FOLD:
        fold(segments, geometry, bases, first, end, lane, slot, turn, kernel, 0, 0)
        return 0, 0
    if first == end:
        return 0, 0
    if stage < 0:
        return place(segments, geometry, bases, first, lane, slot, turn), length(segments, geometry, first, lane)
    at = bases[SCRATCH] + stage + slot * geometry[3]
    if rows[r, 0] != RECV:
        pack(segments, geometry, bases, first, end, at, lane, slot, turn)
    return at, total(segments, geometry, first, end, lane)


class Tables:
    """The arrays of a plan and of the memory that it works on, as the two functions below take them: by `address`.

    message is where prepare_row leaves the address and the bytes of a row's message.
    """

    def __init__(self, rows: np.ndarray, segments: np.ndarray, geometry: np.ndarray, bases: np.ndarray) -> None:
        self.message = np.zeros(2, np.int64)
        self._arrays = rows, segments, geometry, bases, self.message
        self._addresses = addresses(*self._arrays)
        self.address: int = self._addresses.ctypes.data


@njit
def unpacked(tables):  # type: ignore[no-untyped-def]
    """Return rows, segments, geometry and bases of Tables at an address."""
    at = table(tables, MESSAGE, 2)
    rows, segments = table(at[ROWS, 0], at[ROWS, 1], 6), table(at[SEGMENTS, 0], at[SEGMENTS, 1], 4)
    return rows, segments, line(at[GEOMETRY, 0], at[GEOMETRY, 1]), line(at[BASES, 0], at[BASES, 1])


@jit(f"void({', '.join(['int64'] * 10)})", also=INLINED)
def finish_step(tables, first, posts, end, lane, slot, turn, kernel, scale, divisor):  # type: ignore[no-untyped-def]
    """finish(), for the Python engine."""
    rows, segments, geometry, bases = unpacked(tables)
    finish(rows, segments, geometry, bases, first, posts, end, lane, slot, turn, kernel, scale, divisor)


@jit(f"void({', '.join(['int64'] * 6)})", also=INLINED)
def prepare_row(tables, r, lane, slot, turn, kernel):  # type: ignore[no-untyped-def]
    """prepare(), for the Python engine."""
    rows, segments, geometry, bases = unpacked(tables)
    message = line(table(tables, MESSAGE + 1, 2)[MESSAGE, 0], 2)
    message[0], message[1] = prepare(rows, segments, geometry, bases, r, lane, slot, turn, kernel)
