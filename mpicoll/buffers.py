"""A buffer of a collective: memory, its datatype, and how it is packed where it has holes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from .datatypes import TypeFacts

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
    def itemsize(self) -> int:
        """Bytes from one element to the next."""
        return self.facts.extent

    @property
    def elements(self) -> int:
        return self.count * self.blocks

    @property
    def size(self) -> int:
        return self.facts.size * self.elements

    @property
    def readonly(self) -> bool:
        if isinstance(self.obj, np.ndarray):
            return not self.obj.flags.writeable
        return self.obj is not None and bool(memoryview(self.obj).readonly)

    @property
    def packed_nbytes(self) -> int:
        return self.nbytes if self.contiguous else self.size

    def pack(self) -> np.ndarray:
        """The data, as a new array of bytes."""
        if self.contiguous:
            return bytes_at(self.address, self.nbytes).copy()
        packed = np.empty(self.size, np.uint8)
        if self.size:
            with self._span() as (datatype, anchor):
                datatype.Pack(anchor, packed, 0, MPI.COMM_SELF)
        return packed

    def unpack(self, packed: np.ndarray) -> None:
        """Put the bytes of `pack` in their places; what lies between stays as it is."""
        if self.contiguous:
            bytes_at(self.address, self.nbytes)[:] = packed
        elif self.size:
            with self._span() as (datatype, anchor):
                datatype.Unpack(packed, 0, anchor, MPI.COMM_SELF)

    def _span(self) -> Span:
        return Span(self.address, [(self.elements, 0, self.datatype)])

    def spans(self) -> list[tuple[int, int]]:
        """(address, end) of memory that holds data and nothing else; none where there are holes, or no data."""
        return [(self.address, self.address + self.nbytes)] if self.contiguous and self.nbytes else []

    def __repr__(self) -> str:
        blocks = f"{self.blocks} x " if self.blocks > 1 else ""
        return f"<Buffer {blocks}{self.count} {self.facts.name} at {self.address:#x}, {self.nbytes} bytes>"


class ShortBuffer(Buffer):
    """Padded pairs (DOUBLE_INT) whose memory ends before the last one's padding."""

    __slots__ = ()

    @property
    def packed_nbytes(self) -> int:
        return self.nbytes

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


class Span:
    """(count, place, datatype) of blocks as one element of a temporary datatype, and one byte to hang it on.

    Places are in bytes from the address. mpi4py's Pack counts elements by the length of its buffer, which extents that
    are zero, negative or beyond the end, and absolute addresses (MPI.BOTTOM), would mislead.
    """

    def __init__(self, address: int, blocks: Sequence[tuple[int, int, MPI.Datatype]]) -> None:
        self.address, self.blocks = address, blocks
        self.anchor = np.empty(1, np.uint8)

    def __enter__(self) -> tuple[MPI.Datatype, MPI.buffer]:
        anchor = self.address or _address_of(self.anchor)
        counts, places, types = (list(x) for x in zip(*self.blocks))
        places = [self.address - anchor + x for x in places]
        if all(datatype is types[0] for datatype in types):
            inner = types[0].Create_hindexed(counts, places)
        else:
            inner = MPI.Datatype.Create_struct(counts, places, types)
        self.datatype = inner.Create_resized(0, 1).Commit()
        inner.Free()
        return self.datatype, MPI.buffer.fromaddress(anchor, 1)

    def __exit__(self, *exception: object) -> None:
        self.datatype.Free()


def bytes_at(address: int, nbytes: int) -> np.ndarray:
    """Memory as an array."""
    if not nbytes:
        return np.empty(0, np.uint8)
    memory: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(memory, np.uint8)
