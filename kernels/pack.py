"""Gather scattered bytes into a contiguous buffer and scatter them back, by address and without the GIL.

    strided     `count` blocks of `length` elements of `size` bytes; block i starts `stride` bytes after
                block i - 1 (negative strides too). MPI's vector and hvector types, a column of a matrix.
    segments    any list of (offset, length) in bytes, as two int64 vectors. A message of several blocks.
    elements    `n` elements of any datatype, `extent` bytes apart: in each, for every turn of its loops, the
                segments. Loop i turns counts[i] times, strides[i] bytes further each time; the first is the
                outermost. Extents and strides of any sign and size.

`packed` is the address of the contiguous buffer, `base` that of the scattered one: of block 0, or what the
offsets count from. Every function returns the bytes that it moved. They are callable from Python with
integers and from jitted code. `packed` may not overlap the rest, nor blocks one another when unpacking; no
alignment is asked for. Nothing is checked: a wrong address or a negative count ends the process.
`reference` has the same in NumPy.
"""

from __future__ import annotations

from typing import Any

from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from .cache import jit

__all__ = [
    "copy_bytes",
    "move_bytes",
    "pack_elements",
    "pack_segments",
    "pack_strided",
    "unpack_elements",
    "unpack_segments",
    "unpack_strided",
]

_VECTOR = "Array(int64, 1, 'C', readonly=True)"
_STRIDED = f"int64({', '.join(['int64'] * 6)})"
_SEGMENTS = f"int64(int64, int64, {_VECTOR}, {_VECTOR})"
_ELEMENTS = f"int64({', '.join(['int64'] * 4 + [_VECTOR] * 4)})"


def _copy_bytes(typing: Any, dst: Any, src: Any, length: Any) -> Any:
    """Inside jitted code: memcpy between addresses; a constant length up to 16 or so becomes plain moves."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        dst, src, length = arguments
        byte = cgutils.voidptr_t
        target, source = builder.inttoptr(dst, byte), builder.inttoptr(src, byte)
        cgutils.raw_memcpy(builder, target, source, length, 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _move_bytes(typing: Any, dst: Any, src: Any, length: Any) -> Any:
    """Inside jitted code: memmove between addresses, which may overlap."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, source = (builder.inttoptr(a, cgutils.voidptr_t) for a in arguments[:2])
        cgutils.raw_memmove(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


copy_bytes: Any = intrinsic(_copy_bytes)  # by hand: as decorators numba's types describe the wrong call
move_bytes: Any = intrinsic(_move_bytes)


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


@jit(_STRIDED)
def pack_strided(packed: int, base: int, count: int, length: int, stride: int, size: int) -> int:
    """From the blocks at `base` into `packed`; see the module for the arguments."""
    run = length * size
    _every(packed, run, base, stride, count, run)
    return count * run


@jit(_STRIDED)
def unpack_strided(packed: int, base: int, count: int, length: int, stride: int, size: int) -> int:
    """From `packed` into the blocks at `base`; the bytes between the blocks stay as they are."""
    run = length * size
    _every(base, stride, packed, run, count, run)
    return count * run


@jit(_SEGMENTS)
def pack_segments(packed: int, base: int, offsets: Any, lengths: Any) -> int:
    """From the segments at base + offsets[i], of lengths[i] bytes, into `packed`, in the order given."""
    done = 0
    for i in range(offsets.size):
        _move(packed + done, base + offsets[i], lengths[i])
        done += lengths[i]
    return done


@jit(_SEGMENTS)
def unpack_segments(packed: int, base: int, offsets: Any, lengths: Any) -> int:
    """From `packed` into the segments at base + offsets[i], of lengths[i] bytes, in the order given."""
    done = 0
    for i in range(offsets.size):
        _move(base + offsets[i], packed + done, lengths[i])
        done += lengths[i]
    return done


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
    counts: Any,
    strides: Any,
    offsets: Any,
    lengths: Any,
    packing: bool,
) -> int:
    done = 0
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


@jit(_ELEMENTS)
def pack_elements(
    packed: int, base: int, n: int, extent: int, counts: Any, strides: Any, offsets: Any, lengths: Any
) -> int:
    """From the elements at `base` into `packed`; see the module for the arguments."""
    return _elements(packed, base, n, extent, counts, strides, offsets, lengths, True)


@jit(_ELEMENTS)
def unpack_elements(
    packed: int, base: int, n: int, extent: int, counts: Any, strides: Any, offsets: Any, lengths: Any
) -> int:
    """From `packed` into the elements at `base`; the bytes between them stay as they are."""
    return _elements(packed, base, n, extent, counts, strides, offsets, lengths, False)
