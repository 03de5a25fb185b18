"""Kernels on elements of 16 and 8 bits: to float32, back with one rounding, and reductions; called by address.

    widen_address(dtype)      kernel(dst, src, params, n)    dst[i] = float32(src[i])
    narrow_address(dtype)     kernel(dst, src, params, n)    dst[i] = float32 src[i], rounded to nearest, ties to even
    narrow_address(dtype, stochastic=True)                   rounded up or down at random; params: address of the seed
    reduce_address(op, dtype) kernel(dst, a, b, n)           dst[i] = a[i] op b[i], as if in float32 and rounded once
    scale_address(dtype)      kernel(dst, a, b, n)           dst[i] = a[i] / b[0], where b[0] is a float32

Kernels have the signature of the reductions (see `reduce`). `rules` has the types, and the results for NaN and for
numbers that are too large. `elements` has the conversions of single elements. The random bits are a hash of the seed,
of i and of the value: equal values at equal positions are rounded alike on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from . import elements
from .cache import native
from .deferred import njit
from .elements import ELEMENTS, Element, as_bits, noise
from .memory import carray
from .rules import low

__all__ = ["narrow_address", "reduce_address", "scale_address", "widen_address"]


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

    return native(kernel, (*words, "int64"), types=types, also=(str(elements.__file__),))
