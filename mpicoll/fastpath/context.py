"""The words that the function of the fast path is bound to: what it knows of Python, of MPI and of a communicator.

One array of int64 per communicator, and one per persistent request.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from mpi4py import MPI

from ..diagnostics.flight import RECORD
from ..engines.compiled import advance, handle_of
from ..progress import driver
from ..progress.thread import THREAD
from . import frames, recipe_table

OPEN, BUSY, NUMBERS, TABLE, OUTCOME, ROW, HELD_SEND, HELD_RECV, KEY = range(9)
NONE, IN_PLACE, NDARRAY, SAVE, RESTORE, INCREF, NUMBER = range(17, 24)
HANDLE, WIDE, NULL, PROC_NULL, COMM_SELF, STARTED, OVER, TURN = range(24, 32)
SCRATCH, SCRATCH_BYTES, SCRATCH_SHARED, SPIN_NS = range(32, 36)
LIST, TUPLE, INTEGER, STRING, DATATYPE, LONGS, INTS, VALUE, ERR_CLEAR, DECREF = range(36, 46)
DETAILS, CAPACITY, SEND_ARRAY, RECV_ARRAY = range(46, 50)
LIST_SIZE, LIST_ITEM, TUPLE_SIZE, TUPLE_ITEM, ADVANCE, WAIT, CONTROL, ANY_ROW = range(50, 58)
TYPE_HANDLE, TYPE_NULL, GET_ATTR, KEYVAL, ATTRIBUTE, PREDEFINED, OP_NULL = range(58, 65)
ENVELOPE, CONTENTS, TYPE_FREE, MPI_PACK, IS_LARGE, RECIPES, RECIPE, CONTENTS_AT = range(65, 73)
NAMED, F90_REAL, F90_COMPLEX, F90_INTEGER, OWN_KEYVAL, HAS_OWN_OP = range(73, 79)
HISTORY, CLOCK_GETTIME, LAST_ROW = range(79, 82)
ROW_WORDS = 82  # of a persistent call: four, those of history.RowWords
THREAD_STATE, STATE_FRAME, THROUGH, PREVIOUS_FRAME, FRAME_INSTRUCTION, KNOWN_SITES, UNKNOWN = range(86, 93)
CONTEXT = 93
PLACES = 1024  # of the table of predefined datatypes and operators
DATATYPES = {id(datatype): datatype for datatype in vars(MPI).values() if isinstance(datatype, MPI.Datatype)}
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

    busy is a word that is not 0 while something is in flight in this process that only Python advances; numbers are the
    words of counters.py for this communicator; details are words for what lists say, as many as there are.
    """
    context: np.ndarray = _common().copy()
    context[HISTORY] = RECORD.history.address
    context[[BUSY, NUMBERS, DETAILS]] = [MPI.Get_address(array) for array in (busy, numbers, details)]
    context[CAPACITY] = len(details)
    return context


SITES, SITE_COLUMNS = 4096, 2
SITE_TABLE = np.zeros((SITES, SITE_COLUMNS), np.int64)  # what sites.py knows of instructions
_attribute = np.zeros(2, np.int64)  # where MPI puts an attribute, and whether there is one


@cache
def _predefined() -> np.ndarray:
    """Return a hash table of the addresses of MPI's own datatypes and operators; see signature.is_predefined."""
    table = np.zeros(PLACES, np.int64)
    for thing in (*DATATYPES, *(id(op) for op in vars(MPI).values() if isinstance(op, MPI.Op))):
        at = thing >> 4
        while table[at % PLACES] not in (0, thing):
            at += 1
        table[at % PLACES] = thing
    return table


@cache
def _common() -> np.ndarray:
    """Return the words that are the same in every context of this process; the others are 0."""
    context = np.zeros(CONTEXT, np.int64)
    for field, thing in _OBJECTS.items():
        context[field] = id(thing)
    for field, function in _FUNCTIONS.items():
        context[field] = ctypes.cast(getattr(ctypes.pythonapi, function), ctypes.c_void_p).value or 0
    driver.prepare()
    context[[ADVANCE, WAIT, CONTROL]] = advance.address, driver.wait.address, THREAD.table.at
    context[[PROC_NULL, COMM_SELF]] = MPI.PROC_NULL, handle_of(MPI.COMM_SELF)
    context[CLOCK_GETTIME] = ctypes.cast(ctypes.CDLL(None).clock_gettime, ctypes.c_void_p).value or 0
    if (where := frames.layout()) is not None:
        context[THREAD_STATE] = ctypes.cast(ctypes.pythonapi.PyThreadState_Get, ctypes.c_void_p).value or 0
        context[STATE_FRAME : FRAME_INSTRUCTION + 1] = where
    context[KNOWN_SITES] = MPI.Get_address(SITE_TABLE)
    request = MPI.Request()
    wide = MPI._sizeof(request) == 8
    null = (ctypes.c_int64 if wide else ctypes.c_int32).from_address(MPI._addressof(request)).value
    context[[HANDLE, WIDE, NULL]] = MPI._addressof(request) - id(request), wide, null
    context[OP_NULL] = handle_of(MPI.OP_NULL)
    context[[TYPE_HANDLE, TYPE_NULL]] = MPI._addressof(MPI.BYTE) - id(MPI.BYTE), handle_of(MPI.DATATYPE_NULL)
    context[[ATTRIBUTE, PREDEFINED]] = MPI.Get_address(_attribute), MPI.Get_address(_predefined())
    from ..buffers import datatypes  # here, since kernels are compiled before MPI starts

    context[[KEYVAL, OWN_KEYVAL]] = datatypes.ALIKE, datatypes.KEYVAL
    mpi = ctypes.CDLL(MPI.__file__)
    large = "_c" if hasattr(mpi, "MPI_Type_get_contents_c") else ""  # which MPI needs for what mpi4py makes by such
    for at, name in (
        (GET_ATTR, "Type_get_attr"),
        (ENVELOPE, f"Type_get_envelope{large}"),
        (CONTENTS, f"Type_get_contents{large}"),
        (TYPE_FREE, "Type_free"),
        (MPI_PACK, "Pack"),
    ):
        context[at] = ctypes.cast(getattr(mpi, f"MPI_{name}"), ctypes.c_void_p).value or 0
    named = MPI.COMBINER_NAMED, MPI.COMBINER_F90_REAL, MPI.COMBINER_F90_COMPLEX, MPI.COMBINER_F90_INTEGER
    context[[NAMED, F90_REAL, F90_COMPLEX, F90_INTEGER]] = named
    context[IS_LARGE] = bool(large)
    arrays = recipe_table.known, recipe_table.recipe, recipe_table.written
    context[[RECIPES, RECIPE, CONTENTS_AT]] = list(map(MPI.Get_address, arrays))
    return context
