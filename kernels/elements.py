"""Convert elements of 16 and 8 bits to float32 and back, on the bits of float32, which every processor vectorises.

ELEMENTS has the functions of each type. They are compiled as parts of the kernels of `lowp` and `codecs`. Stochastic
rounding takes 32 random bits from `noise`. An element becomes the neighbour away from zero if the upper 24 bits, as a
fraction, are less than its distance to the other neighbour, in units of the distance between both. A value above the
largest number is rounded to nearest, so that no chance makes it infinite, or NaN.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from .deferred import Deferred, intrinsic, njit

__all__ = ["ELEMENTS", "Element", "as_bits", "as_float", "noise"]


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
