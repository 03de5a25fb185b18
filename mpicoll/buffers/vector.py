"""Parse and check one buffer argument of a v-form (Gatherv, Alltoallw, …), in any of mpi4py 4.1's forms.

A form is `[object, counts, displacements, datatype]` or a shorter one; for Alltoallw `[object, counts, displacements,
datatypes]`, with displacements in bytes. Two checks are stricter than mpi4py's: blocks must not exceed the object
passed, and received blocks must not overlap.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import accumulate
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import errors
from .buffer import Buffer, bytes_at
from .datatypes import TypeFacts, facts
from .memory import describe_type, memory_of
from .owner import reach
from .packing import packer
from .parse import (
    check_type,
    find_type,
    in_place_error,
    null_error,
    parse_integers,
    split_pair,
    unpack,
)

BYTE = facts(MPI.BYTE)
CACHE_LIMIT = 256  # vectors
_FORMS_OF_TYPES = (
    "pass [buffer, counts, displacements in bytes, datatypes], [buffer, (counts, displacements), datatypes] "
    "or [buffer, datatypes]"
)


class Vector(Buffer):
    """Blocks of any size and offset: `counts[i]` elements of `types[i]`, `offsets[i]` bytes from `address`.

    `sizes` are the bytes of data in each. `pack` and `unpack` copy between the memory and packed blocks, in the order
    of ranks. `at` has the offsets that a plan uses: in the memory if `contiguous`, else in the packed blocks.
    """

    __slots__ = ("at", "counts", "offsets", "packers", "sizes", "types")

    def __init__(
        self, obj: Any, address: int, counts: Sequence[int], types: Sequence[TypeFacts], offsets: Sequence[int]
    ) -> None:
        self.counts, self.types, self.offsets = counts, types, offsets
        self.sizes = tuple([n * type_facts.size for n, type_facts in zip(counts, types)])
        contiguous = all(type_facts.dense for n, type_facts in zip(self.sizes, types) if n)
        super().__init__(obj, address, sum(counts), 1, types[0] if types else BYTE, sum(self.sizes), contiguous)
        packed = tuple(accumulate(self.sizes, initial=0))[:-1]
        self.at = tuple([offset if n else 0 for offset, n in zip(offsets, self.sizes)]) if contiguous else packed
        used = {} if contiguous else {id(type_facts): type_facts for n, type_facts in zip(self.sizes, types) if n}
        self.packers = {key: packer(type_facts) for key, type_facts in used.items()}

    def at_memory(self, obj: Any, address: int) -> Vector:
        """Return a copy with the same blocks in other memory."""
        copy = Vector.__new__(Vector)
        for name in _COPIED_SLOTS:
            setattr(copy, name, getattr(self, name))
        copy.obj, copy.address = obj, address
        return copy

    @property
    def size(self) -> int:
        return self.nbytes

    def pack(self) -> np.ndarray:
        packed = np.empty(self.nbytes, np.uint8)
        if self.contiguous:
            for block, packed_block in self._pairs(packed):
                packed_block[:] = block
        else:
            for key, *addresses in self._blocks(packed):
                self.packers[key].pack(*addresses)
        return packed

    def unpack(self, packed: np.ndarray) -> None:
        if self.contiguous:
            for block, packed_block in self._pairs(packed):
                block[:] = packed_block
        else:
            for key, *addresses in self._blocks(packed):
                self.packers[key].unpack(*addresses)

    def _pairs(self, packed: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return each block that is not empty: in the memory, and in `packed`."""
        ends = list(accumulate(self.sizes))
        return [
            (bytes_at(self.address + offset, size), packed[end - size : end])
            for offset, size, end in zip(self.offsets, self.sizes, ends)
            if size
        ]

    def _blocks(self, packed: np.ndarray) -> list[tuple[int, int, int, int]]:
        """Return (packer's key, address in `packed`, address in the memory, count) of each block that is not empty."""
        to, base = MPI.Get_address(packed), self.address
        blocks = zip(self.types, self.at, self.offsets, self.counts, self.sizes)
        return [(id(type_facts), to + at, base + offset, n) for type_facts, at, offset, n, size in blocks if size]

    def spans(self) -> list[tuple[int, int]]:
        """Return (address, end) of each block that is not empty; nothing if any block has holes."""
        if not self.contiguous:
            return []
        at = self.address
        return [(at + offset, at + offset + size) for offset, size in zip(self.offsets, self.sizes) if size]


