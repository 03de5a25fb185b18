"""One argument of a collective with counts of its own (Gatherv, Alltoallw, …), in any of mpi4py 4.1's forms.

`[object, counts, displacements, datatype]` and its shorter forms; of Alltoallw `[object, counts, displacements,
datatypes]`, with displacements in bytes. Blocks must lie within the object that was passed, and what is received must
not be laid in one place twice: stricter than mpi4py.
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
from .owner import reach
from .packing import packer
from .parse import check_type, find_type, integers, kind, memory_of

BYTE = facts(MPI.BYTE)
RIGHT_LIMIT = 256  # kinds of blocks
_FORMS_OF_TYPES = (
    "pass [buffer, counts, displacements in bytes, datatypes], [buffer, (counts, displacements), datatypes] "
    "or [buffer, datatypes]"
)


class Vector(Buffer):
    """Blocks of any size and place: `counts[i]` elements of `types[i]`, `places[i]` bytes from `address`.

    `sizes` are the bytes of data in each. `pack` and `unpack` go between the memory and the blocks one behind the
    other, in the order of ranks; `at` says where each lies for a plan, which works on the memory where `contiguous`,
    else on what was packed.
    """

    __slots__ = ("at", "counts", "packers", "places", "sizes", "types")

    def __init__(
        self, obj: Any, address: int, counts: Sequence[int], types: Sequence[TypeFacts], places: Sequence[int]
    ) -> None:
        self.counts, self.types, self.places = counts, types, places
        self.sizes = tuple([n * known.size for n, known in zip(counts, types)])
        contiguous = all(known.dense for n, known in zip(self.sizes, types) if n)
        super().__init__(obj, address, sum(counts), 1, types[0] if types else BYTE, sum(self.sizes), contiguous)
        packed = tuple(accumulate(self.sizes, initial=0))[:-1]
        self.at = tuple([place if n else 0 for place, n in zip(places, self.sizes)]) if contiguous else packed
        used = {} if contiguous else {id(known): known for n, known in zip(self.sizes, types) if n}
        self.packers = {key: packer(known) for key, known in used.items()}

    def moved(self, obj: Any, address: int) -> Vector:
        """Return the same blocks in other memory."""
        copy = Vector.__new__(Vector)
        for name in _ALIKE:
            setattr(copy, name, getattr(self, name))
        copy.obj, copy.address = obj, address
        return copy

    @property
    def size(self) -> int:
        return self.nbytes

    def pack(self) -> np.ndarray:
        packed = np.empty(self.nbytes, np.uint8)
        if self.contiguous:
            for there, here in self._pairs(packed):
                here[:] = there
        else:
            for known, *block in self._blocks(packed):
                self.packers[known].pack(*block)
        return packed

    def unpack(self, packed: np.ndarray) -> None:
        if self.contiguous:
            for there, here in self._pairs(packed):
                there[:] = here
        else:
            for known, *block in self._blocks(packed):
                self.packers[known].unpack(*block)

    def _pairs(self, packed: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return each block in the memory, and in what is packed."""
        ends = list(accumulate(self.sizes))
        return [
            (bytes_at(self.address + place, size), packed[end - size : end])
            for place, size, end in zip(self.places, self.sizes, ends)
            if size
        ]

    def _blocks(self, packed: np.ndarray) -> list[tuple[int, int, int, int]]:
        """Return each block: the key of its packer, its address in what is packed and in the memory, its elements."""
        to, base = MPI.Get_address(packed), self.address
        blocks = zip(self.types, self.at, self.places, self.counts, self.sizes)
        return [(id(known), to + at, base + place, n) for known, at, place, n, size in blocks if size]

    def spans(self) -> list[tuple[int, int]]:
        """(address, end) of every block that is not empty; none where there are holes in them."""
        if not self.contiguous:
            return []
        at = self.address
        return [(at + place, at + place + size) for place, size in zip(self.places, self.sizes) if size]


_ALIKE = tuple(name for name in (*Buffer.__slots__, *Vector.__slots__) if name not in ("obj", "address"))
_right: dict[Hashable, Vector] = {}  # what was found to be so, of predefined datatypes, which outlive it


