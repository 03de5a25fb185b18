"""What the compiled kernels compute, in NumPy: the definition that tests hold them to. No numba here.

Semantics of the reductions are in `rules`, of the layouts in `pack`. Where `pack` takes addresses, these
take one-dimensional uint8 arrays, and `at`, the index in `scattered` of block 0 or of offset 0.
"""

from __future__ import annotations

import numpy as np

from .rules import check, check_scalable

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
    if kind == "byte":
        dst, a, b = (array.view(np.uint8) for array in (dst, a, b))
    with np.errstate(all="ignore"):
        _UFUNCS[op](a, b, out=dst, casting="unsafe")


def scale(dst: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """dst[i] = a[i] / b[0]: arrays of one dtype, b of one element; dst may be a.

    Raises as scale.address does: TypeError, or NoKernel for a dtype without kernels.
    """
    check_scalable(dst.dtype)
    divide(dst, a, b.real[0])


def divide(dst: np.ndarray, a: np.ndarray, by: float) -> None:
    """scale() for any floating or complex dtype that NumPy has, long double too."""
    if dst.dtype.kind == "c":  # part by part: NumPy divides complex numbers through a reciprocal
        part = dst.real.dtype
        dst, a = dst.view(part), a.view(part)
    with np.errstate(all="ignore"):
        np.true_divide(a, dst.dtype.type(by), out=dst)


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
    """From the elements in `scattered` into `packed`; returns the bytes moved."""
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
    """From `packed` into the elements in `scattered`; returns the bytes moved."""
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
