"""Find where a call says its counts and displacements: in the lengths of its arrays, or among the details of its key.

signature.compute_key() writes the details in compiled code. Integers finds the index of every integer among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.buffer import Buffer
from ..buffers.datatypes import TypeFacts, facts
from ..buffers.vector import Vector
from ..dispatch.methods import Invocation

Indices = int | list[int] | None  # of an integer, or of an integer for every block; None if the call has none


class UnknownCounts(Exception):
    """Compiled code cannot read the counts of such calls from their arguments."""


class Integers:
    """The indices of integers in the details of a call.

    send and recv mirror the items after the buffer in either message, recvcounts the argument of that name: an index, a
    list or tuple of indices, or None for an item that is no integer.
    """

    def __init__(self, invocation: Invocation) -> None:
        self.words = 0
        self._indices: list[int] = []
        self.send, self.recv = self._message(invocation.send), self._message(invocation.recv)
        self.recvcounts = None if type(invocation.root) is int else self._part(invocation.root)

    def mask(self) -> np.ndarray:
        """Return an array with 1 for every word of the details that is an integer of the caller's, else 0."""
        mask = np.zeros(self.words, np.int64)
        mask[self._indices] = 1
        return mask

    def without_integers(self, details: np.ndarray) -> bytes:
        """Return the details without the caller's integers."""
        return details.tobytes() if self.words != len(details) else details[self.mask() == 0].tobytes()

    def _message(self, message: Any) -> list[Any]:
        if not isinstance(message, (list, tuple)):
            return []
        self.words += 2
        return [self._part(part) for part in message[1:]]

    def _part(self, part: Any) -> Any:
        self.words += 2
        if isinstance(part, (list, tuple)):
            return type(part)([self._part(item) for item in part])
        if isinstance(part, np.ndarray):
            places = list(range(self.words, self.words + part.size))
            self.words += part.size
            self._indices += places
            return places
        if type(part) not in (int, np.int64, np.int32):
            return None
        self._indices.append(self.words - 1)
        return self.words - 1


@dataclass(frozen=True)
class Side:
    """The send or receive side of a call: its buffer, the array that contains it, and the indices of its counts.

    types: one for every block, if the call has a list of datatypes, and thus displacements in bytes.
    is_full: whether the blocks must fill the array.
    """

    buffer: Buffer
    array: np.ndarray
    counts: Indices
    displacements: Indices
    types: Sequence[TypeFacts] = ()
    is_full: bool = False

    @property
    def extents(self) -> list[int]:
        """Return the extent of an element of every block."""
        return [known.extent for known in self.types] or [self.buffer.facts.extent] * self.blocks

    @property
    def is_vector(self) -> bool:
        """Return whether every block has its own count."""
        return isinstance(self.counts, list)

    @property
    def blocks(self) -> int:
        """Return the number of blocks."""
        return len(self.counts) if isinstance(self.counts, list) else self.buffer.blocks

    @property
    def offset(self) -> int:
        """Return the byte offset of the buffer in the array."""
        first: int = MPI.Get_address(self.array)
        return self.buffer.address - first

    def check_blocks(
        self, details: np.ndarray, numbers: Sequence[int], sizes: Sequence[int], places: Sequence[int]
    ) -> None:
        """Check that blocks with these numbers have these sizes by the details, and these offsets from the buffer.

        Sizes and offsets are in bytes. Raises UnknownCounts if the details give others.
        """
        if not all(known.extent == known.size > 0 for known in self.types or [self.buffer.facts]):
            raise UnknownCounts("elements have holes or no data")
        extents, n = self.extents, self.blocks
        lengths = [self.array.nbytes // n] if self.counts is None else _bytes_of(self.counts, details, extents)
        offsets = [0]
        if self.displacements is not None:
            offsets = _bytes_of(self.displacements, details, [1] * n if self.types else extents)
        if not self.is_vector:
            lengths = lengths * n
        if len(offsets) < n:
            offsets = [offsets[0] + sum(lengths[:i]) for i in range(n)]
        for i, size, place in zip(numbers, sizes, places, strict=True):
            if lengths[i] != size or (size and offsets[i] != self.offset + place):
                raise UnknownCounts("the details give other blocks")


def side_of(message: Any, buffer: Buffer | None, integers: list[Any], has_types: bool) -> Side | None:
    """Return a side of a call from its message, parsed buffer and integers; None if it has no array.

    has_types: whether the message ends with a datatype for every block. Raises UnknownCounts.
    """
    array = message[0] if isinstance(message, (list, tuple)) else message
    if buffer is None or not isinstance(array, np.ndarray):
        return None
    counts, displacements, *_ = [*integers, None, None]
    if len(integers) < 3:  # [array, counts], [array, counts, datatype]
        displacements, pair = None, tuple if isinstance(buffer, Vector) else (list, tuple)
        if isinstance(counts, pair) and len(counts) == 2:  # a vector's list has counts alone
            counts, displacements = counts
    counts, displacements = _indices(counts), _indices(displacements)
    if displacements is not None and isinstance(counts, list) != isinstance(displacements, list):
        raise UnknownCounts("counts and displacements are not both lists or both single")
    datatypes = message[-1] if has_types else ()
    if MPI.DATATYPE_NULL in datatypes:
        raise UnknownCounts("an empty block has no datatype")
    types = [facts(datatype) for datatype in datatypes]
    return Side(buffer, array, counts, displacements, types)


def _bytes_of(places: int | list[int], details: np.ndarray, extents: Sequence[int]) -> list[int]:
    """Return counts of elements among the details in bytes."""
    return [int(details[at]) * x for at, x in zip(places if isinstance(places, list) else [places], extents)]


def _indices(of: Any) -> Indices:
    if isinstance(of, (list, tuple)):
        if not all(isinstance(place, int) for place in of):
            raise UnknownCounts("a list contains other things than integers")
        return list(of)
    return None if of is None else int(of)
