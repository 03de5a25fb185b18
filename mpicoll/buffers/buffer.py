"""A buffer of a collective: memory and its datatype."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from .datatypes import TypeFacts
from .packing import packer

_address_of = MPI.Get_address


class Buffer:
    """`blocks` blocks of `count` elements of one datatype, at an address.

    `nbytes` is their span, extent times elements, and `size` the bytes of data in it.  Where `contiguous`,
    the span holds the elements in order and engines may work on it.  Elsewhere `pack` and `unpack` go between
    the memory and `packed_nbytes` bytes laid out as on every other rank.  `obj` keeps the memory alive.
    """

    __slots__ = ("address", "blocks", "contiguous", "count", "facts", "nbytes", "obj")

    def __init__(
        self, obj: Any, address: int, count: int, blocks: int, facts: TypeFacts, nbytes: int, contiguous: bool
    ) -> None:
        self.obj = obj
        self.address = address
        self.count = count
        self.blocks = blocks
        self.facts = facts
        self.nbytes = nbytes
        self.contiguous = contiguous

    @property
    def datatype(self) -> MPI.Datatype:
        return self.facts.datatype

    @property
    def elements(self) -> int:
        return self.count * self.blocks

    @property
    def size(self) -> int:
        return self.facts.size * self.elements

    @property
    def packed_nbytes(self) -> int:
        return self.nbytes

    def pack(self) -> np.ndarray:
        """Return the data, as a new array of bytes."""
        data: np.ndarray = bytes_at(self.address, self.nbytes).copy()
        return data

    def unpack(self, packed: np.ndarray) -> None:
        """Put the bytes of `pack` in their places; what lies between stays as it is."""
        bytes_at(self.address, self.nbytes)[:] = packed

    def spans(self) -> list[tuple[int, int]]:
        """(address, end) of memory that holds data and nothing else; none where there are holes, or no data."""
        return [(self.address, self.address + self.nbytes)] if self.contiguous and self.nbytes else []

    def __repr__(self) -> str:
        blocks = f"{self.blocks} x " if self.blocks > 1 else ""
        return f"<Buffer {blocks}{self.count} {self.facts.name} at {self.address:#x}, {self.nbytes} bytes>"


class ScatteredBuffer(Buffer):
    """Elements with holes. The user may free the datatype before the call is done: the packer does not need it."""

    __slots__ = ("packer",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.packer = packer(self.facts)

    @property
    def packed_nbytes(self) -> int:
        return self.size

    def pack(self) -> np.ndarray:
        packed = np.empty(self.size, np.uint8)
        self.packer.pack(_address_of(packed), self.address, self.elements)
        return packed

    def unpack(self, packed: np.ndarray) -> None:
        self.packer.unpack(_address_of(packed), self.address, self.elements)


class ShortBuffer(Buffer):
    """Padded pairs (DOUBLE_INT) whose memory ends before the last one's padding."""

    __slots__ = ()

    def _owned(self) -> np.ndarray:
        return bytes_at(self.address, self.nbytes - self.facts.extent + self.facts.true_extent)

    def pack(self) -> np.ndarray:
        packed = np.zeros(self.nbytes, np.uint8)
        owned = self._owned()
        packed[: owned.size] = owned
        return packed

    def unpack(self, packed: np.ndarray) -> None:
        owned = self._owned()
        owned[:] = packed[: owned.size]


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Memory as an array."""
    if not nbytes:
        return np.empty(0, np.uint8)
    memory: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(memory, np.uint8)
