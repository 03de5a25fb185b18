"""Compute the key of a call in compiled code, by reading its arguments in memory; rows are compared with the key.

A buffer is None, MPI.IN_PLACE, an aligned contiguous numpy.ndarray, or one of mpi4py's lists or tuples that begin with
such an array: `[array, count, displacement, datatype]`, `[array, counts, displacements, datatype]` or a shorter one.
An array stands for another object with memory (other_buffers.py). The key has an array's dtype object and number of
elements, and whether both arrays begin at the same address, since a reduction is then in place.

The other items of a list are the details of the key. Integers and arrays of integers are represented by their values,
so a list whose counts have changed has another key. Scalars of NumPy are integers too. Typecodes and MPI's predefined
datatypes are represented by their addresses, other datatypes by the addresses of their facts (buffers/datatypes.py).
Nothing here runs Python code: arguments that would need it, such as other sequences and numbers, have no key.

In a row for any counts, neither numbers of elements nor integers among the details are compared.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.peek import peek
from ..kernels.deferred import njit
from ..kernels.memory import call_int, call_long, line, load, load_short
from . import context as field
from .recipe import facts_of_recipe, handle_at

ROWS = 256  # for fixed counts, followed by as many for any counts
# indices in a key; LENGTH is the number of words of details
METHOD, OPERATOR, ROOT, SEND, SEND_COUNT, RECV, RECV_COUNT, SAME_ADDRESS, LENGTH = range(9)
KEYS = 9
NO_ARRAY = -1  # the number of elements of a buffer that is None or MPI.IN_PLACE
MAX_CAPACITY = 8192  # words for details
# byte offsets of fields in objects
TYPE, DATA, NDIM, DIMENSIONS, DTYPE, FLAGS = 8, 16, 24, 32, 56, 64
SCALAR = 16  # of the value in a scalar of NumPy's
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1 | 0x2, 0x100, 0x400


@njit
def count_elements(context, thing):  # type: ignore[no-untyped-def]
    """Return the elements of a contiguous, aligned array; NO_ARRAY for None and MPI.IN_PLACE; else less than that."""
    if thing == context[field.NONE] or thing == context[field.IN_PLACE]:
        return NO_ARRAY
    if load(thing + TYPE) != context[field.NDARRAY]:
        return NO_ARRAY - 1
    flags = load_short(thing + FLAGS)
    if flags & CONTIGUOUS == 0 or flags & ALIGNED == 0:
        return NO_ARRAY - 1
    n, dimensions = 1, load(thing + DIMENSIONS)
    for i in range(load_short(thing + NDIM)):
        n *= load(dimensions + 8 * i)
    return n


@njit
def put_detail(context, kind, value):  # type: ignore[no-untyped-def]
    """Append two words to the details; return False if there is no room."""
    at = context[field.KEY + LENGTH]
    if at + 2 > context[field.CAPACITY]:
        return False
    details = line(context[field.DETAILS], at + 2)
    details[at], details[at + 1] = kind, value
    context[field.KEY + LENGTH] = at + 2
    return True


@njit
def put_integers(context, array):  # type: ignore[no-untyped-def]
    """Append an array of integers to the details; return False for another array."""
    kind = load(array + DTYPE)
    if kind != context[field.LONGS] and kind != context[field.INTS]:
        return False
    flags, n = load_short(array + FLAGS), load(load(array + DIMENSIONS)) if load_short(array + NDIM) == 1 else -1
    if n < 0 or flags & CONTIGUOUS == 0 or flags & ALIGNED == 0 or not put_detail(context, kind, n):
        return False
    at, data = context[field.KEY + LENGTH], load(array + DATA)
    if at + n > context[field.CAPACITY]:
        return False
    details = line(context[field.DETAILS], at + n)
    for i in range(n):
        details[at + i] = load(data + 8 * i) if kind == context[field.LONGS] else load_short(data + 4 * i)
    context[field.KEY + LENGTH] = at + n
    return True


@njit
def is_predefined(context, thing):  # type: ignore[no-untyped-def]
    """Return whether an object is one of MPI's predefined datatypes or operators."""
    at = thing >> 4
    while True:
        known = load(context[field.PREDEFINED] + 8 * (at % field.HASH_SLOTS))
        if known == thing or known == 0:
            return known != 0
        at += 1


@njit
def handle_of(context, thing):  # type: ignore[no-untyped-def]
    """Return the MPI handle in a datatype or operator of mpi4py."""
    return handle_at(context, thing + context[field.TYPE_HANDLE])


