"""Elementwise reductions dst[i] = a[i] op b[i], compiled, called by address and without the GIL.

    kernel = reduce.address("SUM", np.dtype("f4"))          # once: an int, the address of a C function
    reduce.call(kernel, dst, a, b, n)                       # addresses of three vectors of n elements

Every kernel has the C signature `void kernel(T *dst, const T *a, const T *b, int64_t n)`, so that a compiled
caller, blind to dtypes, can call any of them as four 64-bit integers. dst may be a or b, but may not
overlap either of them in part. Addresses need the alignment of the dtype. `rules` says which operator takes
which dtype and what it computes on NaN, ties and overflow; `reference` is the same in NumPy.

An operator is one function of two elements, a line in _SCALAR, and a line in `rules`.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from . import extended, lowp
from .cache import compiled_here, loaded_here, native
from .deferred import intrinsic, njit
from .memory import carray
from .rules import ALLOWED, EXTENDED, EXTREMES, LOCATIONS, NoKernel, allowed, canonical, check, kind_of, low

__all__ = ["ALLOWED", "NoKernel", "address", "allowed", "call", "compiled_here", "kind_of", "loaded_here"]


def address(op: str, dtype: np.dtype) -> int:
    """Address of the kernel for `op` ("SUM", "MAXLOC", ...) on elements of `dtype`; it stays valid.

    The first call in a process loads the kernel or compiles it. Raises TypeError where MPI does not let `op` take
    `dtype`, NoKernel (a LookupError) where no operator has a kernel for `dtype`, ImportError where the kernel would
    have to be compiled and numba cannot be imported.
    """
    return _address(op, np.dtype(dtype))


@cache
def _address(op: str, dtype: np.dtype) -> int:
    check(op, dtype)
    if low(dtype) is not None:
        return lowp.reduce_address(op, canonical(dtype))
    if dtype in EXTENDED:
        return extended.reduce_address(op, dtype)
    return _kernel(*_shared(op, canonical(dtype)))


def _shared(op: str, dtype: np.dtype) -> tuple[str, np.dtype]:
    """Return the key in _KERNELS and the dtype to compute in; many pairs of op and dtype have the same one."""
    if op == "SUM" and dtype.kind == "c":
        return "SUM complex", np.dtype(f"f{dtype.itemsize // 2}")
    if dtype.kind in "fc" or op in EXTREMES + LOCATIONS:
        return op, dtype
    return op, np.dtype(f"u{dtype.itemsize}")  # sign matters to MAX and MIN alone, and unsigned wraps


@cache
def _kernel(name: str, dtype: np.dtype) -> int:
    pointer = f"{dtype.str[1:] if dtype.names is None else dtype['value'].str[1:] + ' int'}*"
    return native(_KERNELS[name], (pointer, pointer, pointer, "int64"), types=lambda: vectors(dtype))


def vectors(dtype: np.dtype) -> tuple[Any, ...]:
    """Return numba's types of a kernel's arguments: three vectors of a dtype, and how many elements they have."""
    from numba import from_dtype, types

    pointer = types.CPointer(from_dtype(dtype))
    return pointer, pointer, pointer, types.int64


# The operators on two elements. Numba inlines them; conditions are joined by & and |, which do not branch.


@njit
def _sum(x: Any, y: Any) -> Any:
    return x + y


@njit
def _prod(x: Any, y: Any) -> Any:
    return x * y


@njit
def _max(x: Any, y: Any) -> Any:
    return x if (x > y) | (x != x) else y  # a NaN in y fails x > y and so is taken


@njit
def _min(x: Any, y: Any) -> Any:
    return x if (x < y) | (x != x) else y


@njit
def _land(x: Any, y: Any) -> Any:
    return (x != 0) & (y != 0)


@njit
def _lor(x: Any, y: Any) -> Any:
    return (x | y) != 0


@njit
def _lxor(x: Any, y: Any) -> Any:
    return (x != 0) != (y != 0)


@njit
def _band(x: Any, y: Any) -> Any:
    return x & y


@njit
def _bor(x: Any, y: Any) -> Any:
    return x | y


@njit
def _bxor(x: Any, y: Any) -> Any:
    return x ^ y


# Whether the first of two pairs is the result. No comparison with a NaN holds but !=.


@njit
def _maxloc(x: Any, i: Any, y: Any, j: Any) -> Any:
    x_nan, y_nan = x != x, y != y
    tie = (x == y) | (x_nan & y_nan)
    return (x > y) | (x_nan & (not y_nan)) | (tie & (i <= j))


@njit
def _minloc(x: Any, i: Any, y: Any, j: Any) -> Any:
    x_nan, y_nan = x != x, y != y
    tie = (x == y) | (x_nan & y_nan)
    return (x < y) | (x_nan & (not y_nan)) | (tie & (i <= j))


# The loops. LLVM vectorises one behind a check that its vectors do not overlap, which dst == a fails: that
# loop would run element by element. So equal addresses get a loop of their own with one vector for both; all
# the operators commute, which lets dst == b share it.


def _elementwise(op: Any, name: str, parts: int = 1) -> Any:
    """Return the kernel of an operator on two elements, or on each of the `parts` of an element by itself."""

    def kernel(dst: Any, a: Any, b: Any, n: int) -> None:
        n *= parts
        out, x, y = carray(dst, (n,)), carray(a, (n,)), carray(b, (n,))
        if out.ctypes.data == y.ctypes.data:
            x, y = y, x
        if out.ctypes.data == x.ctypes.data:
            for i in range(n):
                x[i] = op(x[i], y[i])
        else:
            for i in range(n):
                out[i] = op(x[i], y[i])

    return _named(kernel, name)


def _pairwise(first: Any, name: str) -> Any:
    """Return the kernel of an operator that chooses one of two pairs: the first where `first` says so."""

    def kernel(dst: Any, a: Any, b: Any, n: int) -> None:
        out, x, y = carray(dst, (n,)), carray(a, (n,)), carray(b, (n,))
        for i in range(n):
            u, v, j, k = x[i].value, y[i].value, x[i].index, y[i].index
            keep = first(u, j, v, k)
            out[i].value = u if keep else v
            out[i].index = j if keep else k

    return _named(kernel, name)


def _named(kernel: Any, name: str) -> Any:
    """Return the function under a name of its own: numba makes symbols of it that must differ in one process."""
    kernel.__name__ = kernel.__qualname__ = name
    return kernel


_KERNELS = {
    "SUM": _elementwise(_sum, "sum"),
    "SUM complex": _elementwise(_sum, "sum_complex", parts=2),  # in place 2 to 3 times faster than as complex
    "PROD": _elementwise(_prod, "prod"),
    "MAX": _elementwise(_max, "max"),
    "MIN": _elementwise(_min, "min"),
    "LAND": _elementwise(_land, "land"),
    "LOR": _elementwise(_lor, "lor"),
    "LXOR": _elementwise(_lxor, "lxor"),
    "BAND": _elementwise(_band, "band"),
    "BOR": _elementwise(_bor, "bor"),
    "BXOR": _elementwise(_bxor, "bxor"),
    "MAXLOC": _pairwise(_maxloc, "maxloc"),
    "MINLOC": _pairwise(_minloc, "minloc"),
}


def _call_address(typing: Any, kernel: Any, dst: Any, a: Any, b: Any, n: Any) -> Any:
    """Call in jitted code the C function at the address `kernel` with four int64."""
    from llvmlite import ir
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        function = ir.FunctionType(ir.VoidType(), [word] * 4).as_pointer()
        builder.call(builder.inttoptr(arguments[0], function), arguments[1:])
        return context.get_dummy_value()

    return types.void(*[types.int64] * 5), generate


_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


@cache
def _function(kernel: int) -> Any:
    return _KERNEL(kernel)


def call(kernel: int, dst: int, a: int, b: int, n: int) -> None:
    """dst[i] = a[i] op b[i] for i < n, without the GIL; all five are integers, `kernel` from address().

    Nothing is checked: a wrong address or n ends the process.
    """
    _function(int(kernel))(dst, a, b, n)  # compiled code's words are NumPy's in Python


call_address = intrinsic(_call_address, call)
