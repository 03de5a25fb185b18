"""Define the context of fast_call: an int64 array with words about Python, MPI and a communicator.

Every communicator has one, and so has every persistent request. This module names the indices.
"""

from __future__ import annotations

import ctypes
from functools import cache

import numpy as np
from mpi4py import MPI

from ..buffers import plain
from ..diagnostics import ring
from ..diagnostics.flight import RECORD
from ..engines.compiled import advance, handle_of
from ..progress import driver
from ..progress.thread import THREAD
from . import frames, recipe_table

OPEN, NEEDS_PYTHON, NUMBERS, TABLE, OUTCOME, ROW, HELD_SEND, HELD_RECV, KEY = range(9)
NONE, IN_PLACE, NDARRAY, SAVE, RESTORE, INCREF, NUMBER = range(17, 24)
HANDLE, HANDLE_IS_64_BIT, NULL, PROC_NULL, COMM_SELF, STARTED, FINISHED, INSERTIONS = range(24, 32)
SCRATCH, SCRATCH_BYTES, SCRATCH_SHARED, SPIN_NS = range(32, 36)
LIST, TUPLE, INTEGER, STRING, DATATYPE, LONGS, INTS, VALUE, ERR_CLEAR, DECREF = range(36, 46)
DETAILS, CAPACITY, SEND_ARRAY, RECV_ARRAY = range(46, 50)
LIST_SIZE, LIST_ITEM, TUPLE_SIZE, TUPLE_ITEM, ADVANCE, WAIT, CONTROL, ANY_ROW = range(50, 58)
TYPE_HANDLE, TYPE_NULL, GET_ATTR, KEYVAL, ATTRIBUTE, PREDEFINED, OP_NULL = range(58, 65)
ENVELOPE, CONTENTS, TYPE_FREE, MPI_PACK, IS_LARGE, RECIPES, RECIPE, CONTENTS_AT = range(65, 73)
NAMED, F90_REAL, F90_COMPLEX, F90_INTEGER, OWN_KEYVAL, HAS_OWN_OP = range(73, 79)
HISTORY, CLOCK_GETTIME, LAST_ROW = range(79, 82)
ROW_WORDS = 82  # the first of four words of a persistent call: history.RowWords
THREAD_STATE, STATE_FRAME, STATE_INDIRECT, PREVIOUS_FRAME, FRAME_INSTRUCTION, KNOWN_SITES, UNKNOWN_SITE = range(86, 93)
RING, KIND = 93, 94  # the header of the ring of timelines; the kind of a persistent call in it
LONG, INT = 95, 96  # the types of NumPy's scalars
PACKS = 97  # the address of the words of pack.py for a persistent call, 0 if no buffer has holes
BYTES, BYTEARRAY, FROMBUFFER, AS_ARRAY, VECTORCALL = range(98, 103)  # what makes arrays of other buffers
OBJECT, BYTE_DTYPE = 103, 104  # the arguments of FROMBUFFER
CONTEXT = 105
HASH_SLOTS = 1024  # of the hash table of predefined datatypes and operators
DATATYPES = {id(datatype): datatype for datatype in vars(MPI).values() if isinstance(datatype, MPI.Datatype)}
_OBJECTS = {
    NONE: None, IN_PLACE: MPI.IN_PLACE, NDARRAY: np.ndarray, LIST: list, TUPLE: tuple, INTEGER: int, STRING: str,
    DATATYPE: MPI.Datatype, LONGS: np.dtype(np.int64), INTS: np.dtype(np.int32), LONG: np.int64, INT: np.int32,
    BYTES: bytes, BYTEARRAY: bytearray, FROMBUFFER: np.frombuffer, AS_ARRAY: plain.as_array, BYTE_DTYPE: plain.BYTE,
}  # fmt: skip
_FUNCTIONS = {
    SAVE: "PyEval_SaveThread", RESTORE: "PyEval_RestoreThread", INCREF: "Py_IncRef", DECREF: "Py_DecRef",
    NUMBER: "PyLong_FromLong", VALUE: "PyLong_AsLongLong", ERR_CLEAR: "PyErr_Clear",
    LIST_SIZE: "PyList_Size", LIST_ITEM: "PyList_GetItem", TUPLE_SIZE: "PyTuple_Size", TUPLE_ITEM: "PyTuple_GetItem",
    VECTORCALL: "PyObject_VectorcallDict",
}  # fmt: skip


def new_context(busy: np.ndarray, numbers: np.ndarray, details: np.ndarray) -> np.ndarray:
    """Return a context that serves no call yet.

    - busy: a word that is not 0 while Python must advance an operation of this process.
    - numbers: the words of diagnostics/counters.py for this communicator.
    - details: an array for the details of a call's key (see signature.py).
    """
    context: np.ndarray = _common().copy()
    context[HISTORY] = RECORD.history.address
    context[[NEEDS_PYTHON, NUMBERS, DETAILS]] = [MPI.Get_address(array) for array in (busy, numbers, details)]
    context[CAPACITY] = len(details)
    return context


SITES, SITE_COLUMNS = 4096, 2
SITE_TABLE = np.zeros((SITES, SITE_COLUMNS), np.int64)  # the table of sites.py
_attribute = np.zeros(2, np.int64)  # MPI writes an attribute here, and whether it is set


@cache
def _predefined() -> np.ndarray:
    """Return a hash table with the addresses of predefined datatypes and operators; see signature.is_predefined."""
    table = np.zeros(HASH_SLOTS, np.int64)
    for thing in (*DATATYPES, *(id(op) for op in vars(MPI).values() if isinstance(op, MPI.Op))):
        at = thing >> 4
        while table[at % HASH_SLOTS] not in (0, thing):
            at += 1
        table[at % HASH_SLOTS] = thing
    return table


@cache
def _common() -> np.ndarray:
    """Return a context with the words that are equal in all contexts of this process; the others are 0."""
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
    context[KNOWN_SITES], context[RING] = MPI.Get_address(SITE_TABLE), ring.RING.address
    request = MPI.Request()
    wide = MPI._sizeof(request) == 8
    null = (ctypes.c_int64 if wide else ctypes.c_int32).from_address(MPI._addressof(request)).value
    context[[HANDLE, HANDLE_IS_64_BIT, NULL]] = MPI._addressof(request) - id(request), wide, null
    context[OP_NULL] = handle_of(MPI.OP_NULL)
    context[[TYPE_HANDLE, TYPE_NULL]] = MPI._addressof(MPI.BYTE) - id(MPI.BYTE), handle_of(MPI.DATATYPE_NULL)
    context[[ATTRIBUTE, PREDEFINED]] = MPI.Get_address(_attribute), MPI.Get_address(_predefined())
    from ..buffers import datatypes  # not at the top: the compiler process imports this module without MPI

    context[[KEYVAL, OWN_KEYVAL]] = datatypes.ALIKE, datatypes.KEYVAL
    mpi = ctypes.CDLL(MPI.__file__)
    large = "_c" if hasattr(mpi, "MPI_Type_get_contents_c") else ""  # as mpi4py does to make datatypes
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
