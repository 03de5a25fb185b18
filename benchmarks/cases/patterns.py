"""Calls of the collectives, a row for each; mpicoll.schedules.collectives says what each of them means.

What a size in bytes means, as in the OSU benchmarks (rounded down to whole elements, and at least one):

    bcast, reduce, allreduce, scan, exscan      the vector
    reduce_scatter                              the whole vector, of which each rank gets about 1/p
    reduce_scatter_block                        as much, rounded up to equal blocks
    scatter, gather, allgather                  one rank's share; of scatterv, gatherv, allgatherv on average
    alltoall                                    what one rank sends to one other; of alltoallv, alltoallw on average
    barrier                                     nothing; it has one row
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mpicoll.kernels.rules import low
from mpicoll.schedules.blocks import offsets, sizes
from mpicoll.schedules.collectives import COLLECTIVES, Collective, at_namesake, base_collective

from .contents import DTYPES, OPERATORS, dtype_of
from .counts import EVEN, SHARES
from .forms import BLOCKING, FORMS, PERSISTENT

ROTATING = "rotating"  # a root that is another rank each round


@dataclass(frozen=True)
class Side:
    """The blocks a rank sends or receives, lying one behind the other: elements in each."""

    blocks: Sequence[Any]
    counts: list[int]

    @property
    def places(self) -> list[int]:
        """Return where each block begins, in elements."""
        return offsets(self.counts)

    @property
    def total(self) -> int:
        """Return the number of elements in all blocks."""
        return sum(self.counts)


# -- how a buffer is passed


Form = Callable[[np.ndarray, Side, Any], Any]


def whole(array: np.ndarray, side: Side, mpi: Any) -> Any:
    """Return the array itself: blocks are equal, or there is but one."""
    return array


def counted(array: np.ndarray, side: Side, mpi: Any) -> Any:
    """Return the buffer with counts and displacements in elements."""
    return [array, side.counts, side.places, _datatype(array, mpi)]


def typed(array: np.ndarray, side: Side, mpi: Any) -> Any:
    """Return the buffer with a datatype for every block, and displacements in bytes."""
    datatype = _datatype(array, mpi)
    return [array, side.counts, [x * array.itemsize for x in side.places], [datatype] * len(side.counts)]


def _datatype(array: np.ndarray, mpi: Any) -> Any:
    from mpicoll.buffers.datatypes import low_facts

    known = low_facts(low(array.dtype) or "")
    return mpi.Datatype.fromcode(array.dtype.char) if known is None else known.datatype


# -- the table


@dataclass(frozen=True)
class Pattern:
    """One collective: the forms of its buffers (None: it does not take one), and its arguments after them.

    in_place: the argument that MPI.IN_PLACE can stand for, "send" or "recv"; "" where MPI has no such form.
    """

    collective: str
    send: Form | None
    recv: Form | None
    then: tuple[str, ...] = ()
    in_place: str = ""

    @property
    def meaning(self) -> Collective:
        """Return which ranks start with which blocks, and which ranks end with them."""
        return COLLECTIVES[base_collective(self.collective)]

    @property
    def has_counts(self) -> bool:
        """Return whether blocks have counts of their own."""
        return self.send in (counted, typed) or self.recv in (counted, typed)

    def lengths(self, n: int, p: int, counts: str = EVEN) -> list[int]:
        """Return the elements of every block for n elements; blocks (s, d) and (d, s) have those of place s + d."""
        match self.meaning.naming:
            case "none":
                return []
            case "vector":
                return [n]
        if self.meaning.reduces:
            return sizes(n, p) if "counts" in self.then else [-(-n // p)] * p
        return SHARES[counts](n, p)

    def length(self, block: Any, lengths: list[int]) -> int:
        """Return the elements of one block, of the lengths above."""
        place: int = sum(block) % len(lengths) if self.meaning.naming == "pair" else block
        return lengths[place]

    def sides(self, lengths: list[int], p: int, rank: int, root: int) -> tuple[Side, Side]:
        """Return the blocks a rank starts with, and those it ends with."""
        blocks = range(len(lengths))

        def side(side_blocks: Sequence[Any]) -> Side:
            return Side(side_blocks, [self.length(b, lengths) for b in side_blocks])

        starts, ends = self.meaning.starts(blocks, p, rank, root), self.meaning.ends(blocks, p, rank, root)
        return side(starts), side(ends)

    def way(self, block: Any, root: int) -> tuple[int, int]:
        """Return a moved block's source and destination; 0 for a destination of all ranks, or for a single one."""
        if self.meaning.naming == "pair":
            pair: tuple[int, int] = block
            return pair
        return self.meaning.source(block, root), block if self.meaning.ends is at_namesake else 0


PATTERNS = {
    row.collective: row
    for row in (
        Pattern("barrier", None, None),
        Pattern("bcast", None, whole, ("root",)),
        Pattern("scatter", whole, whole, ("root",), in_place="recv"),
        Pattern("gather", whole, whole, ("root",), in_place="send"),
        Pattern("allgather", whole, whole, in_place="send"),
        Pattern("reduce", whole, whole, ("op", "root"), in_place="send"),
        Pattern("reduce_scatter", whole, whole, ("counts", "op"), in_place="send"),
        Pattern("reduce_scatter_block", whole, whole, ("op",), in_place="send"),
        Pattern("allreduce", whole, whole, ("op",), in_place="send"),
        Pattern("scan", whole, whole, ("op",), in_place="send"),
        Pattern("exscan", whole, whole, ("op",), in_place="send"),
        Pattern("alltoall", whole, whole, in_place="send"),
        Pattern("scatterv", counted, whole, ("root",), in_place="recv"),
        Pattern("gatherv", whole, counted, ("root",), in_place="send"),
        Pattern("allgatherv", whole, counted, in_place="send"),
        Pattern("alltoallv", counted, counted, in_place="send"),
        Pattern("alltoallw", typed, typed, in_place="send"),
    )
}