@njit
def facts_of(context, thing):  # type: ignore[no-untyped-def]
    """Return the word for a datatype: the address of a predefined one, else of its facts; 0 if facts are unknown.

    These are the facts on the first datatype with the same layout, an attribute of the datatype. (So if MPI reuses a
    handle for another datatype, that has no attribute.) A datatype without the attribute is recognized by its recipe.
    With a user's operator, whose function gets the datatype, the facts are those on this datatype alone.
    """
    if is_predefined(context, thing):
        return thing
    handle = handle_of(context, thing)
    if handle == context[field.TYPE_NULL]:
        return 0
    attribute = context[field.ATTRIBUTE]
    keyval = context[field.OWN_KEYVAL if context[field.HAS_OWN_OP] else field.KEYVAL]
    code = call_int(context[field.GET_ATTR], (handle, keyval, attribute, attribute + 8))
    if code == 0 and load_short(attribute + 8) != 0:
        return load(attribute)
    return 0 if context[field.HAS_OWN_OP] else facts_of_recipe(context, handle)


@njit
def put_leaf(context, thing):  # type: ignore[no-untyped-def]
    """Append an item that is no sequence to the details; return False for an item that has no representation."""
    kind = load(thing + TYPE)
    if kind == context[field.INTEGER]:
        value = call_long(context[field.VALUE], (thing,))
        if value == -1:  # not a valid count, or an int above 64 bits, for which Python has set an error
            call_long(context[field.ERR_CLEAR], ())
            return False
        return put_detail(context, kind, value)
    if kind == context[field.LONG] or kind == context[field.INT]:
        value = load(thing + SCALAR) if kind == context[field.LONG] else load_short(thing + SCALAR)
        return put_detail(context, kind, value)
    if kind == context[field.DATATYPE]:
        known = facts_of(context, thing)
        return known != 0 and put_detail(context, kind, known)
    if kind == context[field.STRING] or thing == context[field.NONE]:
        return put_detail(context, kind, thing)
    return kind == context[field.NDARRAY] and put_integers(context, thing)


@njit
def sequence_length(context, thing):  # type: ignore[no-untyped-def]
    """Return the length of a list or tuple, -1 for another object."""
    kind = load(thing + TYPE)
    if kind == context[field.LIST]:
        return call_long(context[field.LIST_SIZE], (thing,))
    if kind == context[field.TUPLE]:
        return call_long(context[field.TUPLE_SIZE], (thing,))
    return -1


@njit
def item(context, thing, i):  # type: ignore[no-untyped-def]
    """Return a borrowed reference to an item of a list or tuple."""
    is_list = load(thing + TYPE) == context[field.LIST]
    return call_long(context[field.LIST_ITEM] if is_list else context[field.TUPLE_ITEM], (thing, i))


def _put_list(put_item: Any) -> Any:
    """Return a function that appends an item, or a list or tuple of items, to the details by `put_item`."""

    @njit
    def parts(context, thing):  # type: ignore[no-untyped-def]
        n = sequence_length(context, thing)
        if n < 0:
            return put_item(context, thing)
        right = put_detail(context, load(thing + TYPE), n)
        for i in range(n):
            right = right and put_item(context, item(context, thing, i))
        return right

    return parts


put_part = _put_list(_put_list(put_leaf))  # an item after the buffer: counts, (counts, displacements), datatypes


@njit
def array_in(context, message, side):  # type: ignore[no-untyped-def]
    """Return the buffer of a message, and append its other items to the details; 0 if one has no representation."""
    kind = load(message + TYPE)
    if kind == context[field.NDARRAY]:
        return message
    n = sequence_length(context, message)
    if n < 0:
        return message
    if n < 2 or not put_detail(context, kind + side, n):  # addresses of objects are even, so `side` does not collide
        return 0
    for i in range(1, n):
        if not put_part(context, item(context, message, i)):
            return 0
    return item(context, message, 0)


