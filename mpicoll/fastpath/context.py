"""The words that the function of the fast path is bound to: what it knows of Python, of MPI and of a communicator.

One array of int64 per communicator, and one per persistent request.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from mpi4py import MPI

from ..engines.compiled import advance, handle_of

OPEN, BUSY, NUMBERS, TABLE, OUTCOME, ROW, HELD_SEND, HELD_RECV, KEY = range(9)
NONE, IN_PLACE, NDARRAY, SAVE, RESTORE, INCREF, NUMBER = range(17, 24)
HANDLE, WIDE, NULL, PROC_NULL, COMM_SELF, STARTED, OVER, TURN = range(24, 32)
SCRATCH, SCRATCH_BYTES, SCRATCH_SHARED, SPIN_NS = range(32, 36)
LIST, TUPLE, INTEGER, STRING, DATATYPE, LONGS, INTS, VALUE, ERR_CLEAR, DECREF = range(36, 46)
DETAILS, CAPACITY, SEND_ARRAY, RECV_ARRAY = range(46, 50)
LIST_SIZE, LIST_ITEM, TUPLE_SIZE, TUPLE_ITEM, ADVANCE = range(50, 55)
CONTEXT = 55
_OBJECTS = {
    NONE: None, IN_PLACE: MPI.IN_PLACE, NDARRAY: np.ndarray, LIST: list, TUPLE: tuple, INTEGER: int, STRING: str,
    DATATYPE: MPI.Datatype, LONGS: np.dtype(np.int64), INTS: np.dtype(np.int32),
}  # fmt: skip
_FUNCTIONS = {
    SAVE: "PyEval_SaveThread", RESTORE: "PyEval_RestoreThread", INCREF: "Py_IncRef", DECREF: "Py_DecRef",
    NUMBER: "PyLong_FromLong", VALUE: "PyLong_AsLongLong", ERR_CLEAR: "PyErr_Clear",
    LIST_SIZE: "PyList_Size", LIST_ITEM: "PyList_GetItem", TUPLE_SIZE: "PyTuple_Size", TUPLE_ITEM: "PyTuple_GetItem",
}  # fmt: skip


def new(busy: np.ndarray, numbers: np.ndarray, details: np.ndarray) -> np.ndarray:
    """Return a context that serves nothing yet.

    busy is a word that is not 0 while something is in flight in this process; numbers has the number of the last call
    on this communicator and how many trace its calls; details are words for what lists say, as many as there are.
    """
    context: np.ndarray = _common().copy()
    context[[BUSY, NUMBERS, DETAILS]] = [MPI.Get_address(array) for array in (busy, numbers, details)]
    context[[CAPACITY, ADVANCE]] = len(details), advance.address
    return context


@cache
def _common() -> np.ndarray:
    """Return the words that are the same in every context of this process; the others are 0."""
    context = np.zeros(CONTEXT, np.int64)
    for field, thing in _OBJECTS.items():
        context[field] = id(thing)
    for field, function in _FUNCTIONS.items():
        context[field] = ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value or 0
    context[[PROC_NULL, COMM_SELF]] = MPI.PROC_NULL, handle_of(MPI.COMM_SELF)
    request = MPI.Request()
    wide = MPI._sizeof(request) == 8
    null = (ctypes.c_int64 if wide else ctypes.c_int32).from_address(MPI._addressof(request)).value
    context[[HANDLE, WIDE, NULL]] = MPI._addressof(request) - id(request), wide, null
    return context
