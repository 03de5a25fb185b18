"""Compute the key of a call from its arguments where they lie in memory, as words that are compared with a row's.

A buffer is None, MPI.IN_PLACE, an aligned contiguous numpy.ndarray, or a list or tuple of mpi4py's forms that begins
with one: `[array, count, displacement, datatype]`, `[array, counts, displacements, datatype]` or a shorter one. An
array is known by its dtype object and number of elements, and two by whether they begin at one address too: a
reduction is in place then. What else a list holds are the details: integers and arrays of integers by their values, so
that a list whose counts have changed is another kind; typecodes and MPI's own datatypes by their addresses, and
datatypes that a program has made by the addresses of their facts (see buffers/datatypes.py). Nothing here runs
Python's code: what would have to (other sequences, other numbers) is no kind.

A row may also be of a kind with any counts: then neither the number of elements nor the integers among the details
are compared.
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
from .recipe import alike_of, handle_at

ROWS = 256  # of kinds with counts of their own, and as many behind them of kinds with any counts
# places in a key
METHOD, OPERATOR, ROOT, SEND, SEND_COUNT, RECV, RECV_COUNT, SAME, LENGTH = range(9)
KEYS = 9
IDENTITY = -1  # the count of a buffer that is None or MPI.IN_PLACE
MAX_CAPACITY = 8192  # words of details
# bytes from the beginning of an object to its fields
TYPE, DATA, NDIM, DIMENSIONS, DTYPE, FLAGS = 8, 16, 24, 32, 56, 64
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1 | 0x2, 0x100, 0x400


@njit
def count_of(context, thing):  # type: ignore[no-untyped-def]
    """Elements of an array that can be used as it is, IDENTITY for None and MPI.IN_PLACE, else below that."""
    if thing == context[field.NONE] or thing == context[field.IN_PLACE]:
        return IDENTITY
    if load(thing + TYPE) != context[field.NDARRAY]:
        return IDENTITY - 1
    flags = load_short(thing + FLAGS)
    if flags & CONTIGUOUS == 0 or flags & ALIGNED == 0:
        return IDENTITY - 1
    n, dimensions = 1, load(thing + DIMENSIONS)
    for i in range(load_short(thing + NDIM)):
        n *= load(dimensions + 8 * i)
    return n


@njit
def put(context, kind, value):  # type: ignore[no-untyped-def]
    """Two words more of the details; False where there is no room."""
    at = context[field.KEY + LENGTH]
    if at + 2 > context[field.CAPACITY]:
        return False
    details = line(context[field.DETAILS], at + 2)
    details[at], details[at + 1] = kind, value
    context[field.KEY + LENGTH] = at + 2
    return True


@njit
def numbers(context, array):  # type: ignore[no-untyped-def]
    """Return an array of integers as details; False for any other."""
    kind = load(array + DTYPE)
    if kind != context[field.LONGS] and kind != context[field.INTS]:
        return False
    flags, n = load_short(array + FLAGS), load(load(array + DIMENSIONS)) if load_short(array + NDIM) == 1 else -1
    if n < 0 or flags & CONTIGUOUS == 0 or flags & ALIGNED == 0 or not put(context, kind, n):
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
    """Return whether an object is one of MPI's own datatypes or operators."""
    at = thing >> 4
    while True:
        known = load(context[field.PREDEFINED] + 8 * (at % field.PLACES))
        if known == thing or known == 0:
            return known != 0
        at += 1


@njit
def handle_of(context, thing):  # type: ignore[no-untyped-def]
    """Return the handle in a datatype or an operator of mpi4py's."""
    return handle_at(context, thing + context[field.TYPE_HANDLE])


