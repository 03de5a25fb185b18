"""Operators and data for reductions: user operators, MPI's pairs, and what the standard lets each type take."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial, reduce, wraps
from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

import mpicoll

OpOrType = TypeVar("OpOrType", MPI.Op, MPI.Datatype)
ARITHMETIC, EXTREMES = ("SUM", "PROD"), ("MAX", "MIN")
LOGICAL, BITWISE, LOCATIONS = ("LAND", "LOR", "LXOR"), ("BAND", "BOR", "BXOR"), ("MAXLOC", "MINLOC")
OPERATORS = (*ARITHMETIC, *EXTREMES, *LOGICAL, *BITWISE, *LOCATIONS)

# MPI 4.1, section 6.9.2: the operators of each group of types
TAKES = {
    "C integer": ARITHMETIC + EXTREMES + LOGICAL + BITWISE,
    "Fortran integer": ARITHMETIC + EXTREMES + BITWISE,
    "floating": ARITHMETIC + EXTREMES,
    "complex": ARITHMETIC,
    "logical": LOGICAL,
    "byte": BITWISE,
    "multi-language": ARITHMETIC + EXTREMES + BITWISE,
    "pair": LOCATIONS,
}
# Types with the NumPy dtype of one element, by group; all of these have kernels.
TYPES = {
    "C integer": {
        "SIGNED_CHAR": "b", "SHORT": "h", "INT": "i", "LONG": "l", "LONG_LONG": "q", "UNSIGNED_CHAR": "B",
        "UNSIGNED_SHORT": "H", "UNSIGNED": "I", "UNSIGNED_LONG": "L", "UNSIGNED_LONG_LONG": "Q",
        "INT8_T": "i1", "INT64_T": "i8", "UINT16_T": "u2", "UINT32_T": "u4",
    },
    "Fortran integer": {"INTEGER": "i4", "INTEGER8": "i8"},
    "floating": {"FLOAT": "f", "DOUBLE": "d", "DOUBLE_PRECISION": "d"},
    "complex": {"C_FLOAT_COMPLEX": "F", "C_DOUBLE_COMPLEX": "D"},
    "logical": {"C_BOOL": "?"},
    "byte": {"BYTE": "u1"},
    "multi-language": {"AINT": "i8", "OFFSET": "i8", "COUNT": "i8"},
    "pair": {"FLOAT_INT": "f", "DOUBLE_INT": "d", "LONG_INT": "l", "SHORT_INT": "h", "TWOINT": "i"},
}
EVERY_TYPE = [(group, name) for group, names in TYPES.items() for name in names]


def present(name: str) -> bool:
    """Return whether this MPI has a datatype; without a Fortran compiler some are missing."""
    datatype = getattr(MPI, name, None)
    return datatype is not None and datatype != MPI.DATATYPE_NULL and datatype.Get_size() > 0


def values(n: int, rank: int, dtype: Any, op: str = "SUM") -> np.ndarray:
    """Return whole numbers whose sums and products over sixteen ranks are exact in any dtype.

    MPI does not define the result of an overflow, and some builtins stop at the largest number.
    """
    base = (np.arange(n) * 5 + rank * 7) % 11
    if op in LOGICAL:
        return (base % 3).astype(dtype)
    if op == "PROD":
        return (1 + ((np.arange(n) + rank) % 4 == 0)).astype(dtype)
    if np.dtype(dtype).kind in "iu":
        return (base % 8 if op == "SUM" else base * 23 - 64).astype(np.int64).astype(dtype)
    if np.dtype(dtype).kind == "c":
        return (base - 4 + 1j * (base % 4)).astype(dtype)
    return (base - 4).astype(dtype)


def pairs(n: int, rank: int, dtype: Any) -> np.ndarray:
    """Return MPI's pairs, with equal values on several ranks."""
    elements = np.zeros(n, np.dtype([("value", dtype), ("index", "i")], align=True))
    elements["value"] = (np.arange(n) + rank * 3) % 4 - 1
    elements["index"] = (rank * 5 + np.arange(n)) % 7
    return elements


