"""Define in NumPy what the compiled kernels compute: tests hold the kernels to it. No numba here.

Semantics of the reductions are in `rules`, of the layouts in `pack`. Where `pack` takes addresses, these
take one-dimensional uint8 arrays, and `at`, the index in `scattered` of block 0 or of offset 0.
"""

from __future__ import annotations

import numpy as np

from .rules import LOW, check, check_scalable, low

_UFUNCS = {
    "SUM": np.add,
    "PROD": np.multiply,
    "MAX": np.maximum,
    "MIN": np.minimum,
    "LAND": np.logical_and,
    "LOR": np.logical_or,
    "LXOR": np.logical_xor,
    "BAND": np.bitwise_and,
    "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}


def reduce(op: str, dst: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """dst[i] = a[i] op b[i]: three arrays of one shape and dtype; dst may be a or b.

    Raises as reduce.address does: TypeError, or NoKernel for a dtype without kernels.
    """
    kind = check(op, dst.dtype)
    if kind == "pair":
        _reduce_pairs(op, dst, a, b)
        return
    if (name := low(dst.dtype)) is not None:
        with np.errstate(all="ignore"):
            narrow(dst, _UFUNCS[op](widened(a, name), widened(b, name)))
        return
    if kind == "byte":
        dst, a, b = (array.view(np.uint8) for array in (dst, a, b))
    with np.errstate(all="ignore"):
        _UFUNCS[op](a, b, out=dst, casting="unsafe")


def scale(dst: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """dst[i] = a[i] / b[0]: arrays of one dtype, b of one element, float32 for types of LOW; dst may be a.

    Raises as scale.address does: TypeError, or NoKernel for a dtype without kernels.
    """
    check_scalable(dst.dtype)
    divide(dst, a, b.real[0])


def divide(dst: np.ndarray, a: np.ndarray, by: float) -> None:
    """scale() for any floating or complex dtype that NumPy has, long double too, and those of LOW."""
    if (name := low(dst.dtype)) is not None:
        with np.errstate(all="ignore"):
            narrow(dst, np.true_divide(widened(a, name), np.float32(by)))
        return
    if dst.dtype.kind == "c":  # part by part: NumPy divides complex numbers through a reciprocal
        part = dst.real.dtype
        dst, a = dst.view(part), a.view(part)
    with np.errstate(all="ignore"):
        np.true_divide(a, dst.dtype.type(by), out=dst)


# Types of less than 32 bits: exponent and mantissa, and the code from which on there are no numbers.
_FORMS = {
    "float16": (5, 10, 0x7C00),
    "bfloat16": (8, 7, 0x7F80),
    "float8_e5m2": (5, 2, 0x7C),
    "float8_e4m3fn": (4, 3, 0x7F),
}


def widened(x: np.ndarray, name: str) -> np.ndarray:
    """Return elements of a type of LOW as float32."""
    exponent, mantissa, special = _FORMS[name]
    codes = x.view(f"u{LOW[name].itemsize}").astype(np.int64)
    sizes = codes & ((1 << (exponent + mantissa)) - 1)
    power, rest = sizes >> mantissa, sizes & ((1 << mantissa) - 1)
    bias = (1 << (exponent - 1)) - 1
    numbers = np.where(power > 0, rest + (1 << mantissa), rest) * 2.0 ** (np.maximum(power, 1) - bias - mantissa)
    infinite = name != "float8_e4m3fn"
    numbers = np.where(sizes < special, numbers, np.inf if infinite else np.nan)
    numbers = np.where((sizes > special) & infinite, np.nan, numbers)
    result: np.ndarray = np.copysign(numbers, np.where(codes >> (exponent + mantissa), -1.0, 1.0)).astype(np.float32)
    return result


def widen(dst: np.ndarray, src: np.ndarray) -> None:
    """dst[i] = float32(src[i]), of elements of a type of LOW."""
    name = low(src.dtype)
    assert name is not None
    dst[...] = widened(src, name)


def narrow(dst: np.ndarray, x: np.ndarray, seed: int | None = None) -> None:
    """Round float32 to elements of a type of LOW: to nearest, ties to even, or at random by a seed, as `lowp` says."""
    name = low(dst.dtype)
    assert name is not None
    exponent, mantissa, special = _FORMS[name]
    bias = (1 << (exponent - 1)) - 1
    with np.errstate(invalid="ignore"):
        size = np.abs(x.astype(np.float64))
    finite = np.where(np.isfinite(size), size, 0.0)
    leading = np.where(finite > 0, np.frexp(finite)[1] - 1, 1 - bias)  # the power of the first bit
    power = np.maximum(leading, 1 - bias)
    scaled = finite * 2.0 ** (mantissa - power)
    units = np.rint(scaled)
    if seed is not None:
        last = special - 1  # the code of the largest number
        largest = (last % (1 << mantissa) + (1 << mantissa)) * 2.0 ** ((last >> mantissa) - bias - mantissa)
        chance = (_noise(seed, x) >> 8) * 2.0**-24
        units = np.where(finite <= largest, np.floor(scaled) + (chance < scaled - np.floor(scaled)), units)
    codes = units.astype(np.int64) + ((power + bias - 1) << mantissa)
    codes = np.where(np.isfinite(size), np.minimum(codes, special), special)
    nan = special + (1 << (mantissa - 1)) if name != "float8_e4m3fn" else special
    codes = np.where(np.isnan(size), nan, codes) | (np.signbit(x).astype(np.int64) << (exponent + mantissa))
    dst.view(f"u{LOW[name].itemsize}")[...] = codes


def _noise(seed: int, x: np.ndarray) -> np.ndarray:
    """Return the hash of a seed, of the position and of the bits of each float32: 32 bits."""
    low_half, high_half = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    start = (low_half + high_half * 0x85EBCA6B) & 0xFFFFFFFF
    h = np.uint32(start) ^ (np.arange(x.size, dtype=np.uint32) * np.uint32(0x9E3779B1)) ^ x.view(np.uint32)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    hashed: np.ndarray = h ^ (h >> np.uint32(16))
    return hashed


def _reduce_pairs(op: str, dst: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    value, index = dst.dtype.names or ()
    x, y = a[value], b[value]
    x_nan, y_nan = x != x, y != y
    tie = (x == y) | (x_nan & y_nan)
    better = (x > y if op == "MAXLOC" else x < y) | x_nan
    first = np.where(tie, a[index] <= b[index], better)
    values, indices = np.where(first, x, y), np.where(first, a[index], b[index])
    dst[value], dst[index] = values, indices  # only now: dst may be a or b


def pack_elements(
    packed: np.ndarray,
    scattered: np.ndarray,
    n: int,
    extent: int,
    counts: np.ndarray,
    strides: np.ndarray,
    offsets: np.ndarray,
    lengths: np.ndarray,
    at: int = 0,
) -> int:
    """Copy the elements in `scattered` into `packed`; return the bytes moved."""
    index = _elements(n, extent, counts, strides, offsets, lengths, at)
    packed[: index.size] = scattered[index]
    return index.size


def unpack_elements(
    packed: np.ndarray,
    scattered: np.ndarray,
    n: int,
    extent: int,
    counts: np.ndarray,
    strides: np.ndarray,
    offsets: np.ndarray,
    lengths: np.ndarray,
    at: int = 0,
) -> int:
    """Copy `packed` into the elements in `scattered`; return the bytes moved."""
    index = _elements(n, extent, counts, strides, offsets, lengths, at)
    scattered[index] = packed[: index.size]
    return index.size


def _segments(offsets: np.ndarray, lengths: np.ndarray, at: int) -> np.ndarray:
    spans = [np.arange(at + first, at + first + length) for first, length in zip(offsets, lengths)]
    return np.concatenate(spans) if spans else np.arange(0)


def _elements(
    n: int,
    extent: int,
    counts: np.ndarray,
    strides: np.ndarray,
    offsets: np.ndarray,
    lengths: np.ndarray,
    at: int,
) -> np.ndarray:
    index = _segments(offsets, lengths, at)
    for count, stride in [*zip(counts[::-1], strides[::-1]), (n, extent)]:
        index = (stride * np.arange(count)[:, None] + index).ravel()
    return index
