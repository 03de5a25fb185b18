"""From the arguments of a collective to checked memory.

One `parse_*` function per collective takes what mpi4py's method takes, refuses what mpi4py refuses (with an
error that is also mpi4py's, see `mpicoll.errors`) and checks all that one rank can know before it sends.
Buffers are described as in mpi4py 4.1: an object, `[object, count, displacement, datatype]` or one of its
shorter forms; `None` or `MPI.IN_PLACE` on the send side (at a scatter's root: the receive side) say in place.

Stricter than mpi4py in what MPI calls erroneous and the libraries answer with wrong data or an abort: send
and receive memory must not overlap, elements must lie within the object that was passed, and what a rank
sends to itself must be exactly as long as what it receives from itself.  What an operator takes is not
checked here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from . import errors
from .datatypes import TypeFacts, facts, facts_of_dtype

__all__ = [
    "Arguments",
    "Buffer",
    "parse_allgather",
    "parse_allreduce",
    "parse_alltoall",
    "parse_bcast",
    "parse_gather",
    "parse_reduce",
    "parse_reduce_scatter",
    "parse_reduce_scatter_block",
    "parse_scatter",
    "settle_counts",
]

errors.join_mpi(MPI.Exception)

_ndarray = np.ndarray
_address_of = MPI.Get_address
_IN_PLACE = MPI.IN_PLACE
_nothing = np.empty(0, np.uint8)
_ON_CPU = (1, 3, 11, 13)  # DLPack device types: CPU, pinned by CUDA or ROCm, managed

# NumPy shares one dtype object per built-in type, so most arrays are known by its identity; unpickled arrays
# are not.
_known_dtypes: dict[int, TypeFacts] = {
    id(dtype): known for dtype in map(np.dtype, "?bhilqBHILQefdgFDG") if (known := facts_of_dtype(dtype))
}


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
            return _bytes_at(self.address, self.nbytes).copy()
        packed = np.empty(self.size, np.uint8)
        if self.size:
            with _Span(self) as (datatype, anchor):
                datatype.Pack(anchor, packed, 0, MPI.COMM_SELF)
        return packed

    def unpack(self, packed: np.ndarray) -> None:
        """Put the bytes of `pack` in their places; what lies between stays as it is."""
        if self.contiguous:
            _bytes_at(self.address, self.nbytes)[:] = packed
        elif self.size:
            with _Span(self) as (datatype, anchor):
                datatype.Unpack(packed, 0, anchor, MPI.COMM_SELF)

    def __repr__(self) -> str:
        blocks = f"{self.blocks} x " if self.blocks > 1 else ""
        return f"<Buffer {blocks}{self.count} {self.facts.name} at {self.address:#x}, {self.nbytes} bytes>"


class _ShortBuffer(Buffer):
    """Padded pairs (DOUBLE_INT) whose memory ends before the last one's padding."""

    __slots__ = ()

    @property
    def packed_nbytes(self) -> int:
        return self.nbytes

    def _owned(self) -> np.ndarray:
        return _bytes_at(self.address, self.nbytes - self.facts.extent + self.facts.true_extent)

    def pack(self) -> np.ndarray:
        packed = np.zeros(self.nbytes, np.uint8)
        owned = self._owned()
        packed[: owned.size] = owned
        return packed

    def unpack(self, packed: np.ndarray) -> None:
        owned = self._owned()
        owned[:] = packed[: owned.size]


class _Span:
    """All elements of a buffer as one element of a temporary datatype, and one byte to hang it on.

    mpi4py's Pack counts elements by the length of its buffer, which extents that are zero, negative or beyond
    the end, and absolute addresses (MPI.BOTTOM), would mislead.
    """

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.anchor = np.empty(1, np.uint8)

    def __enter__(self) -> tuple[MPI.Datatype, MPI.buffer]:
        anchor = self.buffer.address or _address_of(self.anchor)
        displacement = self.buffer.address - anchor
        inner = self.buffer.datatype.Create_hindexed([self.buffer.elements], [displacement])
        self.datatype = inner.Create_resized(0, 1).Commit()
        inner.Free()
        return self.datatype, MPI.buffer.fromaddress(anchor, 1)

    def __exit__(self, *exception: object) -> None:
        self.datatype.Free()


