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

    `nbytes` is their span, extent times elements, and `size` the bytes of data in it. If `contiguous`, engines work on
    the span directly. Otherwise `pack` and `unpack` copy between the memory and `packed_nbytes` bytes, whose layout is
    the same on all ranks. `obj` keeps the memory alive.
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
        """Return a packed copy of the data, as an array of bytes."""
        data: np.ndarray = bytes_at(self.address, self.nbytes).copy()
        return data

    def unpack(self, packed: np.ndarray) -> None:
        """Copy packed bytes back to the memory; bytes in holes keep their values."""
        bytes_at(self.address, self.nbytes)[:] = packed

    def spans(self) -> list[tuple[int, int]]:
        """Return (address, end) of each contiguous stretch of data; nothing for a layout with holes."""
        return [(self.address, self.address + self.nbytes)] if self.contiguous and self.nbytes else []

    def __repr__(self) -> str:
        blocks = f"{self.blocks} x " if self.blocks > 1 else ""
        return f"<Buffer {blocks}{self.count} {self.facts.name} at {self.address:#x}, {self.nbytes} bytes>"


class ScatteredBuffer(Buffer):
    """Elements with holes. The user may free the datatype before the call completes: the packer does not need it."""

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
    """Padded pairs (DOUBLE_INT) in memory that ends before the padding of the last pair."""

    __slots__ = ()

    def _memory(self) -> np.ndarray:
        return bytes_at(self.address, self.nbytes - self.facts.extent + self.facts.true_extent)

    def pack(self) -> np.ndarray:
        packed = np.zeros(self.nbytes, np.uint8)
        memory = self._memory()
        packed[: memory.size] = memory
        return packed

    def unpack(self, packed: np.ndarray) -> None:
        memory = self._memory()
        memory[:] = packed[: memory.size]


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Return memory as an array, which does not keep it alive."""
    if not nbytes:
        return np.empty(0, np.uint8)
    view: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(view, np.uint8)
