"""Fill buffers with small integers, exact in every dtype, so that results are compared for equality.

They repeat after PERIOD elements, a prime, so that no block that is out of place looks right.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import numpy as np

from mpicoll.kernels.rules import LOW, low

PERIOD = 251
DTYPES = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), "integer"),
    **dict.fromkeys(("float32", "float64"), "floating"),
    **dict.fromkeys(("complex64", "complex128"), "complex"),
    "bool": "logical",
    **dict.fromkeys(("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"), "floating"),
}
# The NumPy function of each operator, and the kinds of dtype it takes in MPI.
_NUMBERS, _ORDERED = ("integer", "floating", "complex"), ("integer", "floating")
OPERATORS: dict[str, tuple[np.ufunc, tuple[str, ...]]] = {
    "sum": (np.add, _NUMBERS),
    "prod": (np.multiply, _NUMBERS),
    "max": (np.maximum, _ORDERED),
    "min": (np.minimum, _ORDERED),
    "band": (np.bitwise_and, ("integer",)),
    "bor": (np.bitwise_or, ("integer",)),
    "bxor": (np.bitwise_xor, ("integer",)),
    "land": (np.logical_and, ("integer", "logical")),
    "lor": (np.logical_or, ("integer", "logical")),
    "lxor": (np.logical_xor, ("integer", "logical")),
}
# Operators that would soon saturate get (a rare value, the usual one) instead of a mixture.
_RARE = {"prod": (2, 1), "land": (0, 1), "lor": (1, 0), "band": (2, 7), "bor": (4, 1)}


def dtype_of(name: str) -> np.dtype:
    """Return the dtype of a name in DTYPES. Raises ValueError where ml_dtypes has it and is not installed."""
    if name in LOW and LOW[name].names:
        try:
            ml_dtypes = import_module("ml_dtypes")
        except ImportError:
            raise ValueError(f"{name} is ml_dtypes'; pip install 'mpicoll[lowp]'") from None
        dtype: np.dtype = np.dtype(getattr(ml_dtypes, name))
        return dtype
    return np.dtype(name)


def moved(source: int, destination: int, n: int, dtype: np.dtype) -> np.ndarray:
    """Return n elements whose values encode their source and destination."""
    i = np.arange(PERIOD)
    if low(dtype) and dtype.itemsize == 1:  # of whole numbers there are few: what bits these make, below any NaN
        return np.resize(((5 * i + 31 * source + 7 * destination + i * source) % 120).astype(np.uint8).view(dtype), n)
    span = 2 if dtype.kind == "b" else 125 if dtype.itemsize == 1 else PERIOD
    return np.resize(((5 * i + 31 * source + 7 * destination + i * source) % span).astype(dtype), n)


def contributed(rank: int, p: int, op: str, dtype: np.dtype) -> np.ndarray:
    """Return one period of what a rank contributes to a reduction."""
    i = np.arange(PERIOD)
    if low(dtype) and dtype.itemsize == 1 and op not in _RARE:  # sums of more than 8 are not exact
        few: np.ndarray = ((i + rank) % -(-p // 8) == 0).astype(dtype)
        return few
    if op in _RARE:
        return np.where((i + rank) % (2 * p) == 0, *_RARE[op]).astype(dtype)
    if dtype.kind == "b":
        true: np.ndarray = ((i + rank) % 3 == 0).astype(dtype)
        return true
    return (1 + (5 * i + 3 * rank) % (3 if dtype.itemsize == 1 or low(dtype) else 17)).astype(dtype)


def reduced(ranks: Iterable[int], p: int, op: str, dtype: np.dtype) -> np.ndarray:
    """Return one period of the contributions of some of p ranks, at least one, reduced."""
    ufunc = OPERATORS[op][0]
    first, *others = (contributed(rank, p, op, dtype) for rank in ranks)
    for other in others:
        first = ufunc(first, other).astype(dtype)
    return first


def wrong(answer: np.ndarray) -> np.ndarray:
    """Return as many elements, none of them right: NaN, or the answer's complement."""
    return np.full_like(answer, np.nan) if answer.dtype.kind in "fc" or low(answer.dtype) else ~answer
