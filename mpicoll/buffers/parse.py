"""Parse and check one buffer argument, in any of mpi4py 4.1's forms.

A form is an object, `[object, count, displacement, datatype]` or one of its shorter forms. Elements must not exceed the
object passed, which is stricter than mpi4py. For datatypes with holes see owner.reach.
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
from .memory import describe_type, memory_of, not_contiguous_error
from .owner import reach

errors.join_mpi(MPI.Exception)

_ndarray = np.ndarray
_address_of = MPI.Get_address
_empty = np.empty(0, np.uint8)

# NumPy shares one dtype object per built-in type, so its id identifies most arrays' types; unpickled ones have copies.
_facts_by_dtype_id: dict[int, TypeFacts] = {
    id(dtype): type_facts for dtype in map(np.dtype, "?bhilqBHILQefdgFDG") if (type_facts := facts_of_dtype(dtype))
}


def parse_buffer(message: Any, writable: bool = False, blocks: int = 1, reducing: bool = False) -> Buffer:
    """Parse a buffer argument of `blocks` blocks, with a fast path for an ordinary NumPy array."""
    if type(message) is _ndarray:
        type_facts = _facts_by_dtype_id.get(id(message.dtype)) or facts_of_dtype(message.dtype)
        if type_facts is not None and (not writable or message.flags.writeable):
            try:
                address = _address_of(message)
            except (BufferError, ValueError):
                raise not_contiguous_error(message) from None
            if blocks == 1:
                return Buffer(message, address, message.size, 1, type_facts, message.nbytes, True)
            count, rest = divmod(message.size, blocks)
            if not rest:
                return Buffer(message, address, count, blocks, type_facts, message.nbytes, True)
    return _parse_any(message, writable, blocks, reducing)


def _parse_any(message: Any, writable: bool, blocks: int, reducing: bool) -> Buffer:
    """Parse any buffer argument; check its parts in mpi4py's order, to raise the same error."""
    obj, count, displacement, spec = unpack(message, "count, displacement", (list, tuple))
    holder, address, length, format = memory_of(obj, spec is not None, writable)
    datatype = find_type(spec, format, obj)
    if datatype == MPI.DATATYPE_NULL:
        if count is not None or not length:
            raise null_error()
        raise errors.MessageSpecError("the datatype is MPI.DATATYPE_NULL and there is no count; pass both")
    type_facts = check_type(datatype)
    offset = _offset(displacement, type_facts, length)
    count = _count(count, obj, type_facts, length - offset, blocks)
    elements = count * blocks
    contiguous = type_facts.contiguous if reducing else type_facts.dense
    fits = _check_room(obj, type_facts, elements, address, length, offset)
    make = ScatteredBuffer if not contiguous else Buffer if fits else ShortBuffer
    return make(holder, address + offset, count, blocks, type_facts, type_facts.extent * elements, contiguous and fits)


def unpack(message: Any, names: str, pairs: type | tuple[type, ...]) -> tuple[Any, Any, Any, Any]:
    """Return (object, counts, displacements, datatype) of a message, with None for missing items.

    The second item of two or three has counts and displacements if it is one of `pairs`, else counts alone.
    """
    if message is MPI.IN_PLACE:
        raise in_place_error()
    if message is None:
        raise errors.NotABufferError("the buffer is None, and this rank needs one here; pass a buffer")
    if not isinstance(message, (list, tuple)):
        return message, None, None, None
    counts = spec = None
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
            f"pass [buffer, {names}, datatype] or a shorter form"
        )
    return obj, *(split_pair(counts, names) if isinstance(counts, pairs) else (counts, None)), spec


def split_pair(pair: Any, names: str) -> tuple[Any, Any]:
    """Return the two items of a pair. Raises ArgumentError for no sequence, MessageSpecError for another length."""
    try:
        counts, displacements = pair
    except TypeError:
        raise errors.ArgumentError(f"({names}) is {pair!r:.60}, {describe_type(pair)}; pass a tuple") from None
    except ValueError:
        raise errors.MessageSpecError(
            f"({names}) has 2 items, {pair!r:.60} has {len(pair)}; pass the first alone, or a tuple of both"
        ) from None
    return counts, displacements