def vector(message: Any, writable: bool, blocks: int, whose: str = "rank") -> Vector:
    """Return a buffer of `blocks` blocks with counts and displacements in elements, as mpi4py's v-forms describe it.

    whose: what errors call the owners of blocks, which are numbered.
    """
    obj, counts, displacements, spec = _unpack(message)
    held, address, length, format = memory_of(obj, spec is not None, writable)
    datatype = find_type(spec, format, obj)
    if datatype == MPI.DATATYPE_NULL:
        raise errors.DatatypeError("the datatype is MPI.DATATYPE_NULL; pass one that is alive and committed")
    known = check_type(datatype)
    if counts is None:
        block_counts = _shared_out(length, known, blocks)
    else:
        block_counts = [index(counts)] * blocks if _is_integer(counts) else integers(counts, blocks, "counts")
    _check_not_negative(block_counts)
    if displacements is None:
        at = list(accumulate(block_counts, initial=0))[:-1]
    elif _is_integer(displacements):
        at = [index(displacements) * i for i in range(blocks)]
    else:
        at = integers(displacements, blocks, "displacements")
    types, places = [known] * blocks, [x * known.extent for x in at]
    return _made(obj, held, address, length, block_counts, types, places, writable, whose)


def vector_of_types(message: Any, writable: bool, blocks: int, whose: str = "rank") -> Vector:
    """Return a buffer of `blocks` blocks, each with a datatype of its own, and displacements in bytes.

    This is Alltoallw's form. whose: what errors call the owners of blocks, which are numbered.
    """
    if message is MPI.IN_PLACE:
        raise errors.InPlaceError("MPI.IN_PLACE stands where MPI needs a buffer; it may stand for the other one")
    if hasattr(message, "__len__") and len(message) not in (2, 3, 4):
        raise errors.MessageSpecError(f"the buffer is {kind(message)}, of {len(message)} items; {_FORMS_OF_TYPES}")
    if not isinstance(message, (list, tuple)):
        raise errors.NotABufferError(f"the buffer is {message!r:.60}, {kind(message)}; {_FORMS_OF_TYPES}")
    counts: Any
    displacements: Any
    if len(message) == 2:
        (obj, types), counts, displacements = message, None, None
    elif len(message) == 3:
        obj, both, types = message
        counts, displacements = _two(both)
    else:
        obj, counts, displacements, types = message
    if (obj is None or obj is MPI.BOTTOM) and (counts is None or displacements is None):
        raise errors.MessageSpecError("there is no memory; pass counts and displacements with MPI.BOTTOM")
    if counts is None and displacements is None:
        block_counts, at = [1] * blocks, [0] * blocks
    else:
        block_counts, at = integers(counts, blocks, "counts"), integers(displacements, blocks, "displacements")
    _check_not_negative(block_counts)
    held, address, length, _ = memory_of(obj, True, writable)
    block_types = _types(types, block_counts, blocks, whose)
    return _made(obj, held, address, length, block_counts, block_types, at, writable, whose)


# -- the parts of a description


def _unpack(message: Any) -> tuple[Any, Any, Any, Any]:
    """(object, counts, displacements, datatype), None where not given."""
    if message is None or message is MPI.IN_PLACE:
        if message is None:
            raise errors.NotABufferError("the buffer is None, and this rank needs one here; pass a buffer")
        raise errors.InPlaceError("MPI.IN_PLACE stands where MPI needs a buffer; it may stand for the other one")
    if not isinstance(message, (list, tuple)):
        return message, None, None, None
    counts = displacements = spec = None
    if len(message) == 2:
        obj, counts = message
        if isinstance(counts, (MPI.Datatype, str)):
            return obj, None, None, counts
    elif len(message) == 3:
        obj, counts, spec = message
    elif len(message) == 4:
        return tuple(message)
    else:
        raise errors.MessageSpecError(
            f"a buffer given as a list has 2 to 4 items, this one has {len(message)}; "
            f"pass [buffer, counts, displacements, datatype] or a shorter form"
        )
    if isinstance(counts, tuple):  # a list is counts alone
        counts, displacements = _two(counts)
    return obj, counts, displacements, spec


def _two(both: Any) -> tuple[Any, Any]:
    try:
        counts, displacements = both
    except TypeError:
        raise errors.ArgumentError(f"(counts, displacements) is {both!r:.60}, {kind(both)}; pass a tuple") from None
    except ValueError:
        raise errors.MessageSpecError(
            f"(counts, displacements) has 2 items, {both!r:.60} has {len(both)}; pass counts alone as a list"
        ) from None
    return counts, displacements


def _is_integer(value: Any) -> bool:
    """Return what mpi4py takes as one number for all blocks: NumPy's too, and arrays of no dimension."""
    return hasattr(value, "__index__") and getattr(value, "ndim", 0) == 0


