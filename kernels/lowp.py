"""Elements of 16 and 8 bits: to float32, back with one rounding, and reductions on them; called by address.

    widen_address(dtype)      kernel(dst, src, params, n)    dst[i] = float32(src[i])
    narrow_address(dtype)     kernel(dst, src, params, n)    dst[i] = float32 src[i], rounded to nearest, ties to even
    narrow_address(dtype, stochastic=True)                   rounded up or down at random; params: address of the seed
    reduce_address(op, dtype) kernel(dst, a, b, n)           dst[i] = a[i] op b[i] in float32, rounded once
    scale_address(dtype)      kernel(dst, a, b, n)           dst[i] = a[i] / b[0], where b[0] is a float32

Kernels have the signature of the reductions (see `reduce`). `rules` says which types these are, and what becomes of NaN
and of what is too large. All is done on the bits of float32, which every processor vectorises.

At random means by a hash of the seed, of i and of the value: equal values at equal places are rounded alike on every
rank. The chance of rounding up is the distance to the lower neighbour, in units of the distance between both.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .cache import native
from .deferred import intrinsic, njit
from .memory import carray
from .rules import low

__all__ = ["ELEMENTS", "narrow_address", "reduce_address", "scale_address", "widen_address"]


def _bitcast(to_float: bool) -> Any:
    """Return an intrinsic that takes the bits of a float32 for a number, or the other way."""

    def cast(typing: Any, value: Any) -> Any:
        from llvmlite import ir
        from numba import types

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.bitcast(values[0], ir.FloatType() if to_float else ir.IntType(32))

        return (types.float32(types.uint32) if to_float else types.uint32(types.float32)), generate

    def in_python(value: Any) -> Any:
        if to_float:
            return np.float32(struct.unpack("f", struct.pack("I", int(value)))[0])
        return np.uint32(struct.unpack("I", struct.pack("f", value))[0])

    return intrinsic(cast, in_python)


as_float, as_bits = _bitcast(True), _bitcast(False)


@njit
def noise(seed: Any, i: Any, bits: Any) -> Any:
    """Return 32 bits that look random: murmur3's finalizer of what is mixed."""
    h = np.uint32(np.uint32(seed) ^ np.uint32(np.uint32(i) * np.uint32(0x9E3779B1)) ^ bits)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


class Element(NamedTuple):
    """How a type is widened and narrowed, one element, and how many bytes it has."""

    widen: Any
    narrow: Any
    stochastic: Any
    itemsize: int


@njit
def _widen_bfloat16(u: Any) -> Any:
    return as_float(np.uint32(np.uint32(u) << np.uint32(16)))


