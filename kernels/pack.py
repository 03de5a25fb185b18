"""Gather scattered bytes into a contiguous buffer and scatter them back, by address and without the GIL.

Both functions take `n` elements of any datatype, `extent` bytes apart. In each element, for every turn of its loops,
there are segments. Loop i turns counts[i] times, strides[i] bytes further each time; the first is the outermost.
Segment i is lengths[i] bytes at offsets[i]. Extents, strides and offsets may have any size and sign.

`packed` is the address of the contiguous buffer, `base` that from which offsets count. Every function returns the bytes
that it moved. They are callable from Python and from jitted code. `packed` may not overlap the rest, nor elements one
another when unpacking; no alignment is needed. Nothing is checked: a wrong address or a negative count ends the
process. `reference` has the same in NumPy.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import plain
from .cache import jit
from .deferred import intrinsic, njit
from .memory import address_of, addresses, line, table

__all__ = ["Layout", "copy_bytes", "move_bytes", "pack_elements", "unpack_elements"]

_ELEMENTS = "int64(int64, int64, int64, int64, int64)"


class Layout:
    """The loops and segments of an element, as the functions take them: by `address`."""

    def __init__(self, counts: np.ndarray, strides: np.ndarray, offsets: np.ndarray, lengths: np.ndarray) -> None:
        """Take vectors of int64. Raises TypeError for others."""
        self._vectors = counts, strides, offsets, lengths
        if any(vector.dtype != np.int64 or not vector.flags.c_contiguous for vector in self._vectors):
            raise TypeError("the vectors of a layout are contiguous and of int64")
        self._addresses = addresses(*self._vectors)
        self.address: int = address_of(self._addresses)


def _copy_bytes(typing: Any, dst: Any, src: Any, length: Any) -> Any:
    """Copy by memcpy in jitted code; a constant length up to 16 or so becomes plain moves."""
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        dst, src, length = arguments
        byte = cgutils.voidptr_t
        target, source = builder.inttoptr(dst, byte), builder.inttoptr(src, byte)
        cgutils.raw_memcpy(builder, target, source, length, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _move_bytes(typing: Any, dst: Any, src: Any, length: Any) -> Any:
    """Copy by memmove in jitted code; the addresses may overlap."""
    from numba import types
    from numba.core import cgutils

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(a, cgutils.voidptr_t) for a in arguments[:2])
        cgutils.raw_memmove(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _in_python(dst: int, src: int, length: int) -> None:
    ctypes.memmove(int(dst), int(src), int(length))


copy_bytes, move_bytes = intrinsic(_copy_bytes, _in_python), intrinsic(_move_bytes, _in_python)


@njit
def _move(dst: int, src: int, length: int) -> None:
    """Copy any length, without the call for the lengths of one element."""
    if length == 8:
        copy_bytes(dst, src, 8)
    elif length == 4:
        copy_bytes(dst, src, 4)
    elif length == 16:
        copy_bytes(dst, src, 16)
    else:
        copy_bytes(dst, src, length)


@njit
def _every(dst: int, to: int, src: int, by: int, count: int, run: int) -> None:  # noqa: C901 - a case a length
    """`count` runs of `run` bytes, from src in steps of `by` bytes to dst in steps of `to`.

    One loop for each size of a single element, so that the length is a constant in it.
    """
    if to == run and by == run:
        copy_bytes(dst, src, count * run)
    elif run == 1:
        for i in range(count):
            copy_bytes(dst + i * to, src + i * by, 1)
    elif run == 2:
        for i in range(count):
            copy_bytes(dst + i * to, src + i * by, 2)
    elif run == 4:
        for i in range(count):
            copy_bytes(dst + i * to, src + i * by, 4)
    elif run == 8:
        for i in range(count):
            copy_bytes(dst + i * to, src + i * by, 8)
    elif run == 16:
        for i in range(count):
            copy_bytes(dst + i * to, src + i * by, 16)
    else:
        for i in range(count):
            copy_bytes(dst + i * to, src + i * by, run)


@njit
def _start(turn: int, extent: int, counts: Any, strides: Any, loops: int) -> int:
    """Return where a turn of the elements and their first `loops` loops begins; the innermost turns fastest."""
    at = 0
    for i in range(loops - 1, -1, -1):
        at += turn % counts[i] * strides[i]
        turn //= counts[i]
    return at + turn * extent


@njit
def _inner_loop(n: int, extent: int, counts: Any, strides: Any) -> tuple[int, int, int, int]:
    """Return what an only segment is repeated by.

    These are count and stride of the innermost loop, the loops and turns around it.
    """
    if counts.size == 0:
        return n, extent, 0, 1
    outer, turns = counts.size - 1, n
    for i in range(outer):
        turns *= counts[i]
    return counts[outer], strides[outer], outer, turns


@njit
def _elements(
    packed: int,
    base: int,
    n: int,
    extent: int,
    layout: int,
    packing: bool,
) -> int:
    vectors, done = table(layout, 4, 2), 0
    counts, strides = line(vectors[0, 0], vectors[0, 1]), line(vectors[1, 0], vectors[1, 1])
    offsets, lengths = line(vectors[2, 0], vectors[2, 1]), line(vectors[3, 0], vectors[3, 1])
    if offsets.size == 1:
        run = lengths[0]
        count, stride, loops, turns = _inner_loop(n, extent, counts, strides)
        for turn in range(turns):
            at = base + offsets[0] + _start(turn, extent, counts, strides, loops)
            if packing:
                _every(packed + done, run, at, stride, count, run)
            else:
                _every(at, stride, packed + done, run, count, run)
            done += count * run
        return done
    for turn in range(n * counts.prod()):
        at = base + _start(turn, extent, counts, strides, counts.size)
        for i in range(offsets.size):
            if packing:
                _move(packed + done, at + offsets[i], lengths[i])
            else:
                _move(at + offsets[i], packed + done, lengths[i])
            done += lengths[i]
    return done


@jit(_ELEMENTS, in_python=plain.pack_elements)
def pack_elements(packed: int, base: int, n: int, extent: int, layout: int) -> int:
    """Copy the elements at `base` into `packed`; layout is the address of a Layout."""
    moved: int = _elements(packed, base, n, extent, layout, True)
    return moved


@jit(_ELEMENTS, in_python=plain.unpack_elements)
def unpack_elements(packed: int, base: int, n: int, extent: int, layout: int) -> int:
    """Copy `packed` into the elements at `base`; the bytes between them stay as they are."""
    moved: int = _elements(packed, base, n, extent, layout, False)
    return moved
