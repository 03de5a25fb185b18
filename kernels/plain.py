"""What the compiled kernels do, by the same calls, on NumPy and ctypes: for processes that cannot import numba.

    address, scale_address                              as reduce.address, scale.address
    pack_elements, unpack_elements                      as in pack
    njit, jit, copy_bytes, move_bytes, call_address     what the functions that numba compiles are made of

A function decorated with these stays Python's, and does the same. The arithmetic is `reference`'s. All of it holds the
GIL, and a message of many blocks takes 1 microsecond for each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from . import reference
from .rules import check, check_scalable

_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
_kept: list[Any] = []  # an address goes with its function


def njit(function: Any) -> Any:
    """Return the function as it is."""
    return function


def jit(signature: str, also: Any = ()) -> Callable[[Any], Any]:
    """Return a decorator that leaves a function as it is."""
    return njit


def move_bytes(dst: int, src: int, length: int) -> None:
    """Copy bytes between addresses, which may overlap."""
    ctypes.memmove(int(dst), int(src), int(length))


copy_bytes = move_bytes


def call_address(kernel: int, dst: int, a: int, b: int, n: int) -> None:
    """Call the C function at the address `kernel`."""
    _KERNEL(int(kernel))(int(dst), int(a), int(b), int(n))


@cache
def address(op: str, dtype: np.dtype) -> int:
    """Address of a C function dst[i] = a[i] op b[i] on elements of `dtype`; it stays valid.

    Raises TypeError where MPI does not let `op` take `dtype`, NoKernel (a LookupError) where there is no kernel.
    """
    check(op, np.dtype(dtype))
    return _address(lambda dst, a, b: reference.reduce(op, dst, a, b), np.dtype(dtype))


@cache
def scale_address(dtype: np.dtype) -> int:
    """Address of a C function dst[i] = a[i] / b[0] on elements of `dtype`; it stays valid. Raises as `address`."""
    check_scalable(np.dtype(dtype))
    return _address(lambda dst, a, b: reference.scale(dst, a, b[:1]), np.dtype(dtype))


def _address(work: Callable[[np.ndarray, np.ndarray, np.ndarray], None], dtype: np.dtype) -> int:
    def kernel(dst: int, a: int, b: int, n: int) -> None:
        if n:
            work(*(_memory(at, n * dtype.itemsize).view(dtype) for at in (dst, a, b)))

    _kept.append(made := _KERNEL(kernel))
    found = ctypes.cast(made, ctypes.c_void_p).value
    assert found is not None
    return found


def _memory(at: int, nbytes: int) -> np.ndarray:
    """Return the bytes at an address."""
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(at))


def pack_elements(packed: int, base: int, n: int, extent: int, *tables: np.ndarray) -> int:
    """From the elements at `base` into `packed`; tables are counts, strides, offsets and lengths (see pack)."""
    return _elements(reference.pack_elements, packed, base, n, extent, tables)


def unpack_elements(packed: int, base: int, n: int, extent: int, *tables: np.ndarray) -> int:
    """From `packed` into the elements at `base`; the bytes between them stay as they are."""
    return _elements(reference.unpack_elements, packed, base, n, extent, tables)


def _elements(
    work: Callable[..., int], packed: int, base: int, n: int, extent: int, tables: tuple[np.ndarray, ...]
) -> int:
    counts, strides, offsets, lengths = tables
    nbytes = n * int(counts.prod()) * int(lengths.sum())
    if not nbytes:
        return 0
    steps = [*((int(count) - 1) * int(stride) for count, stride in zip(counts, strides)), (n - 1) * extent]
    first = int(offsets.min()) + sum(min(step, 0) for step in steps)
    end = int((offsets + lengths).max()) + sum(max(step, 0) for step in steps)
    return work(_memory(packed, nbytes), _memory(base + first, end - first), n, extent, *tables, -first)