def find_type(spec: Any, format: str | None, obj: Any) -> MPI.Datatype:
    """Return the datatype that the caller named, or else the one of the format."""
    if isinstance(spec, MPI.Datatype):
        return spec
    if spec is None:
        if obj is None or obj is MPI.BOTTOM:
            raise errors.TypecodeError(
                "the buffer has no memory, so its datatype is unknown; name it, as in [buffer, count, MPI.BYTE]"
            )
        if format is None:
            return MPI.BYTE
        spec = _native_format(format)
    if isinstance(spec, str) and (type_facts := low_facts(spec)) is not None:
        return type_facts.datatype
    if not isinstance(spec, (str, bytes, int, float)) and spec.__hash__ is None:
        raise errors.ArgumentError(
            f"the datatype is {spec!r}, {describe_type(spec)}; pass an MPI.Datatype or a typecode"
        )
    try:
        return MPI.Datatype.fromcode(spec)
    except (TypeError, ValueError):
        raise errors.TypecodeError(
            f"no MPI datatype corresponds to {spec!r}; name one, as in [buffer, MPI.BYTE]"
        ) from None


def for_mpi(message: Any) -> Any:
    """Return a buffer argument that mpi4py can read: arrays of ml_dtypes become unsigned integers with a datatype."""
    obj = message[0] if isinstance(message, (list, tuple)) and message else message
    if not isinstance(obj, np.ndarray) or (type_facts := low_facts(low(obj.dtype) or "")) is None:
        return message
    view = obj.view(f"u{obj.itemsize}")
    if obj is message:
        return [view, type_facts.datatype]
    rest = list(message[1:])
    named = len(rest) > 1 or (rest and isinstance(rest[0], (MPI.Datatype, str)))
    return [view, *(rest if named else [*rest, type_facts.datatype])]


def parse_datatype(spec: MPI.Datatype | str) -> TypeFacts:
    """Return the facts on a datatype or typecode that the caller named without a buffer."""
    datatype = find_type(spec, None, spec)
    if datatype == MPI.DATATYPE_NULL:
        raise null_error()
    return check_type(datatype)


def in_place_error() -> errors.InPlaceError:
    """Return the error of a call that passes MPI.IN_PLACE for an argument that cannot be in place."""
    return errors.InPlaceError(
        "MPI.IN_PLACE is passed where MPI needs a buffer; pass a buffer, or MPI.IN_PLACE as the other argument"
    )


def null_error() -> errors.DatatypeError:
    """Return the error of a call that passes MPI.DATATYPE_NULL."""
    return errors.DatatypeError("the datatype is MPI.DATATYPE_NULL; pass one that is alive and committed")


def check_type(datatype: MPI.Datatype) -> TypeFacts:
    """Return the facts on a datatype, and cache them. Raises DatatypeError if it is not committed."""
    type_facts = remembered(datatype)
    if type_facts is None:
        type_facts = facts(datatype)
        if not type_facts.predefined:
            _check_committed(type_facts)
        remember(datatype, type_facts)  # also that it is committed, which does not change
    return type_facts


def _check_committed(type_facts: TypeFacts) -> None:
    """Raise DatatypeError if MPI refuses to pack no elements: MPI has no query for whether a type is committed.

    mpi4py's Pack divides by the extent, and an extent of 0 kills the process.
    """
    if type_facts.extent > 0:
        try:
            type_facts.datatype.Pack(b"", _empty, 0, MPI.COMM_SELF)
        except MPI.Exception:
            raise errors.DatatypeError(f"{type_facts.name} is not committed; call its Commit()") from None


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


