"""Operators and data for reductions: user operators, MPI's pairs, and what the standard lets each type take."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import numpy as np
from mpi4py import MPI

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
    """Whether this MPI has a datatype; without a Fortran compiler some are missing."""
    datatype = getattr(MPI, name, None)
    return datatype is not None and datatype != MPI.DATATYPE_NULL and datatype.Get_size() > 0


def values(n: int, rank: int, dtype: Any, op: str = "SUM") -> np.ndarray:
    """Whole numbers of which sixteen ranks' add up and multiply exactly in any dtype. MPI does not say what an
    overflow gives, and some builtins stop at the largest number."""
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
    """MPI's pairs, with equal values on several ranks."""
    made = np.zeros(n, np.dtype([("value", dtype), ("index", "i")], align=True))
    made["value"] = (np.arange(n) + rank * 3) % 4 - 1
    made["index"] = (rank * 5 + np.arange(n)) % 7
    return made


def maker(group: str, name: str, op: str) -> Any:
    """The data of one rank for a type and operator, as a function of (n, rank)."""
    dtype = TYPES[group][name]
    if group == "multi-language":       # Open MPI compares OFFSET without its sign
        return lambda n, rank: abs(values(n, rank, dtype, op))
    return partial(pairs, dtype=dtype) if group == "pair" else partial(values, dtype=dtype, op=op)


# User operators. In MPI's convention the second buffer becomes first ∘ second.

MODULUS = 97


def _affine(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """Maps x → ux + v modulo 97, two to an int64, composed: associative, and order matters."""
    f, g = np.frombuffer(a, np.int64), np.frombuffer(b, np.int64)
    g[:] = compose(f, g)


def compose(f: np.ndarray, g: np.ndarray) -> np.ndarray:
    """f after g."""
    (u, v), (s, t) = divmod(f, MODULUS), divmod(g, MODULUS)
    return (u * s % MODULUS) * MODULUS + (u * t + v) % MODULUS


def maps(n: int, rank: int) -> np.ndarray:
    """One map per element, invertible and different on every rank."""
    return (np.arange(n) % 90 + rank + 2) * MODULUS + (np.arange(n) * 7 + rank * 3) % MODULUS


def composed(n: int, p: int) -> np.ndarray:
    """All ranks' maps, in rank order."""
    return reduce(compose, [maps(n, rank) for rank in range(p)])


def _product(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """2 × 2 matrices modulo 97, four int64 to one element."""
    x, y = (np.frombuffer(m, np.int64).reshape(-1, 2, 2) for m in (a, b))
    y[:] = x @ y % MODULUS


def matrices(n: int, rank: int) -> np.ndarray:
    """n matrices of one rank, flat."""
    return (np.arange(4 * n) * 5 + rank * 17 + 3) % MODULUS


def multiplied(n: int, p: int) -> np.ndarray:
    """All ranks' matrices, multiplied in rank order, flat."""
    factors = [matrices(n, rank).reshape(-1, 2, 2) for rank in range(p)]
    return reduce(lambda x, y: x @ y % MODULUS, factors).ravel()


def _add(a: Any, b: Any, datatype: MPI.Datatype) -> None:
    """Addition modulo 251: commutative."""
    x, y = np.frombuffer(a, np.int64), np.frombuffer(b, np.int64)
    y[:] = (x + y) % 251


@contextmanager
def user_op(function: Any, commute: bool = False) -> Iterator[MPI.Op]:
    """A user operator, freed at the end."""
    op = MPI.Op.Create(function, commute)
    try:
        yield op
    finally:
        op.Free()


AFFINE, PRODUCT, ADD = _affine, _product, _add


@contextmanager
def matrix_type() -> Iterator[MPI.Datatype]:
    """The datatype of one 2 × 2 matrix."""
    datatype = MPI.INT64_T.Create_contiguous(4).Commit()
    try:
        yield datatype
    finally:
        datatype.Free()
