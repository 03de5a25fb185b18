"""Find the counts and displacements of a call: in the lengths of its arrays, or among the details of its key.

signature.find() puts the details down in compiled code; Integers finds in Python where every integer is among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.buffer import Buffer
from ..buffers.vector import Vector
from ..dispatch.methods import Invocation

Places = int | list[int] | None  # of one integer, or of one for every block; None if the call says none


class UnknownCounts(Exception):
    """Compiled code cannot tell the counts of such calls from their arguments."""


class Integers:
    """The places of integers in the details of a call.

    send and recv have what stands beside either buffer: a place, a list or tuple of them, or None for no integer.
    """

    def __init__(self, invocation: Invocation) -> None:
        self.words = 0
        self._places: list[int] = []
        self.send, self.recv = self._message(invocation.send), self._message(invocation.recv)
        if type(invocation.root) is not int:
            self._part(invocation.root)

    def mask(self) -> np.ndarray:
        """Return 1 for every word of the details that is an integer of the caller's, else 0."""
        mask = np.zeros(self.words, np.int64)
        mask[self._places] = 1
        return mask

    def others(self, details: np.ndarray) -> bytes:
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
            self._places += places
            return places
        if type(part) is not int:
            return None
        self._places.append(self.words - 1)
        return self.words - 1


@dataclass(frozen=True)
class Side:
    """The send or the receive side of a call: its buffer, the array that this is in, and where counts stand."""

    buffer: Buffer
    array: np.ndarray
    counts: Places
    displacements: Places

    @property
    def is_vector(self) -> bool:
        """Return whether every block has a count of its own."""
        return isinstance(self.counts, list)

    @property
    def blocks(self) -> int:
        """Return how many blocks there are."""
        return len(self.counts) if isinstance(self.counts, list) else self.buffer.blocks

    @property
    def offset(self) -> int:
        """Return how many bytes behind the beginning of the array the buffer begins."""
        first: int = MPI.Get_address(self.array)
        return self.buffer.address - first

    def check(self, details: np.ndarray, sizes: list[int], places: list[int]) -> None:
        """Check that details say these blocks: sizes in bytes, and places from where the buffer begins.

        Raises UnknownCounts.
        """
        extent, n = self.buffer.facts.extent, self.blocks
        lengths = [self.array.nbytes // n] if self.counts is None else _bytes_of(self.counts, details, extent)
        offsets = [0] if self.displacements is None else _bytes_of(self.displacements, details, extent)
        if not self.is_vector:
            lengths = lengths * n
        if len(offsets) < n:
            offsets = [offsets[0] + sum(lengths[:i]) for i in range(n)]
        wrong = any(size and at != self.offset + place for size, at, place in zip(sizes, offsets, places))
        if lengths != sizes or wrong:
            raise UnknownCounts("they stand elsewhere")
        if self.buffer.facts.size != extent or extent <= 0:
            raise UnknownCounts("elements have holes, or nothing in them")


def side_of(message: Any, buffer: Buffer | None, integers: list[Any]) -> Side | None:
    """Return a side of a call, None if it has none: from its argument, and what is read and what stands in that.

    Raises UnknownCounts.
    """
    array = message[0] if isinstance(message, (list, tuple)) else message
    if buffer is None or not isinstance(array, np.ndarray):
        return None
    counts, displacements, *_ = [*integers, None, None]
    if len(integers) < 3:  # [array, counts], [array, counts, datatype]
        displacements, pair = None, tuple if isinstance(buffer, Vector) else (list, tuple)
        if isinstance(counts, pair) and len(counts) == 2:  # a vector's list has counts alone
            counts, displacements = counts
    counts, displacements = _places(counts), _places(displacements)
    if displacements is not None and isinstance(counts, list) != isinstance(displacements, list):
        raise UnknownCounts("one displacement for all blocks, or one for each and no counts")
    return Side(buffer, array, counts, displacements)


def _bytes_of(places: int | list[int], details: np.ndarray, extent: int) -> list[int]:
    """Return integers among the details, which count elements, in bytes."""
    return [int(details[at]) * extent for at in (places if isinstance(places, list) else [places])]


def _places(of: Any) -> Places:
    if isinstance(of, (list, tuple)):
        if not all(isinstance(place, int) for place in of):
            raise UnknownCounts("not every one is an integer")
        return list(of)
    return None if of is None else int(of)