_COPIED_SLOTS = tuple(name for name in (*Buffer.__slots__, *Vector.__slots__) if name not in ("obj", "address"))
_valid_vectors: dict[Hashable, Vector] = {}  # of predefined datatypes only, which are never freed


def parse_vector(message: Any, writable: bool, blocks: int, peer: str = "rank") -> Vector:
    """Parse a buffer of `blocks` blocks with counts and displacements in elements, as in mpi4py's v-forms.

    peer: the word in errors for the rank of a block, "rank" or "neighbour".
    """
    # As in mpi4py, a list is counts alone.
    obj, counts, displacements, spec = unpack(message, "counts, displacements", tuple)
    holder, address, length, format = memory_of(obj, spec is not None, writable)
    datatype = find_type(spec, format, obj)
    if datatype == MPI.DATATYPE_NULL:
        raise null_error()
    type_facts = check_type(datatype)
    if counts is None:
        block_counts = _equal_counts(length, type_facts, blocks)
    else:
        block_counts = [index(counts)] * blocks if _is_integer(counts) else parse_integers(counts, blocks, "counts")
    _check_not_negative(block_counts)
    if displacements is None:
        at = list(accumulate(block_counts, initial=0))[:-1]
    elif _is_integer(displacements):
        at = [index(displacements) * i for i in range(blocks)]
    else:
        at = parse_integers(displacements, blocks, "displacements")
    types, offsets = [type_facts] * blocks, [x * type_facts.extent for x in at]
    return _checked_vector(obj, holder, address, length, block_counts, types, offsets, writable, peer)


def parse_typed_vector(message: Any, writable: bool, blocks: int, peer: str = "rank") -> Vector:
    """Parse a buffer of `blocks` blocks with a datatype each and displacements in bytes, as in Alltoallw.

    peer: as in parse_vector().
    """
    if message is MPI.IN_PLACE:
        raise in_place_error()
    if hasattr(message, "__len__") and len(message) not in (2, 3, 4):
        raise errors.MessageSpecError(
            f"the buffer is {describe_type(message)}, of {len(message)} items; {_FORMS_OF_TYPES}"
        )
    if not isinstance(message, (list, tuple)):
        raise errors.NotABufferError(f"the buffer is {message!r:.60}, {describe_type(message)}; {_FORMS_OF_TYPES}")
    counts: Any
    displacements: Any
    if len(message) == 2:
        (obj, types), counts, displacements = message, None, None
    elif len(message) == 3:
        obj, pair, types = message
        counts, displacements = split_pair(pair, "counts, displacements")
    else:
        obj, counts, displacements, types = message
    if (obj is None or obj is MPI.BOTTOM) and (counts is None or displacements is None):
        raise errors.MessageSpecError("the buffer is None or MPI.BOTTOM, without counts and displacements; pass both")
    if counts is None and displacements is None:
        block_counts, at = [1] * blocks, [0] * blocks
    else:
        block_counts = parse_integers(counts, blocks, "counts")
        at = parse_integers(displacements, blocks, "displacements")
    _check_not_negative(block_counts)
    holder, address, length, _ = memory_of(obj, True, writable)
    block_types = _facts_of_blocks(types, block_counts, blocks, peer)
    return _checked_vector(obj, holder, address, length, block_counts, block_types, at, writable, peer)


# -- parts of a description


def _is_integer(value: Any) -> bool:
    """Return whether mpi4py accepts a value as one number for all blocks: also NumPy's numbers and 0-d arrays."""
    return hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0


