"""Do the local work of a plan's rows in jitted, GIL-free code: locate, pack, unpack and reduce segments.

Both engines run these functions; only the code that posts messages differs. A plan's geometry is the int64 array
[slice, lanes, window, lane_scratch, itemsize, group, group_bytes, code_slice], bases the addresses of input, output and
scratch, and kernel_args the words of kernel_args.py.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from .. import kernels
from ..kernels.cache import jit
from ..kernels.deferred import intrinsic, njit
from ..kernels.memory import address_of, addresses, line, table
from ..kernels.serving import call_address, copy_bytes, move_bytes
from ..plans import plan, rolled
from ..plans.plan import CODED, RECV, REDUCE, REDUCE_SCALE, SCRATCH, PlanTables
from ..plans.rolled import OFFSET_STRIDE
from . import kernel_args as args_module
from .kernel_args import (
    DIVISOR,
    EVERYWHERE,
    IN_CODES,
    KERNEL,
    NARROW,
    NARROW_PLACES,
    PARAMS,
    SCALE,
    WIDE,
    WIDE_SCALE,
    WIDEN,
)

# sources whose functions numba inlines into those of this module
_KERNELS = (str(Path(kernels.__path__[0]) / name) for name in ("pack.py", "reduce.py"))
INLINED = (*_KERNELS, *(str(module.__file__) for module in (plan, rolled, args_module)))
STRIP = 16 << 10  # bytes: the strips of a result and an operand fit in a first-level cache
# the arrays of Tables
ROWS, SEGMENTS, GEOMETRY, BASES, KERNEL_ARGS, MESSAGE = range(6)
WIDE_STRIP = 4096  # elements: a strip of float32, of which a group of any codec is a part


def geometry(plan: PlanTables) -> np.ndarray:
    """Return the numbers of a plan that determine the address of a segment in a lane."""
    coding = plan.group, plan.group_bytes or plan.itemsize, plan.code_slice
    return np.array([plan.slice, plan.lanes, plan.window, plan.lane_scratch, plan.itemsize, *coding], np.int64)


def _wide_strip(typing: Any) -> Any:
    """Return in jitted code the address of a strip of float32 on the stack; each call site has its own."""
    from llvmlite import ir
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        strip = cgutils.alloca_once(builder, ir.ArrayType(ir.FloatType(), WIDE_STRIP))
        return builder.ptrtoint(strip, ir.IntType(64))

    return types.int64(), generate


def _wide_strip_in_python() -> int:
    """Return the address of a strip that the next 255 calls leave alive, for reductions of other threads."""
    _strips.append(strip := np.empty(WIDE_STRIP, np.float32))
    return address_of(strip)


_strips: deque[np.ndarray] = deque(maxlen=256)
wide_strip = intrinsic(_wide_strip, _wide_strip_in_python)


@njit
def place(segments, geometry, bases, s, lane, slot, turn):  # type: ignore[no-untyped-def]
    """Return the address of segment s in a lane, in a turn of its step's loop."""
    base = segments[s, 0]
    shift = slot * geometry[3] if base >= SCRATCH else lane * geometry[0]
    return bases[min(base, SCRATCH)] + segments[s, 1] + segments[s, OFFSET_STRIDE] * turn + shift


@njit
def length(segments, geometry, s, lane):  # type: ignore[no-untyped-def]
    """Return the bytes of segment s in a lane: the lane's slice of the block."""
    most = geometry[7] if segments[s, 0] == CODED else geometry[0]
    return max(0, min(most, segments[s, 2] - lane * most))


@njit
def total(segments, geometry, first, end, lane):  # type: ignore[no-untyped-def]
    """Return the bytes of a message in a lane."""
    n = 0
    for s in range(first, end):
        n += length(segments, geometry, s, lane)
    return n


@njit
def is_posted(rows, r, n):  # type: ignore[no-untyped-def]
    """Return whether row r posts a message of n bytes in this lane; local work and empty slices do not."""
    return rows[r, 0] != REDUCE and (rows[r, 2] == rows[r, 3] or n > 0)


@njit
def pack(segments, geometry, bases, first, end, stage, lane, slot, turn):  # type: ignore[no-untyped-def]
    """Copy the segments of a message to its contiguous stage."""
    at = stage
    for s in range(first, end):
        n = length(segments, geometry, s, lane)
        copy_bytes(at, place(segments, geometry, bases, s, lane, slot, turn), n)
        at += n