@njit
def _narrow_bfloat16(x: Any) -> Any:
    u = as_bits(x)
    rounded = np.uint32(u + np.uint32(0x7FFF) + ((u >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return (u >> np.uint32(16)) | np.uint32(0x40) if x != x else rounded


@njit
def _stochastic_bfloat16(x: Any, random: Any) -> Any:
    u = as_bits(x)
    finite = (u & np.uint32(0x7FFFFFFF)) < np.uint32(0x7F800000)
    up = np.uint32(u + (random & np.uint32(0xFFFF))) >> np.uint32(16)
    return up if finite else _narrow_bfloat16(x)


def _small(exponent: int, mantissa: int, infinite: bool) -> Element:
    """Return how a type is handled with so many bits of exponent and mantissa, with infinities or without."""
    bits = 1 + exponent + mantissa
    bias = (1 << (exponent - 1)) - 1
    shift = np.uint32(23 - mantissa)
    left = np.uint32(32 - bits)
    magnitude, sign = np.uint32((1 << (bits - 1)) - 1), np.uint32(1 << (bits - 1))
    enlarge = np.uint32((127 - bias + 127) << 23)  # 2**(127 - bias), as a float32
    special = np.uint32(((1 << exponent) - 1) << mantissa) if infinite else magnitude  # from here on no numbers
    nan = special | np.uint32(1 << (mantissa - 1)) if infinite else magnitude
    smallest = np.uint32((127 - bias + 1) << 23)  # normal number, as a float32
    magic = np.uint32((127 - bias + 23 - mantissa + 1) << 23)  # its last bit is the smallest number
    rebias = np.uint32((127 - bias) << 23)
    half = np.uint32((1 << (22 - mantissa)) - 1)
    units = np.uint32((127 + bias - 1 + mantissa) << 23)  # 1 / the smallest number, as a float32
    below = np.uint32((1 << (23 - mantissa)) - 1)
    infinity, one = np.uint32(0x7F800000), np.uint32(1)
    quiet, top = np.uint32(0x7FC00000), np.uint32(0x80000000)

    @njit
    def widen(given: Any) -> Any:
        u = np.uint32(given)
        size = u & magnitude
        number = as_bits(as_float(np.uint32(size << shift)) * as_float(enlarge))
        if infinite:
            ends = infinity if size == special else quiet
        else:
            ends = quiet
        found = number if size < special else ends
        return as_float(np.uint32(found | np.uint32(np.uint32(u & sign) << left)))

    @njit
    def ended(size: Any, found: Any, u: Any) -> Any:
        """Return the code with its sign, of what may be too large, or no number."""
        clipped = found if found < special else special
        whole = nan if size > infinity else clipped
        return np.uint32(whole | np.uint32(np.uint32(u & top) >> left))

    @njit
    def narrow(x: Any) -> Any:
        u = as_bits(x)
        size = np.uint32(u & np.uint32(0x7FFFFFFF))
        odd = np.uint32(size >> shift) & one
        normal = np.uint32(np.uint32(size - rebias) + half + odd) >> shift
        tiny = np.uint32(as_bits(as_float(size) + as_float(magic)) - magic)
        return ended(size, tiny if size < smallest else normal, u)

    @njit
    def stochastic(x: Any, random: Any) -> Any:
        u = as_bits(x)
        size = np.uint32(u & np.uint32(0x7FFFFFFF))
        normal = np.uint32(np.uint32(size - rebias) + (random & below)) >> shift
        scaled = as_float(size) * as_float(units)
        whole = np.float32(np.floor(scaled))
        chance = np.float32(random >> np.uint32(8)) * np.float32(2.0**-24)
        tiny = np.uint32(np.int32(whole)) + (one if chance < scaled - whole else np.uint32(0))
        if size < smallest:
            found = np.uint32(tiny)
        else:
            found = np.uint32(normal)
        return ended(size, found, u)

    return Element(widen, narrow, stochastic, bits // 8)


ELEMENTS = {
    "bfloat16": Element(_widen_bfloat16, _narrow_bfloat16, _stochastic_bfloat16, 2),
    "float16": _small(5, 10, True),
    "float8_e5m2": _small(5, 2, True),
    "float8_e4m3fn": _small(4, 3, False),
}


@njit
def _sum(x: Any, y: Any) -> Any:
    return x + y


@njit
def _prod(x: Any, y: Any) -> Any:
    return x * y


@njit
def _max(x: Any, y: Any) -> Any:
    return x if (x > y) | (x != x) else y


@njit
def _min(x: Any, y: Any) -> Any:
    return x if (x < y) | (x != x) else y


_OPERATORS = {"SUM": _sum, "PROD": _prod, "MAX": _max, "MIN": _min}


@cache
def reduce_address(op: str, dtype: np.dtype) -> int:
    """Address of the kernel dst[i] = a[i] op b[i]; it stays valid. op: SUM, PROD, MAX or MIN."""
    name = _named(dtype)
    element, apply = ELEMENTS[name], _OPERATORS[op]
    widen, narrow = element.widen, element.narrow

    def kernel(dst: Any, a: Any, b: Any, n: int) -> None:
        out, x, y = carray(dst, (n,)), carray(a, (n,)), carray(b, (n,))
        if out.ctypes.data == y.ctypes.data:  # a loop of its own, as in reduce.py
            x, y = y, x
        if out.ctypes.data == x.ctypes.data:
            for i in range(n):
                x[i] = narrow(apply(widen(x[i]), widen(y[i])))
        else:
            for i in range(n):
                out[i] = narrow(apply(widen(x[i]), widen(y[i])))

    return _compiled(kernel, f"{op.lower()}_{name}", *[element.itemsize] * 3)


@cache
def scale_address(dtype: np.dtype) -> int:
    """Address of the kernel dst[i] = a[i] / b[0], where b is the address of a float32; it stays valid."""
    name = _named(dtype)
    element = ELEMENTS[name]
    widen, narrow = element.widen, element.narrow

    def kernel(dst: Any, a: Any, b: Any, n: int) -> None:
        out, x, by = carray(dst, (n,)), carray(a, (n,)), carray(b, (1,))[0]
        if out.ctypes.data == x.ctypes.data:
            for i in range(n):
                x[i] = narrow(np.float32(np.true_divide(widen(x[i]), by)))
        else:
            for i in range(n):
                out[i] = narrow(np.float32(np.true_divide(widen(x[i]), by)))

    return _compiled(kernel, f"scale_{name}", element.itemsize, element.itemsize, 0)


@cache
def widen_address(dtype: np.dtype) -> int:
    """Address of the kernel that makes float32 of elements of a type; it stays valid."""
    name = _named(dtype)
    element = ELEMENTS[name]
    widen = element.widen

    def kernel(dst: Any, src: Any, params: Any, n: int) -> None:
        out, x = carray(dst, (n,)), carray(src, (n,))
        for i in range(n):
            out[i] = widen(x[i])

    return _compiled(kernel, f"widen_{name}", 0, element.itemsize, 8)


@cache
def narrow_address(dtype: np.dtype, stochastic: bool = False) -> int:
    """Address of the kernel that makes elements of a type of float32; it stays valid. See above for stochastic."""
    name = _named(dtype)
    element = ELEMENTS[name]
    narrow, at_random = element.narrow, element.stochastic

    def nearest(dst: Any, src: Any, params: Any, n: int) -> None:
        out, x = carray(dst, (n,)), carray(src, (n,))
        for i in range(n):
            out[i] = narrow(x[i])

    def randomly(dst: Any, src: Any, params: Any, n: int) -> None:
        out, x, seed = carray(dst, (n,)), carray(src, (n,)), carray(params, (1,))[0]
        for i in range(n):
            out[i] = at_random(x[i], noise(seed, i, as_bits(x[i])))

    kernel, called = (randomly, "stochastic") if stochastic else (nearest, "narrow")
    return _compiled(kernel, f"{called}_{name}", element.itemsize, 0, 8)


def _named(dtype: np.dtype) -> str:
    name = low(dtype)
    if name is None:
        raise TypeError(f"dtype {dtype!r} is none of {', '.join(ELEMENTS)}")
    return name


def _compiled(kernel: Callable[..., None], name: str, *sizes: int) -> int:
    """Compile a kernel whose three addresses are of unsigned integers of so many bytes; 0 stands for float32."""
    kernel.__name__ = kernel.__qualname__ = name
    words = [f"uint{8 * size}*" if size else "float32*" for size in sizes]

    def types() -> tuple[Any, ...]:
        from numba import types

        of = {0: types.float32, 1: types.uint8, 2: types.uint16, 8: types.uint64}
        return *(types.CPointer(of[size]) for size in sizes), types.int64

    return native(kernel, (*words, "int64"), types=types)
