"""One buffer argument, in any of mpi4py 4.1's forms, to checked memory.

A form is an object, `[object, count, displacement, datatype]` or one of its shorter forms. Elements must lie
within the object that was passed, which is stricter than mpi4py; of datatypes with holes see owner.reach.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from operator import index
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import errors
from ..kernels.rules import low
from .buffer import Buffer, ScatteredBuffer, ShortBuffer
from .datatypes import TypeFacts, facts, facts_of_dtype, low_facts, remember, remembered
from .dlpack import item_format
from .owner import reach
from .peek import peek

errors.join_mpi(MPI.Exception)

_ndarray = np.ndarray
_address_of = MPI.Get_address
_nothing = np.empty(0, np.uint8)
_ON_CPU = (1, 3, 11, 13)  # DLPack device types: CPU, pinned by CUDA or ROCm, managed

# NumPy shares one dtype object per built-in type, so most arrays are known by its identity; unpickled arrays
# are not.
_known_dtypes: dict[int, TypeFacts] = {
    id(dtype): known for dtype in map(np.dtype, "?bhilqBHILQefdgFDG") if (known := facts_of_dtype(dtype))
}


def buffer(message: Any, writable: bool = False, blocks: int = 1, reducing: bool = False) -> Buffer:
    """Return a buffer argument in `blocks` blocks.  The way of an ordinary NumPy array is kept short."""
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
    held, address, length, format = memory_of(obj, spec is not None, writable)
    datatype = find_type(spec, format, obj)
    null = datatype == MPI.DATATYPE_NULL
    if null and (count is not None or not length):
        raise _null()
    if null:
        raise errors.MessageSpecError("the datatype is MPI.DATATYPE_NULL and there is no count; pass both")
    known = check_type(datatype)
    offset = _offset(displacement, known, length)
    count = _count(count, obj, known, length - offset, blocks)
    elements = count * blocks
    contiguous = known.contiguous if reducing else known.dense
    fits = _check_room(obj, known, elements, address, length, offset)
    kind = ScatteredBuffer if not contiguous else Buffer if fits else ShortBuffer
    return kind(held, address + offset, count, blocks, known, known.extent * elements, contiguous and fits)


def _unpack(message: Any) -> tuple[Any, Any, Any, Any]:
    """(object, count, displacement, datatype), None where not given."""
    if message is MPI.IN_PLACE:
        raise errors.InPlaceError("MPI.IN_PLACE stands where MPI needs a buffer; it may stand for the other one")
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


def memory_of(obj: Any, typed: bool, writable: bool) -> tuple[Any, int, int, str | None]:
    """Return (what holds the memory, its address, its length in bytes, the format of its items)."""
    if obj is None or obj is MPI.BOTTOM:
        return None, 0, 0, None
    if obj is MPI.IN_PLACE:
        raise errors.InPlaceError("MPI.IN_PLACE cannot be part of a list; pass it alone")
    format = None
    try:
        view = memoryview(obj)
    except TypeError:
        return _foreign_memory(obj, typed, writable)
    except (BufferError, ValueError) as error:  # dates, and ml_dtypes' numbers, for which there is no format
        if isinstance(obj, np.ndarray):
            format = low(obj.dtype)
        if not ((typed or format) and isinstance(obj, np.ndarray) and obj.flags.forc):
            raise errors.BufferAccessError(f"the buffer, {kind(obj)}, cannot be read: {error}") from None
        view = obj.ravel(order="K").view(np.uint8).data
    if not view.contiguous:
        raise _not_contiguous(obj)
    if writable and view.readonly:
        raise _read_only(obj)
    return view, _address_of(view), view.nbytes, format or view.format


def _foreign_memory(obj: Any, typed: bool, writable: bool) -> tuple[Any, int, int, str | None]:
    """Memory of an object that has no Python buffer, but DLPack or the CUDA array interface."""
    dlpack, cuda = hasattr(obj, "__dlpack__"), hasattr(obj, "__cuda_array_interface__")
    if not (dlpack or cuda):
        raise errors.NotABufferError(
            f"the buffer is {obj!r:.60}, {kind(obj)}; pass an object with the buffer interface, or a list "
            f"[buffer, count, displacement, datatype] or a shorter form of it"
        )
    try:
        held = MPI.buffer.frombuffer(obj, readonly=not writable)
    except (BufferError, ValueError) as error:
        raise errors.BufferAccessError(f"the buffer, {kind(obj)}, cannot be used: {error}") from None
    if obj.__dlpack_device__()[0] not in _ON_CPU if dlpack else not _readable(held):
        raise errors.BufferAccessError(f"the buffer, {kind(obj)}, is not in CPU memory; copy it there first")
    return held, held.address, held.nbytes, None if typed else _foreign_format(obj, dlpack)


def _foreign_format(obj: Any, dlpack: bool) -> str | None:
    """None, as in mpi4py, for item types that have no format (bfloat16): these travel as bytes."""
    if dlpack:
        return item_format(obj)
    try:
        return np.empty(0, np.dtype(obj.__cuda_array_interface__["typestr"])).data.format
    except (TypeError, ValueError):
        return None


def _readable(held: MPI.buffer) -> bool:
    """Return whether this processor can read the memory, which the CUDA interface does not say."""
    return held.nbytes == 0 or peek(held.address, 1) is not None


def find_type(spec: Any, format: str | None, obj: Any) -> MPI.Datatype:
    """Return the datatype that was named, or else found by the format."""
    if isinstance(spec, MPI.Datatype):
        return spec
    if spec is None:
        if obj is None or obj is MPI.BOTTOM:
            raise errors.TypecodeError("there is no memory to find the datatype by; name the datatype")
        if format is None:
            return MPI.BYTE
        spec = _native_format(format)
    if isinstance(spec, str) and (known := low_facts(spec)) is not None:
        return known.datatype
    if not isinstance(spec, (str, bytes, int, float)) and spec.__hash__ is None:
        raise errors.ArgumentError(f"the datatype is {spec!r}, {kind(spec)}; pass an MPI.Datatype or a typecode")
    try:
        return MPI.Datatype.fromcode(spec)
    except (TypeError, ValueError):
        raise errors.TypecodeError(
            f"no MPI datatype corresponds to {spec!r}; name one, as in [buffer, MPI.BYTE]"
        ) from None


def for_mpi(message: Any) -> Any:
    """Return a buffer argument as mpi4py can read it: arrays of ml_dtypes' as unsigned integers of a named datatype."""
    obj = message[0] if isinstance(message, (list, tuple)) and message else message
    if not isinstance(obj, np.ndarray) or (known := low_facts(low(obj.dtype) or "")) is None:
        return message
    view = obj.view(f"u{obj.itemsize}")
    if obj is message:
        return [view, known.datatype]
    rest = list(message[1:])
    named = len(rest) > 1 or (rest and isinstance(rest[0], (MPI.Datatype, str)))
    return [view, *(rest if named else [*rest, known.datatype])]


