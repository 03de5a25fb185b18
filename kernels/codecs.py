"""Codecs of float32: a group of elements to fewer bytes and back, in one pass, called by address.

    encode(codes, src, params, n)    src: n float32; codes: where the bytes go, at any address
    decode(dst, codes, params, n)    dst: n float32

params is the address of int64 words: problems, group, k, keep. A kernel sets problems to 1 where it meets what is no
finite number, and never to 0. With keep, encode leaves in src what it did not send: src minus what decode gives. Groups
are counted from the first element, and the last may be shorter; codes of groups are contiguous.

    cast     elements of fewer bits (see elements.py)
    int8     a float32 scale = largest / 127, then a byte an element: element / scale, to nearest, ties to even
    int4     a float32 scale = largest / 7, then half a byte an element, the first of two in the lower half
    topk     k positions of 16 bits, then k float32: the elements of largest size, of equal ones the first

A group with what is no finite number has a scale of NaN, and decodes to NaN. A group whose largest element is below
SMALLEST is sent as zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from . import elements
from .cache import native
from .deferred import njit
from .elements import ELEMENTS, as_bits, as_float
from .memory import carray

__all__ = ["GROUP", "KEEP", "PROBLEMS", "SMALLEST", "K", "addresses"]

PROBLEMS, GROUP, K, KEEP = range(4)
SMALLEST = np.float32(2.0**-116)  # 127 / x overflows not far below
_INFINITE, _SIZE = np.uint32(0x7F800000), np.uint32(0x7FFFFFFF)
_ROUND = np.float32(1.5 * 2**23)  # adding it rounds to a whole number, which the last bits of the sum are
_ROUNDED = np.uint32(0x4B400000)  # its bits
_RUN = 32  # elements of topk looked at together
_OCTAVES = np.uint32(3 << 23)  # below the largest, where the threshold most often lies
_BYTE, _NIBBLE = np.uint32(0xFF), np.uint32(0xF)


@njit
def size_of(x: Any) -> Any:
    """Return the bits of an element without its sign: they are ordered as sizes, infinity and NaN last."""
    return as_bits(x) & _SIZE


@njit
def largest(x: Any) -> Any:
    """Return the bits of the largest size of some elements."""
    top = np.uint32(0)
    for i in range(len(x)):
        top = max(top, size_of(x[i]))
    return top


@njit
def put_word(out: Any, at: int, bits: Any) -> None:
    """Write 32 bits at any address."""
    for byte in range(4):
        out[at + byte] = np.uint8((bits >> np.uint32(8 * byte)) & _BYTE)


@njit
def get_word(codes: Any, at: int) -> Any:
    """Read 32 bits at any address."""
    low, high = np.uint32(codes[at]) | np.uint32(codes[at + 1]) << np.uint32(8), np.uint32(codes[at + 2])
    return np.uint32(low | (high << np.uint32(16)) | (np.uint32(codes[at + 3]) << np.uint32(24)))


@njit
def put_scale(out: Any, at: int, top: Any, levels: Any, fields: Any) -> Any:
    """Write the scale of a group; return by what its elements are multiplied, and the scale."""
    scale, by = np.float32(0.0), np.float32(0.0)
    if top >= _INFINITE:
        fields[PROBLEMS], scale = 1, as_float(np.uint32(0x7FC00000))
    elif as_float(top) >= SMALLEST:
        scale, by = np.float32(as_float(top) / levels), np.float32(levels / as_float(top))
    put_word(out, at, as_bits(scale))
    return by, scale


@njit
def whole(x: Any, by: Any) -> Any:
    """Return the bits of a multiple, rounded to a whole number; the lower ones are those of its two's complement."""
    return np.uint32(as_bits(np.float32(x * by) + _ROUND) - _ROUNDED)


@njit
def signed(code: Any, half: Any) -> Any:
    """Return the number of a code in two's complement, of which half is the sign."""
    return np.float32(np.int32((code ^ half) - half))


