"""Elements of 16 and 8 bits: to float32, back with one rounding, and reductions on them; called by address.

    widen_address(dtype)      kernel(dst, src, params, n)    dst[i] = float32(src[i])
    narrow_address(dtype)     kernel(dst, src, params, n)    dst[i] = float32 src[i], rounded to nearest, ties to even
    narrow_address(dtype, stochastic=True)                   rounded up or down at random; params: address of the seed
    reduce_address(op, dtype) kernel(dst, a, b, n)           dst[i] = a[i] op b[i], as if in float32 and rounded once
    scale_address(dtype)      kernel(dst, a, b, n)           dst[i] = a[i] / b[0], where b[0] is a float32

Kernels have the signature of the reductions (see `reduce`). `rules` says which types these are, and what becomes of NaN
and of what is too large. All is done on the bits of float32, which every processor vectorises.

At random means by a hash of the seed, of i and of the value: equal values at equal places are rounded alike on every
rank. An element becomes the neighbour away from zero where the upper 24 bits of the hash, as a fraction, are less than
its distance to the other one, in units of the distance between both. What is larger than the largest number is rounded
to nearest, so that no chance makes it infinite, or NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from .cache import native
from .deferred import Deferred, intrinsic, njit
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


# Numba computes on 64 bits what is not told to be of 32 again: half as many elements at a time.


@njit
def noise(seed: Any, i: Any, bits: Any) -> Any:
    """Return 32 bits that look random: murmur3's finalizer of what is mixed. The seed has 64 bits."""
    start = np.uint32(np.uint32(seed) + np.uint32(seed >> np.uint64(32)) * np.uint32(0x85EBCA6B))
    h = np.uint32(start ^ np.uint32(np.uint32(i) * np.uint32(0x9E3779B1)) ^ bits)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(16))) * np.uint32(0x85EBCA6B))
    h = np.uint32(np.uint32(h ^ np.uint32(h >> np.uint32(13))) * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ np.uint32(h >> np.uint32(16)))


class Element(NamedTuple):
    """Functions that widen and narrow an element of a type, its bytes, and the codes that, without sign, are NaN.

    Those are the ones above `largest`; a quiet NaN has the bit `quiet`.
    """

    widen: Any
    narrow: Any
    stochastic: Any
    itemsize: int
    largest: int
    quiet: int


@njit
def _widen_bfloat16(u: Any) -> Any:
    return as_float(np.uint32(np.uint32(u) << np.uint32(16)))


@njit
def _narrow_bfloat16(x: Any) -> Any:
    u = as_bits(x)
    high = np.uint32(u >> np.uint32(16))
    rounded = np.uint32(np.uint32(u + np.uint32(0x7FFF) + (high & np.uint32(1))) >> np.uint32(16))
    return np.uint32(high | np.uint32(0x40)) if x != x else rounded


@njit
def _stochastic_bfloat16(x: Any, random: Any) -> Any:
    u = as_bits(x)
    size = np.uint32(u & np.uint32(0x7FFFFFFF))
    added = np.uint32(np.uint32(~random) >> np.uint32(16)) if size <= np.uint32(0x7F7F0000) else np.uint32(0x8000)
    high = np.uint32(u >> np.uint32(16))
    rounded = np.uint32(np.uint32(u + added) >> np.uint32(16))
    return np.uint32(high | np.uint32(0x40)) if x != x else rounded