@njit
def facts_of(context, thing):  # type: ignore[no-untyped-def]
    """Return what tells a datatype: one of MPI's own itself, of others the address of facts; 0 if there are none.

    Facts are those on the first datatype that was made alike. They are an attribute, so a handle that MPI gives to
    another datatype has none, and then that is looked for by how it was made. The function of a user's operator gets
    the datatype itself, so with one the facts are those on no other.
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
    return 0 if context[field.HAS_OWN_OP] else alike_of(context, handle)


@njit
def leaf(context, thing):  # type: ignore[no-untyped-def]
    """Return what holds nothing else as details; False where it cannot be told."""
    kind = load(thing + TYPE)
    if kind == context[field.INTEGER]:
        value = call_long(context[field.VALUE], (thing,))
        if value == -1:  # no count, or larger than a word, which raises
            call_long(context[field.ERR_CLEAR], ())
            return False
        return put(context, kind, value)
    if kind == context[field.DATATYPE]:
        known = facts_of(context, thing)
        return known != 0 and put(context, kind, known)
    if kind == context[field.STRING] or thing == context[field.NONE]:
        return put(context, kind, thing)
    return kind == context[field.NDARRAY] and numbers(context, thing)


@njit
def length(context, thing):  # type: ignore[no-untyped-def]
    """Return how many items a list or tuple has, -1 for another object."""
    kind = load(thing + TYPE)
    if kind == context[field.LIST]:
        return call_long(context[field.LIST_SIZE], (thing,))
    if kind == context[field.TUPLE]:
        return call_long(context[field.TUPLE_SIZE], (thing,))
    return -1


@njit
def item(context, thing, i):  # type: ignore[no-untyped-def]
    """Return the address of an item of a list or tuple, which keeps it."""
    is_list = load(thing + TYPE) == context[field.LIST]
    return call_long(context[field.LIST_ITEM] if is_list else context[field.TUPLE_ITEM], (thing, i))


def _list_of(put_item: Any) -> Any:
    """Return a kernel that puts down a list of what `put_item` puts down, or one of them."""

    @njit
    def parts(context, thing):  # type: ignore[no-untyped-def]
        n = length(context, thing)
        if n < 0:
            return put_item(context, thing)
        right = put(context, load(thing + TYPE), n)
        for i in range(n):
            right = right and put_item(context, item(context, thing, i))
        return right

    return parts


part = _list_of(_list_of(leaf))  # what is in a message beside its buffer: counts, (counts, displacements), datatypes


@njit
def array_of(context, message, side):  # type: ignore[no-untyped-def]
    """Return the buffer of a message, whose other parts are put down; 0 where it cannot be told."""
    kind = load(message + TYPE)
    if kind == context[field.NDARRAY]:
        return message
    n = length(context, message)
    if n < 0:
        return message
    if n < 2 or not put(context, kind + side, n):  # objects begin at even addresses
        return 0
    for i in range(1, n):
        if not part(context, item(context, message, i)):
            return 0
    return item(context, message, 0)


@njit
def find(context, arguments):  # type: ignore[no-untyped-def]
    """Put down what kind of call it is, and in which row it would be: False where it is none that a row can be of."""
    context[field.KEY + METHOD] = context[field.KEY + LENGTH] = 0
    op = load(arguments + 24)
    if op != context[field.NONE] and handle_of(context, op) == context[field.OP_NULL]:
        return False  # it was freed
    context[field.HAS_OWN_OP] = op != context[field.NONE] and not is_predefined(context, op)
    send, recv = array_of(context, load(arguments + 8), 0), array_of(context, load(arguments + 16), 1)
    if send == 0 or recv == 0:
        return False
    sends, receives = count_of(context, send), count_of(context, recv)
    if sends < IDENTITY or receives < IDENTITY:
        return False
    if receives >= 0 and load_short(recv + FLAGS) & WRITEABLE == 0:
        return False
    root = load(arguments + 32)
    if load(root + TYPE) != context[field.INTEGER]:  # recvcounts of Reduce_scatter
        if root == context[field.NONE] or not part(context, root):
            return False
        root = 0
    context[field.SEND_ARRAY], context[field.RECV_ARRAY] = send, recv
    context[field.KEY + METHOD] = load(arguments)
    context[field.KEY + OPERATOR], context[field.KEY + ROOT] = op, root
    context[field.KEY + SEND] = load(send + DTYPE) if sends >= 0 else send
    context[field.KEY + RECV] = load(recv + DTYPE) if receives >= 0 else recv
    context[field.KEY + SEND_COUNT], context[field.KEY + RECV_COUNT] = sends, receives
    both = sends >= 0 and receives >= 0
    context[field.KEY + SAME] = both and load(send + DATA) == load(recv + DATA)
    mixed, length = 0, context[field.KEY + LENGTH]
    for i in (METHOD, OPERATOR, ROOT, SEND, RECV):
        mixed = mixed * 31 + (context[field.KEY + i] >> 4)
    context[field.ANY_ROW] = ROWS + row_of(mixed)
    mixed = (mixed * 31 + sends) * 31 + receives
    details = line(context[field.DETAILS], length)
    for i in range(length):
        mixed = mixed * 31 + details[i]
    context[field.ROW] = row_of(mixed)
    return True


@njit
def row_of(mixed):  # type: ignore[no-untyped-def]
    """Return the first of the rows that a kind of call may be in, from a hash of its key."""
    return (mixed ^ (mixed >> 8) ^ (mixed >> 16)) & (ROWS - 1)


@cache
def check() -> str | None:
    """Return None where Python and NumPy lay out their objects as is thought here, else what does not.

    Nothing is followed before it is known what it is: peek() reads, and finds out where there is nothing to read.
    """
    for thing in (np.zeros(2), [1, 2], (1, 2), 1, "f", MPI.FLOAT):
        if _word(id(thing) + TYPE) != id(type(thing)):
            return "Python's objects are not laid out as its header files have it"
    if not _has_attributes():
        return "mpi4py's datatypes are not laid out as is thought here"
    for array in (np.zeros((3, 5), np.float32), np.zeros((4, 6, 2))[1:, ::2].T):
        words = [_word(id(array) + at) for at in (DATA, DTYPE)] + [_word(id(array) + at, 4) for at in (NDIM, FLAGS)]
        right = [array.ctypes.data, id(array.dtype), array.ndim, array.flags.num]
        first = _word(id(array) + DIMENSIONS)
        if words != right or first is None or [_word(first + 8 * i) for i in range(array.ndim)] != [*array.shape]:
            return "NumPy's arrays are not laid out as its header files have it"
    return None


def _has_attributes() -> bool:
    """Return whether an attribute of a datatype is the address of the object that it was set to."""
    from ..buffers import datatypes  # here, since kernels are compiled before MPI starts

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
    """Return an integer at an address; None where there is nothing to read."""
    data = peek(at, nbytes)
    return None if data is None else int.from_bytes(data, sys.byteorder)
