"""Memory at addresses, inside jitted code: compiled functions that Python calls take integers instead of arrays.

    line(address, n)             n words, as an array
    table(address, n, columns)   rows of words
    load, load_short             the word, the half of a word at an address, as int64

Words are int64. The same functions do the same in Python, for processes without numba. `addresses` is how Python
hands over arrays.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from .deferred import deferred, intrinsic, njit

__all__ = ["address_of", "addresses", "carray", "halves", "line", "load", "load_short", "table", "words"]


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

        return types.CPointer(types.int64 if bits == 64 else types.int32)(types.int64), generate

    kind: Any = ctypes.c_int64 if bits == 64 else ctypes.c_int32
    return intrinsic(pointer, lambda address: ctypes.cast(int(address), ctypes.POINTER(kind)))


carray = deferred("numba", "carray", lambda pointer, shape: np.ctypeslib.as_array(pointer, shape))
load, load_short = _load(64), _load(32)
words, halves = _pointer(64), _pointer(32)


@njit
def line(address, n):  # type: ignore[no-untyped-def]
    """Return n words at an address."""
    return carray(words(address), (n,))


@njit
def table(address, n, columns):  # type: ignore[no-untyped-def]
    """Return n rows of words at an address."""
    return carray(words(address), (n, columns))