def named_type(spec: MPI.Datatype | str) -> TypeFacts:
    """Return the facts on a datatype that was named without a buffer."""
    datatype = find_type(spec, None, spec)
    if datatype == MPI.DATATYPE_NULL:
        raise _null()
    return check_type(datatype)


def _null() -> errors.DatatypeError:
    return errors.DatatypeError("the datatype is MPI.DATATYPE_NULL; pass one that is alive and committed")


def check_type(datatype: MPI.Datatype) -> TypeFacts:
    """Return the facts on a datatype that is not null. Raises DatatypeError where it is not committed."""
    known = remembered(datatype)
    if known is None:
        known = facts(datatype)
        if not known.predefined:
            _check_committed(known)
        remember(datatype, known)  # a datatype once committed stays so
    return known


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


def _offset(displacement: object, known: TypeFacts, length: int) -> int:
    """Bytes before the first element; displacements are in elements."""
    if displacement is None:
        return 0
    displacement = integer(displacement, "displacement")
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


def _count(count: object, obj: Any, known: TypeFacts, length: int, blocks: int) -> int:
    """Elements of one block: as given, or what the memory holds."""
    if count is not None:
        count = integer(count, "count")
        if count < 0:
            raise errors.MessageSpecError(f"the count is {count}; it must not be negative")
        if count > 0 and obj is None:
            raise errors.MessageSpecError(f"the count is {count} and the buffer is None; pass a buffer or count 0")
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


def _check_room(obj: Any, known: TypeFacts, elements: int, address: int, length: int, offset: int) -> bool:
    """Return whether the whole span lies in the memory; an error where even the data does not."""
    if elements == 0:
        return True
    if obj is MPI.BOTTOM:
        if known.predefined:
            raise errors.BufferTooSmallError(
                f"{elements} of {known.name} at MPI.BOTTOM are at address 0; pass a datatype made of absolute addresses"
            )
        return False
    begin, end, first, last = reach(obj, known, elements, offset, address, length)
    if end > last:
        raise errors.BufferTooSmallError(
            f"{elements} elements of {known.name} need {end - offset} bytes and the buffer has {last - offset}; "
            f"pass a smaller count or a larger buffer"
        )
    if begin < first:
        raise errors.BufferTooSmallError(
            f"{elements} elements of {known.name} begin {first - begin} bytes before the buffer; "
            f"pass a displacement that leaves them room"
        )
    return known.extent * elements <= length - offset


def integers(values: Any, size: int, what: str) -> list[int]:
    """Return one integer per rank."""
    if type(values) in (list, tuple) and len(values) == size:
        with suppress(TypeError):
            return list(map(index, values))
    try:
        items = [values[i] for i in range(len(values))]
    except TypeError:
        raise errors.ArgumentError(
            f"{what} is {values!r:.60}, {kind(values)}; pass one integer per rank, {size} in all"
        ) from None
    numbers = [integer(value, f"item of {what}") for value in items]
    if len(numbers) != size:
        raise errors.MessageSpecError(f"{what} has {len(numbers)} items; pass one per rank, {size} in all")
    return numbers


def integer(value: Any, what: str) -> int:
    """Return a value as an int. Raises ArgumentError."""
    try:
        return index(value)
    except TypeError:
        raise errors.ArgumentError(f"a {what} is {value!r:.60}, {kind(value)}; pass an integer") from None


def _not_contiguous(obj: Any) -> errors.BufferAccessError:
    return errors.BufferAccessError(
        f"the buffer, {kind(obj)}, is not contiguous; pass a contiguous one (numpy.ascontiguousarray "
        f"makes a copy), or all of the memory with a vector datatype"
    )


def _read_only(obj: Any) -> errors.BufferAccessError:
    return errors.BufferAccessError(
        f"the buffer, {kind(obj)}, is read-only and this rank receives into it; pass a writable one"
    )


def kind(value: object) -> str:
    """Return what a value is, for the text of an error."""
    return f"of type {type(value).__name__}"