def _encode_int8(codes: Any, src: Any, params: Any, n: int) -> None:
    fields, x = carray(params, (4,)), carray(src, (n,))
    group, at = fields[GROUP], 0
    out = carray(codes, (n + 4 * (n // group + 1),))
    for first in range(0, n, group):
        m = min(group, n - first)
        part, to = x[first : first + m], out[at + 4 : at + 4 + m]  # views: their indices need no look at the sign
        by, scale = put_scale(out, at, largest(part), np.float32(127.0), fields)
        for i in range(m):
            to[i] = np.uint8(whole(part[i], by) & _BYTE)
        if fields[KEEP] != 0:
            for i in range(m):
                part[i] -= np.float32(signed(np.int32(to[i]), np.int32(128)) * scale)
        at += 4 + m


def _decode_int8(dst: Any, codes: Any, params: Any, n: int) -> None:
    fields, out = carray(params, (4,)), carray(dst, (n,))
    group, at = fields[GROUP], 0
    encoded = carray(codes, (n + 4 * (n // group + 1),))
    for first in range(0, n, group):
        m = min(group, n - first)
        bits = get_word(encoded, at)
        scale = as_float(bits)
        if (bits & _SIZE) >= _INFINITE:
            fields[PROBLEMS] = 1
        part, of = out[first : first + m], encoded[at + 4 : at + 4 + m]
        for i in range(m):
            part[i] = np.float32(signed(np.int32(of[i]), np.int32(128)) * scale)
        at += 4 + m


def _encode_int4(codes: Any, src: Any, params: Any, n: int) -> None:
    fields, x = carray(params, (4,)), carray(src, (n,))
    group, at = fields[GROUP], 0
    out = carray(codes, (n + 5 * (n // group + 1),))
    for first in range(0, n, group):
        m = min(group, n - first)
        part, to = x[first : first + m], out[at + 4 : at + 4 + (m + 1) // 2]
        by, scale = put_scale(out, at, largest(part), np.float32(7.0), fields)
        for i in range(m // 2):
            low, high = whole(part[2 * i], by), whole(part[2 * i + 1], by)
            to[i] = np.uint8((low & _NIBBLE) | np.uint32((high & _NIBBLE) << np.uint32(4)))
        if m % 2 == 1:
            to[m // 2] = np.uint8(whole(part[m - 1], by) & _NIBBLE)
        if fields[KEEP] != 0:
            for i in range(m):
                code = np.int32(to[i // 2]) >> np.int32(4 * (i % 2)) & np.int32(15)
                part[i] -= np.float32(signed(code, np.int32(8)) * scale)
        at += 4 + (m + 1) // 2


def _decode_int4(dst: Any, codes: Any, params: Any, n: int) -> None:
    fields, out = carray(params, (4,)), carray(dst, (n,))
    group, at = fields[GROUP], 0
    encoded = carray(codes, (n + 5 * (n // group + 1),))
    for first in range(0, n, group):
        m = min(group, n - first)
        bits = get_word(encoded, at)
        scale = as_float(bits)
        if (bits & _SIZE) >= _INFINITE:
            fields[PROBLEMS] = 1
        part, of = out[first : first + m], encoded[at + 4 : at + 4 + (m + 1) // 2]
        for i in range(m // 2):
            code = np.int32(of[i])
            part[2 * i] = np.float32(signed(code & np.int32(15), np.int32(8)) * scale)
            part[2 * i + 1] = np.float32(signed(code >> np.int32(4), np.int32(8)) * scale)
        if m % 2 == 1:
            part[m - 1] = np.float32(signed(np.int32(of[m // 2]) & np.int32(15), np.int32(8)) * scale)
        at += 4 + (m + 1) // 2


@njit
def count_from(x: Any, bits: Any) -> Any:
    """Return how many elements have at least a size."""
    count = np.int32(0)
    for i in range(len(x)):
        count = np.int32(count + (np.int32(1) if size_of(x[i]) >= bits else np.int32(0)))
    return count


@njit
def threshold(x: Any, k: int, top: Any) -> Any:
    """Return (bits of a size, how many have at least it): the largest size that at least k elements have, or less.

    Bisected, until as many have it as are wanted.
    """
    low, high, count = np.uint32(0), np.uint32(top + np.uint32(1)), np.int32(len(x))
    middle = np.uint32(top - _OCTAVES) if top > _OCTAVES else np.uint32(high // np.uint32(2))
    while high - low > np.uint32(1) and count != k:
        reached = count_from(x, middle)
        if reached >= k:
            low, count = middle, reached
        else:
            high = middle
        middle = np.uint32(low + (high - low) // np.uint32(2))
    return low, count


def _encode_topk(codes: Any, src: Any, params: Any, n: int) -> None:
    fields, x = carray(params, (4,)), carray(src, (n,))
    group, at = fields[GROUP], 0
    for first in range(0, n, group):
        m = min(group, n - first)
        k = kept(fields[K], m)
        out = carray(codes, (at + 6 * k,))
        part = x[first : first + m]
        top = largest(part)
        if top >= _INFINITE:
            fields[PROBLEMS] = 1
        least, count = threshold(part, k, top)
        spare = k - (count_from(part, np.uint32(least + np.uint32(1))) if count != k else 0)
        sent = 0
        for begin in range(0, m, _RUN):
            end = min(begin + _RUN, m)
            if largest(part[begin:end]) < least:  # most runs have none
                continue
            for i in range(begin, end):
                bits = size_of(part[i])
                if bits < least:
                    continue
                if count != k and bits == least:
                    spare -= 1
                    if spare < 0:
                        continue
                out[at + 2 * sent] = np.uint8(i & 0xFF)
                out[at + 2 * sent + 1] = np.uint8(i >> 8)
                put_word(out, at + 2 * k + 4 * sent, as_bits(part[i]))
                sent += 1
                if fields[KEEP] != 0:
                    part[i] = np.float32(0.0)
        at += 6 * k


def _decode_topk(dst: Any, codes: Any, params: Any, n: int) -> None:
    fields, out = carray(params, (4,)), carray(dst, (n,))
    group, at = fields[GROUP], 0
    out[:] = np.float32(0.0)
    for first in range(0, n, group):
        k = kept(fields[K], min(group, n - first))
        encoded = carray(codes, (at + 6 * k,))
        for j in range(k):
            bits = get_word(encoded, at + 2 * k + 4 * j)
            if (bits & _SIZE) >= _INFINITE:
                fields[PROBLEMS] = 1
            out[first + np.int64(encoded[at + 2 * j]) + 256 * np.int64(encoded[at + 2 * j + 1])] = as_float(bits)
        at += 6 * k


@njit
def kept(k: int, m: int) -> int:
    """Return how many of m elements are sent: k, or -k millionths of them, at least one."""
    if k > 0:
        return min(k, m)
    return max(1, (m * -k + 500_000) // 1_000_000)


def _cast(name: str) -> tuple[Callable[..., None], Callable[..., None]]:
    widen, narrow = ELEMENTS[name].widen, ELEMENTS[name].narrow

    def encode(codes: Any, src: Any, params: Any, n: int) -> None:
        fields, out, x = carray(params, (4,)), carray(codes, (n,)), carray(src, (n,))
        top = np.uint32(0)
        if fields[KEEP] != 0:
            for i in range(n):
                code = narrow(x[i])
                sent = widen(code)
                out[i] = code
                x[i] -= sent
                top = max(top, size_of(sent))
        else:
            for i in range(n):
                code = narrow(x[i])
                out[i] = code
                top = max(top, size_of(widen(code)))
        if top >= _INFINITE:
            fields[PROBLEMS] = 1

    def decode(dst: Any, codes: Any, params: Any, n: int) -> None:
        fields, out, encoded = carray(params, (4,)), carray(dst, (n,)), carray(codes, (n,))
        top = np.uint32(0)
        for i in range(n):
            out[i] = widen(encoded[i])
            top = max(top, size_of(out[i]))
        if top >= _INFINITE:
            fields[PROBLEMS] = 1

    return encode, decode


_GROUPED = {
    "int8": (_encode_int8, _decode_int8),
    "int4": (_encode_int4, _decode_int4),
    "topk": (_encode_topk, _decode_topk),
}
NAMES = (*_GROUPED, *ELEMENTS)  # the codecs


@cache
def addresses(name: str) -> tuple[int, int]:
    """Return the addresses of a codec's encode and decode; they stay valid. name: int8, int4, topk or a key of LOW."""
    encode, decode = _GROUPED[name] if name in _GROUPED else _cast(name)
    itemsize = 1 if name in _GROUPED else ELEMENTS[name].itemsize
    entry_points = []
    for kernel, way, codes in ((encode, "encode", 0), (decode, "decode", 1)):
        kernel.__name__ = kernel.__qualname__ = f"{way}_{name}"
        sizes = (itemsize, 0, -8) if codes == 0 else (0, itemsize, -8)
        entry_points.append(_native(kernel, sizes))
    return entry_points[0], entry_points[1]


def _native(kernel: Callable[..., None], sizes: tuple[int, ...]) -> int:
    words = [{0: "float32*", -8: "int64*"}.get(size, f"uint{8 * size}*") for size in sizes]

    def types() -> tuple[Any, ...]:
        from numba import types

        of = {0: types.float32, 1: types.uint8, 2: types.uint16, -8: types.int64}
        return *(types.CPointer(of[size]) for size in sizes), types.int64

    return native(kernel, (*words, "int64"), types=types, also=(str(elements.__file__),))