class Arguments:
    """The checked arguments of one call.  A side that this rank does not have, or that is in place, is None.

    `counts` is only for reduce_scatter: the elements of every rank. `unsettled`: only the ranks together know them,
    and `settle_counts` is due.
    """

    __slots__ = ("counts", "in_place", "recv", "send", "unsettled")

    def __init__(
        self, send: Buffer | None, recv: Buffer | None, in_place: bool, counts: tuple[int, ...] | None = None
    ) -> None:
        self.send = send
        self.recv = recv
        self.in_place = in_place
        self.counts = counts
        self.unsettled = False


# One function per collective


def parse_bcast(buf: Any, root: int, rank: int, size: int) -> Arguments:
    """`send` and `recv` are one buffer, which the root may have read-only."""
    root = _check_root(root, size)
    buffer = _buffer(buf, rank != root)
    return Arguments(buffer, buffer, False)


def parse_allreduce(sendbuf: Any, recvbuf: Any) -> Arguments:
    """Both sides whole, of one datatype and count."""
    recv = _buffer(recvbuf, True, 1, True)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = _buffer(sendbuf, False, 1, True)
    _check_same(send, recv)
    return Arguments(send, recv, False)


def parse_reduce(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Off the root there is only `send`, and nothing looks at `recvbuf`."""
    if _check_root(root, size) == rank:
        return parse_allreduce(sendbuf, recvbuf)
    return Arguments(_buffer(sendbuf, False, 1, True), None, False)


def parse_reduce_scatter_block(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """`send` has `size` blocks, and `recv` one; in place `recv` has all."""
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, _buffer(recvbuf, True, size, True), True)
    recv = _buffer(recvbuf, True, 1, True)
    send = _buffer(sendbuf, False, size, True)
    _check_same(send, recv)
    return Arguments(send, recv, False)


def parse_reduce_scatter(
    sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, rank: int, size: int
) -> Arguments:
    """Without `recvcounts` only the ranks together know: exchange `recv.count` and call `settle_counts`."""
    recv = _buffer(recvbuf, True, 1, True)
    in_place = sendbuf is _IN_PLACE or sendbuf is None
    send = None if in_place else _buffer(sendbuf, False, 1, True)
    if send is not None:
        _check_apart(send, recv)
        if recvcounts is None:
            _check_same_type(send, recv)
    arguments = Arguments(send, recv, in_place)
    if recvcounts is None and not in_place:
        arguments.unsettled = True
        return arguments
    return settle_counts(arguments, _counts(recvcounts, size), rank)


def settle_counts(arguments: Arguments, counts: Sequence[int], rank: int) -> Arguments:
    """Check a reduce_scatter's counts of all ranks against this rank's memory, and keep them."""
    send, recv, total = arguments.send, arguments.recv, sum(counts)
    assert recv is not None
    if send is not None:
        _check_same_type(send, recv)
    whole, side = (recv, "receive") if send is None else (send, "send")
    if whole.count != total:
        raise errors.CountMismatch(
            f"the {side} buffer has {whole.count} elements and recvcounts add up to {total}; "
            f"they must be equal"
        )
    if send is not None and recv.count != counts[rank]:
        raise errors.CountMismatch(
            f"the receive buffer has {recv.count} elements and recvcounts[{rank}] is {counts[rank]}; "
            f"they must be equal"
        )
    if min(counts) < 0:
        raise errors.CountMismatch(f"recvcounts are {list(counts)}; none may be negative")
    arguments.counts, arguments.unsettled = tuple(counts), False
    return arguments


def parse_allgather(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """`recv` has `size` blocks, and `send` one; in place the own block is already there."""
    recv = _buffer(recvbuf, True, size)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = _buffer(sendbuf)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


def parse_gather(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Off the root there is only `send`, and nothing looks at `recvbuf`."""
    if _check_root(root, size) == rank:
        return parse_allgather(sendbuf, recvbuf, size)
    return Arguments(_buffer(sendbuf), None, False)


def parse_scatter(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Off the root there is only `recv`.  At the root `recvbuf` may be in place: its own block stays put."""
    if _check_root(root, size) != rank:
        return Arguments(None, _buffer(recvbuf, True), False)
    send = _buffer(sendbuf, False, size)
    if recvbuf is _IN_PLACE or recvbuf is None:
        return Arguments(send, None, True)
    recv = _buffer(recvbuf, True)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


def parse_alltoall(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """Both sides have `size` blocks."""
    recv = _buffer(recvbuf, True, size)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = _buffer(sendbuf, False, size)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


# What one rank's arguments must satisfy together


def _check_root(root: int, size: int) -> int:
    if type(root) is not int:
        try:
            root = int(root) if isinstance(root, float) else index(root)  # mpi4py truncates floats
        except TypeError:
            raise errors.ArgumentError(
                f"root is {root!r}, {_kind(root)}; pass a rank, an integer from 0 to {size - 1}"
            ) from None
    if 0 <= root < size:
        return root
    what = "MPI.PROC_NULL" if root == MPI.PROC_NULL else "MPI.ROOT" if root == MPI.ROOT else str(root)
    raise errors.RootError(f"root is {what}; the communicator has ranks 0 to {size - 1}, pass one of them")


def _check_same(send: Buffer, recv: Buffer) -> None:
    """A reduction's two sides: one datatype, one count."""
    if send.facts is not recv.facts:
        _check_same_type(send, recv)
    if send.count != recv.count:
        raise errors.CountMismatch(
            f"{_a_block(send)} to send has {send.count} elements and {_a_block(recv)} to receive "
            f"{recv.count}; a reduction needs as many on both sides"
        )
    _check_apart(send, recv)


def _check_same_type(send: Buffer, recv: Buffer) -> None:
    if send.datatype != recv.datatype:
        raise errors.DatatypeError(
            f"the send buffer is of {send.facts.name} and the receive buffer of {recv.facts.name}; "
            f"a reduction needs one datatype, convert one of them"
        )


def _check_fit(send: Buffer, recv: Buffer) -> None:
    """What a rank sends to itself must be what it receives from itself."""
    sent, received = send.facts.size * send.count, recv.facts.size * recv.count
    if sent != received:
        raise errors.CountMismatch(
            f"{_a_block(send)} to send is {send.count} of {send.facts.name}, {sent} bytes, and "
            f"{_a_block(recv)} to receive is {recv.count} of {recv.facts.name}, {received} bytes; "
            f"they must be equally long"
        )
    _check_apart(send, recv)


def _check_apart(send: Buffer, recv: Buffer) -> None:
    """Only spans without holes are compared: the columns of one matrix interleave, and do not overlap."""
    start, end = recv.address, recv.address + recv.nbytes
    if send.address < end and start < send.address + send.nbytes and start < end and send.nbytes:
        if not (send.contiguous and recv.contiguous):
            return
        common = min(end, send.address + send.nbytes) - max(start, send.address)
        raise errors.OverlapError(
            f"send and receive buffer share {common} bytes of memory; pass MPI.IN_PLACE for the one that MPI "
            f"lets you omit, or copy one of them"
        )


def _a_block(buffer: Buffer) -> str:
    return "a block" if buffer.blocks > 1 else "the buffer"


def _kind(value: object) -> str:
    return f"of type {type(value).__name__}"


# One buffer


def _buffer(message: Any, writable: bool = False, blocks: int = 1, reducing: bool = False) -> Buffer:
    """A buffer argument in `blocks` blocks.  The way of an ordinary NumPy array is kept short."""
    if type(message) is _ndarray:
        known = _known_dtypes.get(id(message.dtype)) or facts_of_dtype(message.dtype)
        if known is not None and (not writable or message.flags.writeable):
            try:
                address = _address_of(message)
            except (BufferError, ValueError):
                raise _not_contiguous(message) from None
            if blocks == 1:
                return Buffer(message, address, message.size, 1, known, message.nbytes, True)
            count, rest = divmod(message.size, blocks)
            if not rest:
                return Buffer(message, address, count, blocks, known, message.nbytes, True)
    return _described(message, writable, blocks, reducing)


def _described(message: Any, writable: bool, blocks: int, reducing: bool) -> Buffer:
    """Any buffer argument, in the order in which mpi4py looks at its parts."""
    obj, count, displacement, spec = _unpack(message)
    held, address, length, format = _memory(obj, spec is not None, writable)
    datatype = _datatype(spec, format, obj)
    null = datatype == MPI.DATATYPE_NULL
    if null and (count is not None or not length):
        raise errors.DatatypeError("the datatype is MPI.DATATYPE_NULL; pass one that is alive and committed")
    if null:
        raise errors.MessageSpecError("the datatype is MPI.DATATYPE_NULL and there is no count; pass both")
    known = facts(datatype)
    if not known.predefined:
        _check_committed(known)
    offset = _offset(displacement, known, length)
    count = _count(count, obj, known, length - offset, blocks)
    elements = count * blocks
    contiguous = known.contiguous if reducing else known.dense
    fits = _check_room(obj, known, elements, length - offset)
    kind = _ShortBuffer if contiguous and not fits else Buffer
    return kind(held, address + offset, count, blocks, known, known.extent * elements, contiguous and fits)


def _unpack(message: Any) -> tuple[Any, Any, Any, Any]:
    """(object, count, displacement, datatype), None where not given."""
    if message is _IN_PLACE:
        raise errors.InPlaceError(
            "MPI.IN_PLACE stands where MPI needs a buffer; it may stand for the other one"
        )
    if not isinstance(message, (list, tuple)):
        if message is None:
            raise errors.NotABufferError("the buffer is None, and this rank needs one here; pass a buffer")
        return message, None, None, None
    count = displacement = spec = None
    if len(message) == 2:
        obj, count = message
        if isinstance(count, (MPI.Datatype, str)):
            return obj, None, None, count
    elif len(message) == 3:
        obj, count, spec = message
    elif len(message) == 4:
        return tuple(message)
    else:
        raise errors.MessageSpecError(
            f"a buffer given as a list has 2 to 4 items, this one has {len(message)}; "
            f"pass [buffer, count, displacement, datatype] or a shorter form"
        )
    if isinstance(count, (list, tuple)):
        if len(count) != 2:
            raise errors.MessageSpecError(f"(count, displacement) has 2 items, {count!r} has {len(count)}")
        count, displacement = count
    return obj, count, displacement, spec


def _memory(obj: Any, typed: bool, writable: bool) -> tuple[Any, int, int, str | None]:
    """(what holds the memory, its address, its length in bytes, the format of its items)."""
    if obj is None or obj is MPI.BOTTOM:
        return None, 0, 0, None
    if obj is _IN_PLACE:
        raise errors.InPlaceError("MPI.IN_PLACE cannot be part of a list; pass it alone")
    try:
        view = memoryview(obj)
    except TypeError:
        return _foreign_memory(obj, typed, writable)
    except (BufferError, ValueError) as error:  # dates, for which there is no format
        if not (typed and isinstance(obj, np.ndarray) and obj.flags.forc):
            raise errors.BufferAccessError(f"the buffer, {_kind(obj)}, cannot be read: {error}") from None
        view = obj.ravel(order="K").view(np.uint8).data
    if not view.contiguous:
        raise _not_contiguous(obj)
    if writable and view.readonly:
        raise _read_only(obj)
    return view, _address_of(view), view.nbytes, view.format


def _foreign_memory(obj: Any, typed: bool, writable: bool) -> tuple[Any, int, int, str | None]:
    """Memory of an object that has no Python buffer, but DLPack or the CUDA array interface."""
    dlpack, cuda = hasattr(obj, "__dlpack__"), hasattr(obj, "__cuda_array_interface__")
    if not (dlpack or cuda):
        raise errors.NotABufferError(
            f"the buffer is {obj!r:.60}, {_kind(obj)}; pass an object with the buffer interface, or a list "
            f"[buffer, count, displacement, datatype] or a shorter form of it"
        )
    try:
        held = MPI.buffer.frombuffer(obj, readonly=not writable)
    except (BufferError, ValueError) as error:
        raise errors.BufferAccessError(f"the buffer, {_kind(obj)}, cannot be used: {error}") from None
    if obj.__dlpack_device__()[0] not in _ON_CPU if dlpack else not _readable(held):
        raise errors.BufferAccessError(f"the buffer, {_kind(obj)}, is not in CPU memory; copy it there first")
    return held, held.address, held.nbytes, None if typed else _foreign_format(obj, dlpack)


def _foreign_format(obj: Any, dlpack: bool) -> str | None:
    """None, as in mpi4py, for item types that have no format (bfloat16): these travel as bytes."""
    try:
        dtype = np.from_dlpack(obj).dtype if dlpack else np.dtype(obj.__cuda_array_interface__["typestr"])
        return np.empty(0, dtype).data.format
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None


def _readable(held: MPI.buffer) -> bool:
    """The CUDA interface does not say where memory is, but a system call does so without a crash."""
    if held.nbytes == 0:
        return True
    first: Any = MPI.buffer.fromaddress(held.address, 1)
    source, sink = os.pipe()
    try:
        return os.write(sink, first) == 1
    except OSError:
        return False
    finally:
        os.close(source)
        os.close(sink)


def _datatype(spec: Any, format: str | None, obj: Any) -> MPI.Datatype:
    """The datatype that was named, or else found by the format."""
    if isinstance(spec, MPI.Datatype):
        return spec
    if spec is None:
        if obj is None or obj is MPI.BOTTOM:
            raise errors.TypecodeError("there is no memory to find the datatype by; name the datatype")
        if format is None:
            return MPI.BYTE
        spec = _native_format(format)
    if not isinstance(spec, (str, bytes, int, float)) and spec.__hash__ is None:
        raise errors.ArgumentError(
            f"the datatype is {spec!r}, {_kind(spec)}; pass an MPI.Datatype or a typecode"
        )
    try:
        return MPI.Datatype.fromcode(spec)
    except (TypeError, ValueError):
        raise errors.TypecodeError(
            f"no MPI datatype corresponds to {spec!r}; name one, as in [buffer, MPI.BYTE]"
        ) from None


def _check_committed(known: TypeFacts) -> None:
    """Packing nothing is how to ask: MPI has no question for it."""
    if known.extent > 0:
        try:
            known.datatype.Pack(b"", _nothing, 0, MPI.COMM_SELF)
        except MPI.Exception:
            raise errors.DatatypeError(f"{known.name} is not committed; call its Commit()") from None


def _native_format(format: str) -> str:
    order = {"@": sys.byteorder, "<": "little", ">": "big"}.get(format[:1])
    if order is None:
        return format
    if order != sys.byteorder:
        raise errors.BufferAccessError(
            f"the items have format {format!r}, {order}-endian, on a {sys.byteorder}-endian machine; "
            f"convert them to native byte order"
        )
    return format[1:]


def _offset(displacement: Any, known: TypeFacts, length: int) -> int:
    """Bytes before the first element; displacements are in elements."""
    if displacement is None:
        return 0
    displacement = _integer(displacement, "displacement")
    if displacement < 0:
        raise errors.MessageSpecError(f"the displacement is {displacement}; it must not be negative")
    if displacement == 0:
        return 0
    if known.extent <= 0:
        raise errors.MessageSpecError(
            f"the displacement is {displacement}, of a datatype with extent {known.extent}; "
            f"slice the buffer, or give the datatype a positive extent"
        )
    if displacement * known.extent > length:
        raise errors.MessageSpecError(
            f"the displacement is {displacement} and the buffer has only {length // known.extent} elements"
        )
    return displacement * known.extent


def _count(count: Any, obj: Any, known: TypeFacts, length: int, blocks: int) -> int:
    """Elements of one block: as given, or what the memory holds."""
    if count is not None:
        count = _integer(count, "count")
        if count < 0:
            raise errors.MessageSpecError(f"the count is {count}; it must not be negative")
        if count > 0 and obj is None:
            raise errors.MessageSpecError(
                f"the count is {count} and the buffer is None; pass a buffer or count 0"
            )
        return count
    if length == 0:
        return 0
    if known.extent <= 0 or length % known.extent:
        raise errors.MessageSpecError(
            f"the buffer has {length} bytes, no multiple of the extent {known.extent} of {known.name}; "
            f"pass a count, or a buffer of whole elements"
        )
    elements = length // known.extent
    if elements % blocks:
        raise errors.MessageSpecError(
            f"the buffer has {elements} elements, which {blocks} ranks cannot share equally; "
            f"pass a multiple of {blocks}, or the count of one block"
        )
    return elements // blocks


def _check_room(obj: Any, known: TypeFacts, elements: int, length: int) -> bool:
    """Whether the whole span lies in the memory; an error where even the data does not."""
    if elements == 0:
        return True
    if obj is MPI.BOTTOM:
        if known.predefined:
            raise errors.BufferTooSmallError(
                f"{elements} of {known.name} at MPI.BOTTOM are at address 0; "
                f"pass a datatype made of absolute addresses"
            )
        return False
    needed = (elements - 1) * max(known.extent, 0) + known.true_lb + known.true_extent
    if needed > length:
        raise errors.BufferTooSmallError(
            f"{elements} elements of {known.name} need {needed} bytes and the buffer has {length}; "
            f"pass a smaller count or a larger buffer"
        )
    return known.extent * elements <= length


def _counts(recvcounts: Any, size: int) -> list[int]:
    try:
        given = [recvcounts[i] for i in range(len(recvcounts))]
    except TypeError:
        raise errors.ArgumentError(
            f"recvcounts is {recvcounts!r:.60}, {_kind(recvcounts)}; pass one integer per rank, {size} in all"
        ) from None
    if len(given) != size:
        raise errors.MessageSpecError(f"recvcounts has {len(given)} items; pass one per rank, {size} in all")
    return [_integer(count, "item of recvcounts") for count in given]


def _integer(value: Any, what: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise errors.ArgumentError(f"a {what} is {value!r:.60}, {_kind(value)}; pass an integer") from None


def _bytes_at(address: int, nbytes: int) -> np.ndarray:
    if not nbytes:
        return np.empty(0, np.uint8)
    memory: Any = MPI.buffer.fromaddress(address, nbytes)
    return np.frombuffer(memory, np.uint8)


def _not_contiguous(obj: Any) -> errors.BufferAccessError:
    return errors.BufferAccessError(
        f"the buffer, {_kind(obj)}, is not contiguous; pass a contiguous one (numpy.ascontiguousarray "
        f"makes a copy), or all of the memory with a vector datatype"
    )


def _read_only(obj: Any) -> errors.BufferAccessError:
    return errors.BufferAccessError(
        f"the buffer, {_kind(obj)}, is read-only and this rank receives into it; pass a writable one"
    )