@njit
def compute_key(context, arguments, arrays):  # type: ignore[no-untyped-def]
    """Compute the key of a call and its first rows; return False if the call cannot be cached.

    arrays: the array that stands for the send buffer, and that for the receive buffer; 0 for a buffer itself.
    """
    context[field.KEY + METHOD] = context[field.KEY + LENGTH] = 0
    op = load(arguments + 24)
    if op != context[field.NONE] and handle_of(context, op) == context[field.OP_NULL]:
        return False  # a freed operator
    context[field.HAS_OWN_OP] = op != context[field.NONE] and not is_predefined(context, op)
    send, recv = array_in(context, load(arguments + 8), 0), array_in(context, load(arguments + 16), 1)
    if send == 0 or recv == 0:
        return False
    send, recv = arrays[0] if arrays[0] != 0 else send, arrays[1] if arrays[1] != 0 else recv
    sends, receives = count_elements(context, send), count_elements(context, recv)
    if sends < NO_ARRAY or receives < NO_ARRAY:
        return False
    if receives >= 0 and load_short(recv + FLAGS) & WRITEABLE == 0:
        return False
    root = load(arguments + 32)
    if load(root + TYPE) != context[field.INTEGER]:  # recvcounts of Reduce_scatter
        if root == context[field.NONE] or not put_part(context, root):
            return False
        root = 0
    context[field.SEND_ARRAY], context[field.RECV_ARRAY] = send, recv
    context[field.KEY + METHOD] = load(arguments)
    context[field.KEY + OPERATOR], context[field.KEY + ROOT] = op, root
    context[field.KEY + SEND] = load(send + DTYPE) if sends >= 0 else send
    context[field.KEY + RECV] = load(recv + DTYPE) if receives >= 0 else recv
    context[field.KEY + SEND_COUNT], context[field.KEY + RECV_COUNT] = sends, receives
    both = sends >= 0 and receives >= 0
    context[field.KEY + SAME_ADDRESS] = both and load(send + DATA) == load(recv + DATA)
    mixed, length = 0, context[field.KEY + LENGTH]
    for i in (METHOD, OPERATOR, ROOT, SEND, RECV):
        mixed = mixed * 31 + (context[field.KEY + i] >> 4)
    context[field.ANY_ROW] = ROWS + first_row(mixed)
    mixed = (mixed * 31 + sends) * 31 + receives
    details = line(context[field.DETAILS], length)
    for i in range(length):
        mixed = mixed * 31 + details[i]
    context[field.ROW] = first_row(mixed)
    return True


@njit
def first_row(mixed):  # type: ignore[no-untyped-def]
    """Return the first row for a key, from a hash of it."""
    return (mixed ^ (mixed >> 8) ^ (mixed >> 16)) & (ROWS - 1)


@cache
def check_layouts() -> str | None:
    """Return None if the objects of Python, NumPy and mpi4py have the layout that this module assumes; else a reason.

    The check uses peek(), which fails safely at addresses that cannot be read.
    """
    for thing in (np.zeros(2), [1, 2], (1, 2), 1, "f", MPI.FLOAT):
        if _word(id(thing) + TYPE) != id(type(thing)):
            return "Python's objects are not laid out as its header files have it"
    if not _has_attributes():
        return "mpi4py's datatypes are not laid out as expected"
    if [_word(id(x) + SCALAR, x.itemsize) for x in (np.int64(1 << 40), np.int32(1 << 20))] != [1 << 40, 1 << 20]:
        return "NumPy's scalars are not laid out as its header files have it"
    for array in (np.zeros((3, 5), np.float32), np.zeros((4, 6, 2))[1:, ::2].T):
        words = [_word(id(array) + at) for at in (DATA, DTYPE)] + [_word(id(array) + at, 4) for at in (NDIM, FLAGS)]
        right = [array.ctypes.data, id(array.dtype), array.ndim, array.flags.num]
        first = _word(id(array) + DIMENSIONS)
        if words != right or first is None or [_word(first + 8 * i) for i in range(array.ndim)] != [*array.shape]:
            return "NumPy's arrays are not laid out as its header files have it"
    return None


def _has_attributes() -> bool:
    """Return whether mpi4py stores handles, and the objects of attributes, at the expected addresses."""
    from ..buffers import datatypes  # not at the top: the compiler process imports this module without MPI

    datatype, value = MPI.BYTE.Dup(), np.zeros(2, np.int64)
    thing = object()
    datatype.Set_attr(datatypes.KEYVAL, thing)
    try:
        get_attr = ctypes.CDLL(MPI.__file__).MPI_Type_get_attr
        handle, at = ctypes.c_int64(MPI._handleof(datatype)), MPI.Get_address(value)
        code = get_attr(handle, ctypes.c_int(datatypes.KEYVAL), ctypes.c_void_p(at), ctypes.c_void_p(at + 8))
        offset, nbytes = MPI._addressof(datatype) - id(datatype), MPI._sizeof(datatype)
        held = _word(id(datatype) + offset, nbytes)
        of_type = {MPI._addressof(thing) - id(thing) for thing in (MPI.BYTE, MPI.SUM)}
        handles = of_type == {offset} and held == MPI._handleof(datatype) % (1 << 8 * nbytes)
        return code == 0 and bool(value[1]) and value[0] == id(thing) and handles
    finally:
        datatype.Free()


def _word(at: int, nbytes: int = 8) -> int | None:
    """Return the integer at an address; None if it cannot be read."""
    data = peek(at, nbytes)
    return None if data is None else int.from_bytes(data, sys.byteorder)
