"""Run the kernels on NumPy and ctypes, for processes that can neither load nor compile them.

    address, scale_address            as reduce.address, scale.address
    widen_address, narrow_address     as in lowp
    pack_elements, unpack_elements    as in pack

All of it holds the GIL.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from . import reference
from .memory import line, table
from .rules import canonical, check, check_scalable, low

_FLOAT, _WORD = np.dtype(np.float32), np.dtype(np.int64)
_KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)
_kept: list[Any] = []  # an address goes with its function


@cache
def address(op: str, dtype: np.dtype) -> int:
    """Address of a C function dst[i] = a[i] op b[i] on elements of `dtype`; it stays valid.

    Raises TypeError where MPI does not let `op` take `dtype`, NoKernel (a LookupError) where there is no kernel.
    """
    check(op, np.dtype(dtype))
    return _address(lambda dst, a, b: reference.reduce(op, dst, a, b), dtype, dtype, dtype)


@cache
def scale_address(dtype: np.dtype) -> int:
    """Address of a C function dst[i] = a[i] / b[0] on elements of `dtype`; it stays valid. Raises as `address`."""
    check_scalable(np.dtype(dtype))
    by = _FLOAT if low(dtype) is not None else np.dtype(dtype)
    return _address(lambda dst, a, b: reference.divide(dst, a, b.real[0]), dtype, dtype, (by, 1))


@cache
def widen_address(dtype: np.dtype) -> int:
    """Address of a C function dst[i] = float32(src[i]); it stays valid."""
    return _address(lambda dst, src, _: reference.widen(dst, src), _FLOAT, dtype, (_WORD, 0))


@cache
def narrow_address(dtype: np.dtype, stochastic: bool = False) -> int:
    """Address of a C function that rounds float32, to nearest or by the seed at its third address; it stays valid."""
    if stochastic:
        return _address(lambda dst, src, seed: reference.narrow(dst, src, int(seed[0])), dtype, _FLOAT, (_WORD, 1))
    return _address(lambda dst, src, _: reference.narrow(dst, src), dtype, _FLOAT, (_WORD, 0))


def _address(work: Callable[[np.ndarray, np.ndarray, np.ndarray], None], *operands: Any) -> int:
    """Return the address of a C function of three vectors: of a dtype each, or of (dtype, elements)."""
    of = [operand if isinstance(operand, tuple) else (np.dtype(operand), None) for operand in operands]

    def kernel(dst: int, a: int, b: int, n: int) -> None:
        if n:
            sizes = [(canonical(dtype), n if most is None else most) for dtype, most in of]
            work(*(_memory(at, m * kind.itemsize).view(kind) for at, (kind, m) in zip((dst, a, b), sizes)))

    _kept.append(function := _KERNEL(kernel))
    function_address = ctypes.cast(function, ctypes.c_void_p).value
    assert function_address is not None
    return function_address


def _memory(at: int, nbytes: int) -> np.ndarray:
    """Return the bytes at an address; of none, wherever that is."""
    if not nbytes:
        return np.empty(0, np.uint8)
    return np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(at))


def pack_elements(packed: int, base: int, n: int, extent: int, layout: int) -> int:
    """Copy the elements at `base` into `packed`; layout is the address of a pack.Layout."""
    return _elements(reference.pack_elements, packed, base, n, extent, layout)


def unpack_elements(packed: int, base: int, n: int, extent: int, layout: int) -> int:
    """Copy `packed` into the elements at `base`; the bytes between them stay as they are."""
    return _elements(reference.unpack_elements, packed, base, n, extent, layout)


def _elements(work: Callable[..., int], packed: int, base: int, n: int, extent: int, layout: int) -> int:
    counts, strides, offsets, lengths = vectors = [line(*row) for row in table(layout, 4, 2).tolist()]
    nbytes = n * int(counts.prod()) * int(lengths.sum())
    if not nbytes:
        return 0
    steps = [*((int(count) - 1) * int(stride) for count, stride in zip(counts, strides)), (n - 1) * extent]
    first = int(offsets.min()) + sum(min(step, 0) for step in steps)
    end = int((offsets + lengths).max()) + sum(max(step, 0) for step in steps)
    return work(_memory(packed, nbytes), _memory(base + first, end - first), n, extent, *vectors, -first)
