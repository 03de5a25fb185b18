"""Datatypes, how elements lie in memory, and operators; and what a rank contributes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI
from support import ops
from support.collectives import AVERAGED_METHODS
from support.ops import USER, once

from mpicoll.kernels import rules

# The NumPy dtype of one element by MPI's name. The last two are for reductions: one with padding in its elements, and
# the elements of a user's operator that are four numbers each.
DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype([("value", code), ("index", "i")], align=True) if group == "pair" else np.dtype(code)
    for group, names in ops.TYPES.items() for name, code in names.items()
} | {"LONG_DOUBLE": np.dtype("g"), "MATRIX": np.dtype("V32")}
GROUPS = {name: group for group, names in ops.TYPES.items() for name in names} | {"LONG_DOUBLE": "floating"}


def takes(name: str, method: str) -> tuple[str, ...]:
    """Return the operators for a datatype in a method, the simplest first."""
    if name == "MATRIX":
        return ("PRODUCT",)
    group = GROUPS[name]
    own = ("AFFINE", "ADD") if name == "INT64_T" else ()
    has_kernel = name != "LONG_DOUBLE" or rules.EXTENDED
    average = ("AVG",) if has_kernel and group in rules.SCALABLE and method in AVERAGED_METHODS else ()
    return (*ops.TAKES[group], *average, *own)


def commutes(op: str) -> bool:
    """Return whether operands may change places."""
    return USER[op][1] if op in USER else True


@dataclass(frozen=True)
class Layout:
    """An element as numbers within `width` places, in the order of `picks`."""

    picks: tuple[int, ...] = (0,)
    width: int = 1


LAYOUTS = {
    "plain": Layout(),
    "contiguous": Layout((0, 1, 2), 3),
    "vector": Layout((0, 2), 4),
    "indexed": Layout((0, 1, 3), 5),
    "subarray": Layout((1, 2), 4),
    "backwards": Layout((2, 0), 3),
}


@once
def datatype(name: str, layout: str) -> MPI.Datatype:
    """Return the MPI datatype of an element, created once."""
    if name == "MATRIX":
        return MPI.INT64_T.Create_contiguous(4).Commit()
    base = getattr(MPI, name)
    if layout == "plain":
        return base
    makers = {
        "contiguous": lambda: base.Create_contiguous(3),
        "vector": lambda: base.Create_vector(2, 1, 2),
        "indexed": lambda: base.Create_indexed([2, 1], [0, 3]),
        "subarray": lambda: base.Create_subarray([4], [2], [1]),
        "backwards": lambda: base.Create_indexed([1, 1], [2, 0]),
    }
    return makers[layout]().Create_resized(0, LAYOUTS[layout].width * base.extent).Commit()


@cache
def significant(name: str) -> np.ndarray:
    """Mark the bytes of an element that are data; the others are padding with undefined contents."""
    dtype = DTYPES[name]
    data = np.zeros(dtype.itemsize, bool)
    if dtype.names:
        for field, offset in (dtype.fields[key][:2] for key in dtype.names):        # type: ignore[index]
            data[offset : offset + field.itemsize] = True
    else:
        data[: 10 if name == "LONG_DOUBLE" and dtype.itemsize == 16 else None] = True
    return data


def moved(name: str, n: int, source: int, destination: int, salt: int) -> np.ndarray:
    """Return the arbitrary bytes that one rank sends another."""
    data = np.frombuffer(np.random.default_rng((salt, source, destination)).bytes(n * DTYPES[name].itemsize), np.uint8)
    return data & 1 if name == "C_BOOL" else data


def contributed(name: str, op: str, n: int, rank: int, salt: int) -> np.ndarray:
    """Return the numbers that a rank contributes to a reduction, which combine exactly in any order."""
    rank += 5 * salt
    if name == "MATRIX":
        return ops.matrices(n, rank).astype(np.int64)
    if op in USER:
        return ops.maps(n, rank).astype(np.int64)
    group, dtype = GROUPS[name], DTYPES[name]
    if group == "pair":
        return ops.pairs(n, rank, ops.TYPES["pair"][name])
    numbers = ops.values(n, rank, dtype, "SUM" if op == "AVG" else op)
    return abs(numbers) if group == "multi-language" else numbers     # Open MPI compares OFFSET without its sign