def _equal_counts(length: int, type_facts: TypeFacts, blocks: int) -> list[int]:
    """Return counts that share all elements equally; the first blocks get one more if there is a remainder."""
    if length == 0 or not blocks:
        return [0] * blocks
    if type_facts.extent <= 0 or length % type_facts.extent:
        raise errors.MessageSpecError(
            f"the buffer has {length} bytes, no multiple of the extent {type_facts.extent} of {type_facts.name}; "
            f"pass counts, or a buffer of whole elements"
        )
    share, rest = divmod(length // type_facts.extent, blocks)
    return [share + (i < rest) for i in range(blocks)]


def _facts_of_blocks(types: Any, counts: Sequence[int], blocks: int, peer: str) -> list[TypeFacts]:
    """Return the facts on every block's datatype; an empty block, whose datatype may be null, gets those on BYTE."""
    try:
        datatypes = [types[i] for i in range(len(types))]
    except TypeError:
        raise errors.ArgumentError(
            f"datatypes is {types!r:.60}, {describe_type(types)}; pass one MPI.Datatype per {peer}, {blocks} in all"
        ) from None
    if len(datatypes) != blocks:
        raise errors.MessageSpecError(f"datatypes has {len(datatypes)} items; pass one per {peer}, {blocks} in all")
    for i, datatype in enumerate(datatypes):
        if not isinstance(datatype, MPI.Datatype):
            raise errors.ArgumentError(
                f"datatypes[{i}] is {datatype!r:.60}, {describe_type(datatype)}; pass an MPI.Datatype, not its typecode"
            )
        if counts[i] and datatype == MPI.DATATYPE_NULL:
            raise errors.DatatypeError(
                f"datatypes[{i}] is MPI.DATATYPE_NULL and counts[{i}] is {counts[i]}; pass a datatype"
            )
    return [check_type(datatype) if n else BYTE for datatype, n in zip(datatypes, counts)]


def _check_not_negative(counts: Sequence[int]) -> None:
    if counts and min(counts) < 0:
        raise errors.CountMismatch(f"counts are {counts!r:.200}; none may be negative")


# -- checks against the memory


def _checked_vector(
    obj: Any,
    holder: Any,
    address: int,
    length: int,
    counts: Sequence[int],
    types: Sequence[TypeFacts],
    offsets: Sequence[int],
    writable: bool,
    peer: str,
) -> Vector:
    key = (*counts, *types, *offsets, length, writable)
    if holder is not None and (valid := _valid_vectors.get(key)) is not None:
        return valid.at_memory(holder, address)
    if obj is None and any(counts):
        raise errors.MessageSpecError(f"the buffer is None and counts are {counts!r:.90}; pass a buffer or counts of 0")
    if obj is not None and obj is not MPI.BOTTOM:
        for i, (n, type_facts, offset) in enumerate(zip(counts, types, offsets)):
            _check_inside(obj, f"{peer} {i}", n, type_facts, offset, address, length)
    elif any(n and type_facts.predefined for n, type_facts in zip(counts, types)):
        raise errors.BufferTooSmallError(
            "blocks of a predefined datatype at MPI.BOTTOM are at address 0; pass datatypes of absolute addresses"
        )
    buffer = Vector(holder, address, counts, types, offsets)
    if writable:
        check_disjoint(buffer)
    if holder is not None and all(type_facts.predefined for type_facts in types):
        if len(_valid_vectors) >= CACHE_LIMIT:
            _valid_vectors.clear()
        _valid_vectors[key] = buffer.at_memory(None, 0)
    return buffer


def _check_inside(obj: Any, peer: str, n: int, type_facts: TypeFacts, offset: int, address: int, length: int) -> None:
    """Raise BufferTooSmallError unless the memory contains a block."""
    begin, end, first, last = reach(obj, type_facts, n, offset, address, length)
    if end > last:
        raise errors.BufferTooSmallError(
            f"the block of {peer}, {n} of {type_facts.name}, ends at byte {end} and the buffer has {last}; "
            f"pass a smaller count or displacement, or a larger buffer"
        )
    if begin < first:
        raise errors.BufferTooSmallError(
            f"the block of {peer}, {n} of {type_facts.name}, begins {first - begin} bytes before the buffer; "
            f"pass a larger displacement"
        )


def check_disjoint(buffer: Vector) -> None:
    """Raise OverlapError if blocks share memory, so that one receive would overwrite another."""
    end = -1
    for start, stop in sorted(buffer.spans()):
        if start < end:
            raise errors.OverlapError(
                f"blocks of the receive buffer share {min(end, stop) - start} bytes: they have "
                f"{list(buffer.sizes)!r:.90} bytes and begin at {list(buffer.offsets)!r:.90}; "
                f"give every block a place of its own"
            )
        end = stop


def check_apart(sent: Sequence[tuple[int, int]], received: Sequence[tuple[int, int]]) -> None:
    """Raise OverlapError if sent and received spans share memory; spans of one may be between those of the other."""
    if not sent or not received:
        return
    if max(e for _, e in sent) <= min(s for s, _ in received) or max(e for _, e in received) <= min(s for s, _ in sent):
        return
    end = [-1, -1]  # of the spans so far: sent, received
    for start, stop, side in sorted([(s, e, 0) for s, e in sent] + [(s, e, 1) for s, e in received]):
        if start < end[1 - side]:
            raise errors.OverlapError(
                f"send and receive buffer share {min(stop, end[1 - side]) - start} bytes of memory; pass MPI.IN_PLACE "
                f"for the one that MPI lets you omit, or copy one of them"
            )
        end[side] = max(end[side], stop)