def _offset(displacement: object, type_facts: TypeFacts, length: int) -> int:
    """Return the bytes before the first element, of a displacement in elements."""
    if displacement is None:
        return 0
    displacement = parse_integer(displacement, "displacement")
    if displacement < 0:
        raise errors.MessageSpecError(f"the displacement is {displacement}; pass 0 or more")
    if displacement == 0:
        return 0
    if type_facts.extent <= 0:
        raise errors.MessageSpecError(
            f"the displacement is {displacement}, of a datatype with extent {type_facts.extent}; "
            f"slice the buffer, or give the datatype a positive extent"
        )
    if displacement * type_facts.extent > length:
        raise errors.MessageSpecError(
            f"the displacement is {displacement} and the buffer has only {length // type_facts.extent} elements; "
            f"pass a smaller one, or a larger buffer"
        )
    return displacement * type_facts.extent


def _count(count: object, obj: Any, type_facts: TypeFacts, length: int, blocks: int) -> int:
    """Return the elements of one block: the count passed, or else an equal part of the memory."""
    if count is not None:
        count = parse_integer(count, "count")
        if count < 0:
            raise errors.MessageSpecError(f"the count is {count}; pass 0 or more")
        if count > 0 and obj is None:
            raise errors.MessageSpecError(f"the count is {count} and the buffer is None; pass a buffer or count 0")
        return count
    if length == 0:
        return 0
    if type_facts.extent <= 0 or length % type_facts.extent:
        raise errors.MessageSpecError(
            f"the buffer has {length} bytes, no multiple of the extent {type_facts.extent} of {type_facts.name}; "
            f"pass a count, or a buffer of whole elements"
        )
    elements = length // type_facts.extent
    if elements % blocks:
        raise errors.MessageSpecError(
            f"the buffer has {elements} elements, which {blocks} ranks cannot share equally; "
            f"pass a multiple of {blocks}, or the count of one block"
        )
    return elements // blocks


def _check_room(obj: Any, type_facts: TypeFacts, elements: int, address: int, length: int, offset: int) -> bool:
    """Return whether the memory contains the whole span. Raises BufferTooSmallError if it lacks bytes of data."""
    if elements == 0:
        return True
    if obj is MPI.BOTTOM:
        if type_facts.predefined:
            raise errors.BufferTooSmallError(
                f"{elements} of {type_facts.name} at MPI.BOTTOM are at address 0; "
                f"pass a datatype of absolute addresses"
            )
        return False
    begin, end, first, last = reach(obj, type_facts, elements, offset, address, length)
    if end > last:
        raise errors.BufferTooSmallError(
            f"{elements} elements of {type_facts.name} need {end - offset} bytes and the buffer has {last - offset}; "
            f"pass a smaller count or a larger buffer"
        )
    if begin < first:
        raise errors.BufferTooSmallError(
            f"{elements} elements of {type_facts.name} begin {first - begin} bytes before the buffer; "
            f"pass a larger displacement"
        )
    return type_facts.extent * elements <= length - offset


def parse_integers(values: Any, size: int, what: str) -> list[int]:
    """Return one integer per rank."""
    if type(values) in (list, tuple) and len(values) == size:
        with suppress(TypeError):
            return list(map(index, values))
    try:
        items = [values[i] for i in range(len(values))]
    except TypeError:
        raise errors.ArgumentError(
            f"{what} is {values!r:.60}, {describe_type(values)}; pass one integer per rank, {size} in all"
        ) from None
    numbers = [parse_integer(value, f"item of {what}") for value in items]
    if len(numbers) != size:
        raise errors.MessageSpecError(f"{what} has {len(numbers)} items; pass one per rank, {size} in all")
    return numbers


def parse_integer(value: Any, what: str) -> int:
    """Return a value as an int. Raises ArgumentError if it is not an integer."""
    try:
        return index(value)
    except TypeError:
        raise errors.ArgumentError(f"a {what} is {value!r:.60}, {describe_type(value)}; pass an integer") from None