@njit
def spread(segments, geometry, bases, first, end, stage, lane, slot, turn):  # type: ignore[no-untyped-def]
    """Move a received message's blocks to their places in the same stage, last first: each moves towards the end."""
    at = stage + total(segments, geometry, first, end, lane)
    for s in range(end - 1, first - 1, -1):
        n = length(segments, geometry, s, lane)
        at -= n
        there = place(segments, geometry, bases, s, lane, slot, turn)
        if there != at:
            move_bytes(there, at, n)


@njit
def reduce(segments, geometry, bases, first, end, lane, slot, turn, kernel_args, divides):  # type: ignore[no-untyped-def]
    """Reduce the operands from left to right into the destination, then divide if `divides`; one operand is copied.

    A reduction of several steps goes strip by strip, so that the result stays in the cache between them.
    """
    if kernel_args[WIDEN] != 0 and is_wide(segments, first, end, kernel_args, divides):
        reduce_wide(segments, geometry, bases, first, end, lane, slot, turn, kernel_args, divides)
        return
    scale = kernel_args[SCALE] if divides else 0
    n = length(segments, geometry, first, lane)
    if n == 0:
        return
    to = place(segments, geometry, bases, first, lane, slot, turn)
    left = place(segments, geometry, bases, first + 1, lane, slot, turn)
    if end - first == 2:
        if scale != 0:
            call_address(scale, to, left, kernel_args[DIVISOR], n // geometry[4])
        elif to != left:
            copy_bytes(to, left, n)
        return
    strip = n
    if end - first > 3 or scale != 0:
        strip = max(1, STRIP // geometry[4]) * geometry[4]
    for at in range(0, n, strip):
        elements = min(strip, n - at) // geometry[4]
        reduce_strip(segments, geometry, bases, first, end, lane, slot, turn, kernel_args[KERNEL], at, elements)
        if scale != 0:
            call_address(scale, to + at, to + at, kernel_args[DIVISOR], elements)


@njit
def is_wide(segments, first, end, kernel_args, divides):  # type: ignore[no-untyped-def]
    """Return whether to reduce in float32: for codes, or if elements would be rounded twice or lack a kernel."""
    coded = False
    for s in range(first, end):
        coded |= segments[s, 0] == CODED
    if coded or kernel_args[NARROW_PLACES] == IN_CODES:
        return coded
    operands = end - first - 1
    return operands > 2 or (divides and operands > 1) or (kernel_args[KERNEL] == 0 and (divides or operands > 1))


@njit
def is_narrow(segments, s, kernel_args):  # type: ignore[no-untyped-def]
    """Return whether segment s holds narrow elements."""
    places = kernel_args[NARROW_PLACES]
    return places == EVERYWHERE or (segments[s, 0] == CODED) == (places == IN_CODES)


@njit
def at_element(segments, geometry, bases, s, lane, slot, turn, i):  # type: ignore[no-untyped-def]
    """Return the address of element i of segment s in a lane; i is the first of its group."""
    begin = place(segments, geometry, bases, s, lane, slot, turn)
    return begin + (i // geometry[5] * geometry[6] if segments[s, 0] == CODED else i * geometry[4])


@njit
def reduce_wide(segments, geometry, bases, first, end, lane, slot, turn, kernel_args, divides):  # type: ignore[no-untyped-def]
    """Reduce in float32, strip by strip: widen narrow operands, and round a narrow result once."""
    plain = first
    for s in range(first, end):
        if segments[s, 0] != CODED:
            plain = s
    # if all segments are coded, each element is a group of its own
    n = length(segments, geometry, plain, lane) // (geometry[6] if segments[plain, 0] == CODED else geometry[4])
    total, other = wide_strip(), wide_strip()
    to_narrow = is_narrow(segments, first, kernel_args)
    for i in range(0, n, WIDE_STRIP):
        m = min(WIDE_STRIP, n - i)
        to = at_element(segments, geometry, bases, first, lane, slot, turn, i)
        target = total if to_narrow or end - first > 3 else to  # the destination may also be an operand
        left = 0
        for s in range(first + 1, end):
            narrow = is_narrow(segments, s, kernel_args)
            right = at_element(segments, geometry, bases, s, lane, slot, turn, i)
            if narrow:
                into = target if s == first + 1 and end - first == 2 else total if s == first + 1 else other
                call_address(kernel_args[WIDEN], into, right, kernel_args[PARAMS], m)
                right = into
            if s > first + 1:
                call_address(kernel_args[WIDE], target, left, right, m)
                right = target
            left = right
        if divides:
            call_address(kernel_args[WIDE_SCALE], target, left, kernel_args[DIVISOR], m)
            left = target
        if to_narrow:
            call_address(kernel_args[NARROW], to, left, kernel_args[PARAMS], m)
        elif left != to:
            copy_bytes(to, left, m * 4)


@njit
def reduce_strip(segments, geometry, bases, first, end, lane, slot, turn, kernel, at, elements):  # type: ignore[no-untyped-def]
    """Reduce `elements` elements at byte offset `at` of the segments."""
    to = place(segments, geometry, bases, first, lane, slot, turn) + at
    left = place(segments, geometry, bases, first + 1, lane, slot, turn) + at
    into = to
    for s in range(first + 3, end):
        if place(segments, geometry, bases, s, lane, slot, turn) + at == to:
            into = left  # a later operand is the destination: accumulate in the first operand, which is then scratch
    for s in range(first + 2, end):
        target = to if s == end - 1 else into
        call_address(kernel, target, left, place(segments, geometry, bases, s, lane, slot, turn) + at, elements)
        left = target


@njit
def finish(rows, segments, geometry, bases, first, posts, end, lane, slot, turn, kernel_args):  # type: ignore[no-untyped-def]
    """Finish a step after its messages have completed: unpack what arrived, then reduce."""
    for r in range(first, posts):
        if rows[r, 0] == RECV and rows[r, 4] >= 0:
            stage = bases[SCRATCH] + rows[r, 4] + slot * geometry[3]
            spread(segments, geometry, bases, rows[r, 2], rows[r, 3], stage, lane, slot, turn)
    for r in range(posts, end):
        divides = rows[r, 0] == REDUCE_SCALE
        reduce(segments, geometry, bases, rows[r, 2], rows[r, 3], lane, slot, turn, kernel_args, divides)


@njit
def prepare(rows, segments, geometry, bases, r, lane, slot, turn, kernel_args):  # type: ignore[no-untyped-def]
    """Pack the message of row r, or do its local work; return the message's address and bytes."""
    first, end, stage = rows[r, 2], rows[r, 3], rows[r, 4]
    if rows[r, 0] == REDUCE:
        reduce(segments, geometry, bases, first, end, lane, slot, turn, kernel_args, False)
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
    """The arrays of a plan and of its memory, by `address` for finish_step and prepare_row.

    prepare_row writes the address and the bytes of a row's message to `message`.
    """

    def __init__(
        self, rows: np.ndarray, segments: np.ndarray, geometry: np.ndarray, bases: np.ndarray, kernel_args: np.ndarray
    ) -> None:
        self.message = np.zeros(2, np.int64)
        self._arrays = rows, segments, geometry, bases, kernel_args, self.message
        self._addresses = addresses(*self._arrays)
        self.address: int = address_of(self._addresses)


@njit
def unpack_tables(tables):  # type: ignore[no-untyped-def]
    """Return rows, segments, geometry, bases and kernel_args of the Tables at an address."""
    at = table(tables, MESSAGE, 2)
    rows, segments = table(at[ROWS, 0], at[ROWS, 1], 6), table(at[SEGMENTS, 0], at[SEGMENTS, 1], 4)
    geometry, bases = line(at[GEOMETRY, 0], at[GEOMETRY, 1]), line(at[BASES, 0], at[BASES, 1])
    return rows, segments, geometry, bases, line(at[KERNEL_ARGS, 0], at[KERNEL_ARGS, 1])


@jit(f"void({', '.join(['int64'] * 7)})", also=INLINED)
def finish_step(tables, first, posts, end, lane, slot, turn):  # type: ignore[no-untyped-def]
    """Call finish() for the Python engine."""
    rows, segments, geometry, bases, kernel_args = unpack_tables(tables)
    finish(rows, segments, geometry, bases, first, posts, end, lane, slot, turn, kernel_args)


@jit(f"void({', '.join(['int64'] * 5)})", also=INLINED)
def prepare_row(tables, r, lane, slot, turn):  # type: ignore[no-untyped-def]
    """Call prepare() for the Python engine."""
    rows, segments, geometry, bases, kernel_args = unpack_tables(tables)
    message = line(table(tables, MESSAGE + 1, 2)[MESSAGE, 0], 2)
    message[0], message[1] = prepare(rows, segments, geometry, bases, r, lane, slot, turn, kernel_args)
