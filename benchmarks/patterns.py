"""Buffers for one call of a collective, filled so that the right answer is known exactly.

What a size in bytes means, as in the OSU benchmarks (rounded down to whole elements, and at least one):

    bcast, reduce, allreduce        the vector
    reduce_scatter                  the whole vector, of which each rank gets about 1/p
    scatter, gather, allgather      one rank's share
    alltoall                        what one rank sends to one other
    barrier                         nothing; it has one row

Values are small integers, exact in every dtype, so results are compared for equality. They repeat after
PERIOD elements, a prime, so that no block that is out of place looks right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mpicoll.blocks import offsets, sizes

PERIOD = 251
DTYPES = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"), "integer"),
    **dict.fromkeys(("float32", "float64"), "floating"),
    **dict.fromkeys(("complex64", "complex128"), "complex"),
    "bool": "logical",
}
# What an operator folds with here, and the kinds of dtype it takes in MPI.
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

REDUCES = ("reduce", "reduce_scatter", "allreduce")
ROOTED = ("bcast", "scatter", "gather", "reduce")
WITHOUT_IN_PLACE = ("barrier", "bcast")


def moved(source: int, destination: int, n: int, dtype: np.dtype) -> np.ndarray:
    """n elements that say where they come from and where they go."""
    i = np.arange(PERIOD)
    span = 2 if dtype.kind == "b" else 125 if dtype.itemsize == 1 else PERIOD
    return np.resize(((5 * i + 31 * source + 7 * destination + i * source) % span).astype(dtype), n)


def contributed(rank: int, p: int, op: str, dtype: np.dtype) -> np.ndarray:
    """One period of what a rank contributes to a reduction."""
    i = np.arange(PERIOD)
    if op in _RARE:
        return np.where((i + rank) % (2 * p) == 0, *_RARE[op]).astype(dtype)
    if dtype.kind == "b":
        return ((i + rank) % 3 == 0).astype(dtype)
    return (1 + (5 * i + 3 * rank) % (3 if dtype.itemsize == 1 else 17)).astype(dtype)


def folded(p: int, op: str, dtype: np.dtype) -> np.ndarray:
    """One period of the contributions of p ranks, reduced."""
    ufunc = OPERATORS[op][0]
    total = contributed(0, p, op, dtype)
    for rank in range(1, p):
        total = ufunc(total, contributed(rank, p, op, dtype)).astype(dtype)
    return total


@dataclass(frozen=True)
class Shape:
    """What is called, apart from the size: names of the collective, dtype and operator."""

    collective: str
    dtype: str = "float64"
    op: str = "sum"
    root: int = 0
    in_place: bool = False

    def elements(self, nbytes: int) -> int:
        """Elements in a message of a size in bytes."""
        if self.collective == "barrier" or nbytes == 0:
            return 0
        return max(1, nbytes // np.dtype(self.dtype).itemsize)


class Case:
    """One rank's buffers for one shape at one size, and what must be in them afterwards."""

    def __init__(self, shape: Shape, nbytes: int, rank: int, p: int) -> None:
        self.shape, self.rank, self.p = shape, rank, p
        self.dtype = np.dtype(shape.dtype)
        self.count = shape.elements(nbytes)
        self.nbytes = self.count * self.dtype.itemsize
        self.counts = sizes(self.count, p)
        self.is_root = rank == shape.root
        rooted = shape.collective in ROOTED
        self.in_place = shape.in_place and (self.is_root or not rooted)
        self.send = self._sent()
        self.recv = self._room()
        self.refill()

    def _sent(self) -> np.ndarray | None:
        """What this rank contributes."""
        collective, p, n = self.shape.collective, self.p, self.count
        if collective in REDUCES:
            return np.resize(contributed(self.rank, p, self.shape.op, self.dtype), n)
        if collective in ("scatter", "alltoall"):
            if collective == "scatter" and not self.is_root:
                return None
            return np.concatenate([moved(self.rank, d, n, self.dtype) for d in range(p)])
        if collective == "barrier" or (collective == "bcast" and not self.is_root):
            return None
        return moved(self.rank, 0, n, self.dtype)

    def _room(self) -> np.ndarray | None:
        """Where this rank's result goes."""
        collective, n = self.shape.collective, self.count
        if collective == "barrier" or (collective in ("gather", "reduce") and not self.is_root):
            return None
        if collective == "bcast":
            return self.send if self.is_root else np.zeros(n, self.dtype)
        if collective == "reduce_scatter":
            return np.zeros(n if self.in_place else self.counts[self.rank], self.dtype)
        shares = self.p if collective in ("gather", "allgather", "alltoall") else 1
        return np.zeros(shares * n, self.dtype)

    def expected(self) -> np.ndarray | None:
        """The right answer on this rank; None where there is none."""
        shape, p, n = self.shape, self.p, self.count
        if self.recv is None or (shape.collective == "scatter" and self.in_place):
            return None
        match shape.collective:
            case "bcast":
                return moved(shape.root, 0, n, self.dtype)
            case "scatter":
                return moved(shape.root, self.rank, n, self.dtype)
            case "gather" | "allgather":
                return np.concatenate([moved(s, 0, n, self.dtype) for s in range(p)])
            case "alltoall":
                return np.concatenate([moved(s, self.rank, n, self.dtype) for s in range(p)])
        whole = np.resize(folded(p, shape.op, self.dtype), n)
        if shape.collective != "reduce_scatter":
            return whole
        first = offsets(self.counts)[self.rank]
        return whole[first : first + self.counts[self.rank]]

    def poison(self) -> None:
        """Put a wrong value wherever the answer must come: NaN, or the answer's complement."""
        answer = self.expected()
        if answer is None or answer is self.send or (self.shape.collective == "bcast" and self.is_root):
            return
        wrong = np.full_like(answer, np.nan) if self.dtype.kind in "fc" else ~answer
        self.recv[: len(answer)] = wrong  # type: ignore[index]
        self.refill()

    def refill(self) -> None:
        """Put this rank's contribution back in place; nothing to do where it has a buffer of its own."""
        if not self.in_place or self.shape.collective == "scatter":
            return
        own = self.rank * self.count if self.shape.collective in ("gather", "allgather") else 0
        self.recv[own : own + len(self.send)] = self.send  # type: ignore[index, arg-type]

    def is_right(self) -> bool:
        """Whether the answer is the right one, exactly."""
        answer = self.expected()
        return answer is None or bool(np.array_equal(self.recv[: len(answer)], answer))  # type: ignore[index]

    @property
    def method(self) -> str:
        """The name of the communicator's method."""
        return self.shape.collective.capitalize()

    def arguments(self, mpi: Any) -> tuple[Any, ...]:
        """The method's positional arguments; mpi is the module mpi4py.MPI."""
        shape = self.shape
        if shape.collective == "barrier":
            return ()
        if shape.collective == "bcast":
            return self.recv, shape.root
        send, recv = self.send, self.recv
        if self.in_place and shape.collective == "scatter":
            recv = mpi.IN_PLACE
        elif self.in_place:
            send = mpi.IN_PLACE
        op = getattr(mpi, shape.op.upper())
        extra = {
            "reduce": (op, shape.root),
            "reduce_scatter": (self.counts, op),
            "allreduce": (op,),
            "scatter": (shape.root,),
            "gather": (shape.root,),
        }
        return send, recv, *extra.get(shape.collective, ())


def footprint(shape: Shape, nbytes: int, p: int) -> int:
    """Bytes of the buffers on the rank that has most: p times the size where shares are collected."""
    shares = {"scatter": p + 1, "gather": p + 1, "allgather": p + 1, "alltoall": 2 * p}
    return nbytes * shares.get(shape.collective, 2)