def _small(exponent: int, mantissa: int, infinite: bool) -> Element:
    """Return how a type is handled with so many bits of exponent and mantissa, with infinities or without."""
    bits = 1 + exponent + mantissa
    bias = (1 << (exponent - 1)) - 1
    shift, left = np.uint32(23 - mantissa), np.uint32(32 - bits)  # to the places that float32 has, of size and sign
    magnitude, sign = np.uint32((1 << (bits - 1)) - 1), np.uint32(1 << (bits - 1))
    special = ((1 << exponent) - 1) << mantissa if infinite else int(magnitude)  # from this code on no numbers
    ends, nan = np.uint32(special << (23 - mantissa)), np.uint32(special | 1 << (mantissa - 1))
    rebias = np.uint32((127 - bias) << 23)
    # Of float32, the bits. A size beyond `too_large` has the code `special`, as that has.
    smallest = np.uint32((127 - bias + 1) << 23)  # normal number
    too_large = np.uint32(((127 + bias + 1) << 23) if infinite else ((127 + bias + 1) << 23) + 0x700000)
    largest = np.uint32(int(too_large) - (1 << (23 - mantissa)))
    to_units, of_units = np.uint32((23 - mantissa) << 23), np.uint32((254 + mantissa) << 23)
    infinity, quiet, normals = np.uint32(0x7F800000), np.uint32(0x7FC00000), np.uint32(1 << 23)
    tie = np.float32(0.5 - 2.0**-24 if infinite else 0.5)  # the largest number is odd where there are infinities

    @njit
    def widen(code: Any) -> Any:
        u = np.uint32(code)
        size = np.uint32(np.uint32(u & magnitude) << shift)
        # A subnormal number is the mantissa of one above it: as a float32's mantissa it would be slow to compute with.
        tiny = as_bits(as_float(np.uint32(size + smallest)) - as_float(smallest))
        widened = np.uint32(size + rebias) if size >= normals else tiny
        if infinite:
            widened = infinity if size >= ends else widened
            widened = quiet if size > ends else widened
        else:
            widened = quiet if size == ends else widened
        return as_float(np.uint32(widened | np.uint32(np.uint32(u & sign) << left)))

    @njit
    def split(x: Any) -> Any:
        """Return the bits of x, its size, the same where it has a code, and the power of 2 that its code counts in."""
        u = as_bits(x)
        size = np.uint32(u & np.uint32(0x7FFFFFFF))
        within = size if size < too_large else too_large
        power = np.uint32(within & infinity)
        return u, size, within, power if power > smallest else smallest

    @njit
    def joined(u: Any, size: Any, power: Any, units: Any) -> Any:
        """Return the code: its exponent is one less than the power where units has the leading one, else the same."""
        code = np.uint32(units + np.uint32(np.uint32(power - smallest) >> shift))
        if infinite:
            code = nan if size > infinity else code
        return np.uint32(code | np.uint32(np.uint32(u >> left) & sign))

    @njit
    def narrow(x: Any) -> Any:
        u, size, within, power = split(x)
        magic = np.uint32(power + to_units)  # the last bit of a float32 of this size is one unit
        return joined(u, size, power, np.uint32(as_bits(as_float(within) + as_float(magic)) - magic))

    @njit
    def stochastic(x: Any, random: Any) -> Any:
        u, size, within, power = split(x)
        scaled = as_float(within) * as_float(np.uint32(of_units - power))
        whole = np.int32(scaled)
        chance = np.float32(np.int32(random >> np.uint32(8))) * np.float32(2.0**-24)
        chance = chance if size <= largest else tie
        up = np.uint32(1) if chance < scaled - np.float32(whole) else np.uint32(0)
        return joined(u, size, power, np.uint32(np.uint32(whole) + up))

    last = special if infinite else special - 1
    return Element(widen, narrow, stochastic, bits // 8, last, 1 << (mantissa - 1))


# What processors do with float16 themselves, in one instruction: also NaN, subnormal numbers and rounding.


def _half(to_float: bool, in_python: Callable[..., Any]) -> Any:
    """Return an intrinsic that makes a float32 of the bits of a float16, or the other way."""

    def convert(typing: Any, value: Any) -> Any:
        from llvmlite import ir
        from numba import types

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            if to_float:
                half = builder.bitcast(builder.trunc(values[0], ir.IntType(16)), ir.HalfType())
                return builder.fpext(half, ir.FloatType())
            half = builder.fptrunc(values[0], ir.HalfType())
            return builder.zext(builder.bitcast(half, ir.IntType(16)), ir.IntType(32))

        return (types.float32(types.uint32) if to_float else types.uint32(types.float32)), generate

    return intrinsic(convert, in_python)


def _converts_halves() -> bool:
    """Return whether the processor that numba compiles for does, and LLVM has it do so: else LLVM would call a library.

    Before its version 15 LLVM took vectors of them apart.
    """
    from llvmlite.binding import llvm_version_info
    from numba.core.registry import cpu_target

    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    has = triple.startswith(("aarch64", "arm64")) or "+f16c" in features.split(",")
    return has and llvm_version_info[0] >= 15


def _either(quick: Any, portable: Any) -> Any:
    """Return the first where the processor converts float16, which is known when something is compiled."""
    return Deferred(lambda: quick if _converts_halves() else portable, portable)


def _halves(portable: Element) -> Element:
    """Return how float16 is handled: by the processor where it can."""
    widen_bits, narrow = _half(True, portable.widen), _half(False, portable.narrow)

    @njit
    def widen(code: Any) -> Any:
        return widen_bits(np.uint32(code))

    return portable._replace(widen=_either(widen, portable.widen), narrow=_either(narrow, portable.narrow))


def _upper_halves(portable: Element) -> Element:
    """Return how float8_e5m2 is handled, which is the upper half of a float16."""
    widen_bits = _half(True, portable.widen)

    @njit
    def widen(code: Any) -> Any:
        return widen_bits(np.uint32(np.uint32(code) << np.uint32(8)))

    return portable._replace(widen=_either(widen, portable.widen))


ELEMENTS = {
    "bfloat16": Element(_widen_bfloat16, _narrow_bfloat16, _stochastic_bfloat16, 2, 0x7F80, 0x40),
    "float16": _halves(_small(5, 10, True)),
    "float8_e5m2": _upper_halves(_small(5, 2, True)),
    "float8_e4m3fn": _small(4, 3, False),
}


@njit
def _sum(x: Any, y: Any) -> Any:
    return x + y


@njit
def _prod(x: Any, y: Any) -> Any:
    return x * y


_ARITHMETIC = {"SUM": _sum, "PROD": _prod}


def _rounding(element: Element, op: str) -> Any:
    """Return an operator on two codes that computes in float32."""
    widen, narrow, apply = element.widen, element.narrow, _ARITHMETIC[op]

    @njit
    def combine(x: Any, y: Any) -> Any:
        return narrow(apply(widen(x), widen(y)))

    return combine


def _choosing(element: Element, op: str) -> Any:
    """Return an operator on two codes that is one of them: it takes no float32 to compare them."""
    signed: Any = np.int8 if element.itemsize == 1 else np.int16
    sign_at = signed(8 * element.itemsize - 1)
    size, largest, quiet = signed(np.iinfo(signed).max), signed(element.largest), signed(element.quiet)
    upwards = op == "MAX"

    @njit
    def combine(x: Any, y: Any) -> Any:
        u, v = signed(x), signed(y)
        # Numbers are ordered as their codes, but the negative ones the other way.
        i, j = signed(u ^ (signed(u >> sign_at) & size)), signed(v ^ (signed(v >> sign_at) & size))
        u_nan, v_nan = signed(u & size) > largest, signed(v & size) > largest
        better = i > j if upwards else i < j
        u, v = signed(u | quiet) if u_nan else u, signed(v | quiet) if v_nan else v
        return u if u_nan | (better & (not v_nan)) else v

    return combine


@cache
def reduce_address(op: str, dtype: np.dtype) -> int:
    """Address of the kernel dst[i] = a[i] op b[i]; it stays valid. op: SUM, PROD, MAX or MIN."""
    name = _named(dtype)
    element = ELEMENTS[name]
    combine = (_rounding if op in _ARITHMETIC else _choosing)(element, op)

    def kernel(dst: Any, a: Any, b: Any, n: int) -> None:
        out, x, y = carray(dst, (n,)), carray(a, (n,)), carray(b, (n,))
        if out.ctypes.data == y.ctypes.data:  # a loop of its own, as in reduce.py
            x, y = y, x
        if out.ctypes.data == x.ctypes.data:
            for i in range(n):
                x[i] = combine(x[i], y[i])
        else:
            for i in range(n):
                out[i] = combine(x[i], y[i])

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