# -- what is called


@dataclass(frozen=True)
class Shape:
    """A collective call without its size: names of the collective, dtype and operator, how shares differ, the form.

    root: a rank, or ROTATING. fresh: every call gets new arrays.
    """

    collective: str
    dtype: str = "float64"
    op: str = "sum"
    root: int | str = 0
    in_place: bool = False
    counts: str = EVEN
    form: str = BLOCKING
    fresh: bool = False

    @property
    def pattern(self) -> Pattern:
        """Return the collective's row."""
        return PATTERNS[self.collective]

    def bytes_of_call(self, size: int, p: int) -> int:
        """Return what selection goes by, of a size as benchmarks mean it: see Claims for whose bytes.

        >>> [Shape(name).bytes_of_call(64, 3) for name in ("allreduce", "allgather", "reduce_scatter_block")]
        [64, 192, 72]
        """
        return sum(self.pattern.lengths(self.elements(size), p)) * dtype_of(self.dtype).itemsize

    @property
    def facts(self) -> dict[str, Any]:
        """Return the settings by name; None for those that do not apply to this collective."""
        pattern = self.pattern
        return {
            "form": self.form,
            "dtype": self.dtype if pattern.recv is not None else None,
            "op": self.op if pattern.meaning.reduces else None,
            "root": self.root if pattern.meaning.rooted else None,
            "in_place": self.in_place,
            "counts": self.counts if pattern.has_counts else None,
            "fresh": self.fresh,
        }

    @property
    def title(self) -> str:
        """Return the settings that apply, in words."""
        facts = self.facts
        words = [
            self.form if self.form != BLOCKING else None,
            self.collective,
            facts["dtype"],
            facts["op"],
            None if facts["root"] is None else f"root {self.root}",
            facts["counts"] and f"{self.counts} counts",
            "in place" if self.in_place else None,
            "fresh arrays" if self.fresh else None,
        ]
        return " ".join(word for word in words if word)

    def roots(self, p: int) -> list[int]:
        """Return the roots that calls have in turn."""
        return list(range(p)) if self.root == ROTATING else [int(self.root)]

    def turn(self, number: int, p: int) -> Shape:
        """Return what is called in a round, with the root it has there."""
        roots = self.roots(p)
        return replace(self, root=roots[number % len(roots)])

    def elements(self, nbytes: int) -> int:
        """Return the elements in a message of a size in bytes."""
        if self.pattern.recv is None or nbytes == 0:
            return 0
        return max(1, nbytes // dtype_of(self.dtype).itemsize)

    def check(self, p: int) -> None:  # noqa: C901 - a list of refusals
        """Raise ValueError for what MPI does not have."""
        name, pattern = self.collective, self.pattern
        if self.dtype not in DTYPES:
            raise ValueError(f"no dtype is called {self.dtype!r}; there is {', '.join(DTYPES)}")
        if self.op not in OPERATORS:
            raise ValueError(f"no operator is called {self.op!r}; there is {', '.join(OPERATORS)}")
        kind = DTYPES[self.dtype]
        dtype_of(self.dtype)
        if pattern.meaning.reduces and kind not in OPERATORS[self.op][1]:
            raise ValueError(f"MPI does not have the operator {self.op} for {kind} types such as {self.dtype}")
        if self.in_place and not pattern.in_place:
            raise ValueError(f"{name} has no in-place form")
        if self.root != ROTATING and not (isinstance(self.root, int) and 0 <= self.root < p):
            ranks = f"{p} rank{'s' * (p > 1)}"
            raise ValueError(f"root is {self.root}; with {ranks} it must be in 0..{p - 1}, or {ROTATING!r}")
        if self.root and not pattern.meaning.rooted:
            raise ValueError(f"{name} has no root")
        if self.form not in FORMS:
            raise ValueError(f"--form is {self.form!r}; it must be one of {', '.join(FORMS)}")
        if self.fresh and self.form == PERSISTENT:
            raise ValueError("a persistent collective has its arrays for good: --fresh is not for it")
        if self.counts not in SHARES:
            raise ValueError(f"--counts is {self.counts!r}; it must be one of {', '.join(SHARES)}")
        if self.counts != EVEN and not pattern.has_counts:
            those = ", ".join(row.collective for row in PATTERNS.values() if row.has_counts)
            raise ValueError(f"{name} has no counts for every rank; {those} do")

    def footprint(self, nbytes: int, p: int) -> int:
        """Return the bytes of the buffers on the rank that has most: p times the size where shares are collected."""
        meaning = self.pattern.meaning
        if meaning.naming == "pair":
            return 2 * p * nbytes
        if meaning.naming == "rank" and not meaning.reduces:
            return p * nbytes + max(SHARES[self.counts](nbytes, p))
        return 2 * nbytes