def maker(group: str, name: str, op: str) -> Any:
    """Return the data of one rank for a type and operator, as a function of (n, rank)."""
    dtype = TYPES[group][name]
    if group == "multi-language":       # Open MPI compares OFFSET without its sign
        return lambda n, rank: abs(values(n, rank, dtype, op))
    return partial(pairs, dtype=dtype) if group == "pair" else partial(values, dtype=dtype, op=op)


# User operators. In MPI's convention the second buffer becomes first ∘ second.

MODULUS = 97


def _affine(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """Compose maps x → ux + v modulo 97, two to an int64: associative, not commutative."""
    f, g = np.frombuffer(a, np.int64), np.frombuffer(b, np.int64)
    g[:] = compose(f, g)


def compose(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Return the composition x → f(g(x))."""
    (u, v), (s, t) = divmod(f, MODULUS), divmod(g, MODULUS)
    return (u * s % MODULUS) * MODULUS + (u * t + v) % MODULUS


def maps(n: int, rank: int) -> np.ndarray:
    """Return one map per element, invertible and different on every rank."""
    return (np.arange(n) % 90 + rank + 2) * MODULUS + (np.arange(n) * 7 + rank * 3) % MODULUS


def _product(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """Multiply 2 × 2 matrices modulo 97, four int64 to one element."""
    x, y = (np.frombuffer(m, np.int64).reshape(-1, 2, 2) for m in (a, b))
    y[:] = x @ y % MODULUS


def matrices(n: int, rank: int) -> np.ndarray:
    """Return n matrices of one rank, flat."""
    return (np.arange(4 * n) * 5 + rank * 17 + 3) % MODULUS


def _add(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """Add modulo 251: commutative."""
    x, y = np.frombuffer(a, np.int64), np.frombuffer(b, np.int64)
    y[:] = (x + y) % 251


@contextmanager
def user_op(function: Any, commute: bool = False) -> Iterator[MPI.Op]:
    """Yield a user operator and free it at the end."""
    op = MPI.Op.Create(function, commute)
    try:
        yield op
    finally:
        op.Free()


AFFINE, PRODUCT, ADD = _affine, _product, _add
USER = {"AFFINE": (AFFINE, False), "PRODUCT": (PRODUCT, False), "ADD": (ADD, True)}    # (function, commutes)


def once(make: Callable[..., OpOrType]) -> Callable[..., OpOrType]:
    """Make an MPI object once for the same arguments, also if several threads call at the same time."""
    lock, cached = threading.Lock(), cache(make)

    @wraps(make)
    def locked(*arguments: str) -> OpOrType:
        with lock:
            return cached(*arguments)

    return locked


@once
def operator(op: str) -> MPI.Op:
    """Return the operator of a name in COMBINE, or AVG; a user's is never freed."""
    if op in USER:
        return MPI.Op.Create(*USER[op])
    return mpicoll.AVG if op == "AVG" else getattr(MPI, op)


# Reductions in NumPy.


def _located(better: Any) -> Any:
    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        x, y = a["value"], b["value"]
        return np.where(better(x, y) | ((x == y) & (a["index"] <= b["index"])), a, b)

    return combine


def _multiplied(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a.reshape(-1, 2, 2) @ b.reshape(-1, 2, 2) % MODULUS).ravel()


COMBINE: dict[str, Any] = {
    "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum,
    "LAND": lambda a, b: ((a != 0) & (b != 0)).astype(a.dtype),
    "LOR": lambda a, b: ((a != 0) | (b != 0)).astype(a.dtype),
    "LXOR": lambda a, b: ((a != 0) ^ (b != 0)).astype(a.dtype),
    "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
    "MAXLOC": _located(np.greater), "MINLOC": _located(np.less),
    "AFFINE": compose, "PRODUCT": _multiplied, "ADD": lambda a, b: (a + b) % 251,
}


def combined(op: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Combine contributions in rank order; "AVG" divides their sum by their number."""
    total = reduce(COMBINE["SUM" if op == "AVG" else op], parts)
    if op != "AVG":
        return total
    real = total.real.dtype
    return (np.ascontiguousarray(total).view(real) / real.type(len(parts))).view(total.dtype)


@contextmanager
def matrix_type() -> Iterator[MPI.Datatype]:
    """Yield the datatype of one 2 × 2 matrix."""
    datatype = MPI.INT64_T.Create_contiguous(4).Commit()
    try:
        yield datatype
    finally:
        datatype.Free()
