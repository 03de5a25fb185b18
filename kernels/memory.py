"""Memory at addresses, inside jitted code: compiled functions that Python calls take integers instead of arrays.

    line(address, n)             n words, as an array
    octets(address, n)           n bytes
    table(address, n, columns)   rows of words
    load, load_short             the word, the half of a word at an address, as int64
    compare_and_set(address, old, new)   set a word if it is `old`, in one atomic instruction; return whether it was
    call_int, call_long, call_double     call the C function at an address, by what it returns

Words are int64. The same functions do the same in Python, for processes without numba. `addresses` is how Python
hands over arrays. The last four exist in compiled code only.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .deferred import deferred, intrinsic, njit

__all__ = [
    "address_of",
    "addresses",
    "call_double",
    "call_int",
    "call_long",
    "carray",
    "compare_and_set",
    "halves",
    "line",
    "load",
    "load_short",
    "octets",
    "only_compiled",
    "table",
    "words",
]


def address_of(array: np.ndarray) -> int:
    """Return the address of an array's first element. array.ctypes imports a module, which fails while Python ends."""
    return int(array.__array_interface__["data"][0])


def addresses(*arrays: np.ndarray) -> np.ndarray:
    """Return (address, length) of each array, as rows of words. The arrays must outlive their addresses."""
    return np.array([(address_of(array), len(array)) for array in arrays], np.int64)


def _load(bits: int) -> Any:
    """Return an intrinsic that reads an integer of so many bits at an address."""

    def load(typing: Any, address: Any) -> Any:
        from llvmlite import ir
        from numba import types

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            word = builder.load(builder.inttoptr(values[0], ir.IntType(bits).as_pointer()))
            return word if bits == 64 else builder.sext(word, ir.IntType(64))

        return types.int64(types.int64), generate

    kind: Any = ctypes.c_int64 if bits == 64 else ctypes.c_int32
    return intrinsic(load, lambda address: kind.from_address(int(address)).value)


def _pointer(bits: int) -> Any:
    """Return an intrinsic that makes an address a pointer to integers of so many bits."""

    def pointer(typing: Any, address: Any) -> Any:
        from llvmlite import ir
        from numba import types

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            return builder.inttoptr(values[0], ir.IntType(bits).as_pointer())

        return types.CPointer(getattr(types, f"int{bits}"))(types.int64), generate

    kind: Any = {64: ctypes.c_int64, 32: ctypes.c_int32, 8: ctypes.c_int8}[bits]
    return intrinsic(pointer, lambda address: ctypes.cast(int(address), ctypes.POINTER(kind)))


def _call(returns: str) -> Any:
    """Return an intrinsic that calls the function at an address with int64 arguments; returns names numba's type."""

    def call(typing: Any, function: Any, arguments: Any) -> Any:
        from llvmlite import ir
        from numba import types

        result = ir.DoubleType() if returns == "float64" else ir.IntType(int(returns.removeprefix("int")))

        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            words = [builder.extract_value(values[1], i) for i in range(len(arguments))]
            kind = ir.FunctionType(result, [ir.IntType(64)] * len(words)).as_pointer()
            return builder.call(builder.inttoptr(values[0], kind), words)

        return getattr(types, returns)(types.int64, arguments), generate

    return intrinsic(call, only_compiled)


def only_compiled(*arguments: Any) -> Any:
    """Stand for an intrinsic in Python. Raises NotImplementedError."""
    raise NotImplementedError("only compiled code can do this")


def _compare_and_set(typing: Any, address: Any, old: Any, new: Any) -> Any:
    from llvmlite import ir
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        pointer = builder.inttoptr(values[0], ir.IntType(64).as_pointer())
        result = builder.cmpxchg(pointer, values[1], values[2], "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(types.int64, types.int64, types.int64), generate


carray = deferred("numba", "carray", lambda pointer, shape: np.ctypeslib.as_array(pointer, shape))
load, load_short = _load(64), _load(32)
words, halves, _bytes = _pointer(64), _pointer(32), _pointer(8)
call_int, call_long, call_double = _call("int32"), _call("int64"), _call("float64")
compare_and_set = intrinsic(_compare_and_set, only_compiled)


@njit
def line(address, n):  # type: ignore[no-untyped-def]
    """Return n words at an address."""
    return carray(words(address), (n,))


@njit
def octets(address, n):  # type: ignore[no-untyped-def]
    """Return n bytes at an address, as signed integers."""
    return carray(_bytes(address), (n,))


@njit
def table(address, n, columns):  # type: ignore[no-untyped-def]
    """Return n rows of words at an address."""
    return carray(words(address), (n, columns))