def _shared_out(length: int, known: TypeFacts, blocks: int) -> list[int]:
    """Without counts: all elements, the first ranks getting one more where they do not come out even."""
    if length == 0 or not blocks:
        return [0] * blocks
    if known.extent <= 0 or length % known.extent:
        raise errors.MessageSpecError(
            f"the buffer has {length} bytes, no multiple of the extent {known.extent} of {known.name}; "
            f"pass counts, or a buffer of whole elements"
        )
    share, rest = divmod(length // known.extent, blocks)
    return [share + (i < rest) for i in range(blocks)]


def _types(types: Any, counts: Sequence[int], blocks: int, whose: str) -> list[TypeFacts]:
    """Return the facts on every block's datatype; those of empty blocks do not matter."""
    try:
        datatypes = [types[i] for i in range(len(types))]
    except TypeError:
        raise errors.ArgumentError(
            f"datatypes is {types!r:.60}, {kind(types)}; pass one MPI.Datatype per {whose}, {blocks} in all"
        ) from None
    if len(datatypes) != blocks:
        raise errors.MessageSpecError(f"datatypes has {len(datatypes)} items; pass one per {whose}, {blocks} in all")
    for i, datatype in enumerate(datatypes):
        if not isinstance(datatype, MPI.Datatype):
            raise errors.ArgumentError(
                f"datatypes[{i}] is {datatype!r:.60}, {kind(datatype)}; pass an MPI.Datatype, not its typecode"
            )
        if counts[i] and datatype == MPI.DATATYPE_NULL:
            raise errors.DatatypeError(f"datatypes[{i}] is MPI.DATATYPE_NULL and its count {counts[i]}; pass one")
    return [check_type(datatype) if n else BYTE for datatype, n in zip(datatypes, counts)]


def _check_not_negative(counts: Sequence[int]) -> None:
    if counts and min(counts) < 0:
        raise errors.CountMismatch(f"counts are {counts!r:.200}; none may be negative")


# -- together with its memory


def _made(
    obj: Any,
    held: Any,
    address: int,
    length: int,
    counts: Sequence[int],
    types: Sequence[TypeFacts],
    places: Sequence[int],
    writable: bool,
    whose: str,
) -> Vector:
    key = (*counts, *types, *places, length, writable)
    if held is not None and (right := _right.get(key)) is not None:
        return right.moved(held, address)
    if obj is None and any(counts):
        raise errors.MessageSpecError(f"the buffer is None and counts are {counts!r:.90}; pass a buffer or counts of 0")
    if obj is not None and obj is not MPI.BOTTOM:
        for i, (n, known, place) in enumerate(zip(counts, types, places)):
            _check_room(obj, f"{whose} {i}", n, known, place, address, length)
    elif any(n and known.predefined for n, known in zip(counts, types)):
        raise errors.BufferTooSmallError(
            "blocks of a predefined datatype at MPI.BOTTOM are at address 0; pass datatypes made of absolute addresses"
        )
    buffer = Vector(held, address, counts, types, places)
    if writable:
        check_once(buffer)
    if held is not None and all(known.predefined for known in types):
        if len(_right) >= RIGHT_LIMIT:
            _right.clear()
        _right[key] = buffer.moved(None, 0)
    return buffer


def _check_room(obj: Any, whose: str, n: int, known: TypeFacts, place: int, address: int, length: int) -> None:
    """Check that one block lies in the memory."""
    begin, end, first, last = reach(obj, known, n, place, address, length)
    if end > last:
        raise errors.BufferTooSmallError(
            f"the block of {whose}, {n} of {known.name}, ends at byte {end} and the buffer has {last}; "
            f"pass a smaller count or displacement, or a larger buffer"
        )
    if begin < first:
        raise errors.BufferTooSmallError(
            f"the block of {whose}, {n} of {known.name}, begins {first - begin} bytes before the buffer; "
            f"pass a larger displacement"
        )


def check_once(buffer: Vector) -> None:
    """Check that what is received is not laid in one place twice."""
    end = -1
    for start, stop in sorted(buffer.spans()):
        if start < end:
            raise errors.OverlapError(
                f"blocks of the receive buffer share {min(end, stop) - start} bytes: they have "
                f"{list(buffer.sizes)!r:.90} bytes and begin at {list(buffer.places)!r:.90}; "
                f"give every block a place of its own"
            )
        end = stop


def check_apart(sent: Sequence[tuple[int, int]], received: Sequence[tuple[int, int]]) -> None:
    """Check that what is sent and received shares no memory, though one may lie in the gaps of the other."""
    if not sent or not received:
        return
    if max(e for _, e in sent) <= min(s for s, _ in received) or max(e for _, e in received) <= min(s for s, _ in sent):
        return
    end = [-1, -1]  # of what is sent and received so far
    for start, stop, side in sorted([(s, e, 0) for s, e in sent] + [(s, e, 1) for s, e in received]):
        if start < end[1 - side]:
            raise errors.OverlapError(
                f"send and receive buffer share {min(stop, end[1 - side]) - start} bytes of memory; pass MPI.IN_PLACE "
                f"for the one that MPI lets you omit, or copy one of them"
            )
        end[side] = max(end[side], stop)
