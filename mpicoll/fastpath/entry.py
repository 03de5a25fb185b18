"""A function in C's calling convention that Python calls as one of its own: looks a call up, binds it, walks its plan.

Between a collective of a kind that was served before and its first message there is then no Python but the method
itself. The function takes METH_FASTCALL arguments, which are part of Python's stable interface. It is compiled by
numba, like kernels.

It is called with (method, send buffer, receive buffer, operator, root), or recvcounts for a root, and knows objects by
their addresses; signature.py has how it tells one kind of call from another. `context` is the int64 array that the
function is bound to, one per communicator; a row of its table holds one kind of call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..engines import compiled
from ..engines.compiled import (
    BYTE,
    DONE,
    FLAG,
    ISEND,
    STATUSES,
    TAG,
    TESTALL,
    UNIT,
    WAITING,
    call_int,
    call_long,
    line_of,
)
from ..kernels import memory
from ..kernels.background import Request, instead_of
from ..kernels.cache import native
from ..kernels.deferred import njit
from ..kernels.memory import line, load, load_short, table
from ..plans import plan
from ..runtime import counters
from ..runtime.counters import BROKEN, CALLS, NUMBERS, TRACES
from . import context as field
from . import outcome, signature
from .signature import (
    DATA,
    KEYS,
    LENGTH,
    METHOD,
    RECV_COUNT,
    ROWS,
    SEND_COUNT,
    find,
)

NANOSECONDS = 10_000_000  # in the walker before signals, stalls and other operations are looked after
WAYS = 4  # rows that a kind may be in, one behind the other
# columns of a row, which begins with its key
SEND_BYTES, RECV_BYTES, SEND_OFFSET, RECV_OFFSET, SPIN_NS, NEEDED, TABLES, KNOWN_DETAILS = range(KEYS, KEYS + 8)
COLUMNS = KEYS + 8
_METH_FASTCALL = 0x80
NOT_SERVED, UNDER_WAY, COMPLETED, ABANDONED = map(int, outcome.Outcome)  # plain numbers, for numba
tag = njit(plan.tag)


@njit
def look_up(context):  # type: ignore[no-untyped-def]
    """Return the row of what was found, which ROW names then; or where ROW says that it may be put."""
    first, free = context[field.ROW], -1
    for way in range(WAYS):
        at = (first + way) & (ROWS - 1)
        row = line(context[field.TABLE] + 8 * COLUMNS * at, COLUMNS)
        same = True
        for i in range(KEYS):
            same &= row[i] == context[field.KEY + i]
        if same and context[field.KEY + LENGTH] > 0:
            asked, known = line(context[field.DETAILS], row[LENGTH]), line(row[KNOWN_DETAILS], row[LENGTH])
            for i in range(row[LENGTH]):
                same &= asked[i] == known[i]
        if same:
            context[field.ROW] = at
            return True
        if free < 0 and row[METHOD] == 0:
            free = at
    if free < 0:  # one that was there must go: not always the same
        free = (first + context[field.TURN] % WAYS) & (ROWS - 1)
    context[field.ROW] = free
    return False


@njit
def run(context, at, nanoseconds):  # type: ignore[no-untyped-def]
    """Walk the bound tables at an address from the start: DONE, WAITING or minus an error code of MPI's."""
    tables = table(at, compiled.START + 1, 2)
    units = tables[compiled.STATE, 1]
    state, begin = table(tables[compiled.STATE, 0], units, UNIT), table(tables[compiled.START, 0], units, UNIT)
    progress = line_of(tables, compiled.PROGRESS)
    state[:] = begin
    progress[:] = 0
    thread = call_long(context[field.SAVE], ())
    code = call_long(context[field.ADVANCE], (at, nanoseconds))
    call_long(context[field.RESTORE], (thread,))
    return code


@njit
def end(context, tables, code, request):  # type: ignore[no-untyped-def]
    """Store the outcome. Return True, with the request complete, if the call completed and nothing traces it."""
    context[field.OUTCOME] = COMPLETED if code == DONE else UNDER_WAY if code == WAITING else code
    if code != DONE or load(context[field.NUMBERS] + 8 * TRACES) != 0:
        return False
    context[field.OUTCOME] = NOT_SERVED
    context[field.OVER], context[field.SCRATCH_SHARED] = 1, 0
    if request != 0:  # a send to PROC_NULL completes at once and leaves a request that is not null, as Waitany needs
        library = line_of(tables, compiled.LIBRARY)
        nothing = context[field.PROC_NULL], 0, context[field.COMM_SELF], request + context[field.HANDLE]
        call_int(library[ISEND], (0, 0, library[BYTE], *nothing))
    return True


@njit
def release_buffers(context):  # type: ignore[no-untyped-def]
    """Release the references to both buffers, last of all: that may run Python finalizers."""
    send, recv = context[field.HELD_SEND], context[field.HELD_RECV]
    context[field.HELD_SEND] = context[field.HELD_RECV] = 0
    if send != 0:
        call_long(context[field.DECREF], (send,))
    if recv != 0:
        call_long(context[field.DECREF], (recv,))


def fast_call(this, arguments, n):  # type: ignore[no-untyped-def]  # noqa: C901 - one compiled function
    """Carry out a collective and return Python's 0; return 1 if the slow path must, with the progress in OUTCOME.

    With a null request as the sixth argument it spins for a limited time, and returns 0 if the request is complete.
    With seven arguments it only computes the call's key and row.
    """
    context = line(load(this + DATA), field.CONTEXT)
    context[field.KEY + METHOD] = 0
    if n > 6:
        if context[field.OPEN] != 0 and find(context, arguments):
            look_up(context)
        return call_long(context[field.NUMBER], (1,))
    if context[field.OUTCOME] == COMPLETED:  # the previous caller was interrupted before it recorded its call
        context[field.OUTCOME], context[field.SCRATCH_SHARED] = NOT_SERVED, 0
        release_buffers(context)
    if context[field.OUTCOME] != NOT_SERVED:  # or before it could progress it
        context[field.OUTCOME] = ABANDONED
        return call_long(context[field.NUMBER], (1,))
    if context[field.OPEN] == 0 or n < 5 or load(context[field.BUSY]) != 0 or not find(context, arguments):
        return call_long(context[field.NUMBER], (1,))
    if not look_up(context):
        return call_long(context[field.NUMBER], (1,))
    row = line(context[field.TABLE] + 8 * COLUMNS * context[field.ROW], COLUMNS)
    numbers = line(context[field.NUMBERS], NUMBERS)
    if row[NEEDED] > context[field.SCRATCH_BYTES] or numbers[BROKEN + (numbers[CALLS] + 1) % plan.SEQUENCES] != 0:
        return call_long(context[field.NUMBER], (1,))
    send, recv = context[field.SEND_ARRAY], context[field.RECV_ARRAY]
    if row[SEND_BYTES] > 0 and row[RECV_BYTES] > 0:
        from_, to = load(send + DATA), load(recv + DATA)
        if from_ < to + row[RECV_BYTES] and to < from_ + row[SEND_BYTES]:
            return call_long(context[field.NUMBER], (1,))
    tables = table(row[TABLES], compiled.START + 1, 2)
    bases, call = line_of(tables, compiled.BASES), line_of(tables, compiled.CALL)
    if row[SEND_COUNT] >= 0:
        bases[0] = load(send + DATA) + row[SEND_OFFSET]
    if row[RECV_COUNT] >= 0:
        bases[1] = load(recv + DATA) + row[RECV_OFFSET]
    bases[2], context[field.SCRATCH_SHARED] = context[field.SCRATCH], 1 if row[NEEDED] > 0 else 0
    numbers[CALLS] += 1
    call[TAG] = tag(numbers[CALLS], 0, 0)
    call_long(context[field.INCREF], (send,))  # another thread may remove them from the caller's list meanwhile
    call_long(context[field.INCREF], (recv,))
    code = run(context, row[TABLES], NANOSECONDS if n == 5 else row[SPIN_NS])
    served = end(context, tables, code, 0 if n == 5 else load(arguments + 40))
    context[field.HELD_SEND], context[field.HELD_RECV] = send, recv
    if served:  # else Python releases them when MPI no longer uses this memory
        release_buffers(context)
    return call_long(context[field.NUMBER], (0 if served else 1,))


def fast_start(this, arguments, n):  # type: ignore[no-untyped-def]
    """Start a persistent collective, as `fast_call` does a call. The argument is its inactive request."""
    context = line(load(this + DATA), field.CONTEXT)
    context[field.OVER] = 0
    if context[field.OUTCOME] != NOT_SERVED:
        context[field.OUTCOME] = ABANDONED
        return call_long(context[field.NUMBER], (1,))
    handle = load(arguments) + context[field.HANDLE]
    active = (load(handle) if context[field.WIDE] else load_short(handle)) != context[field.NULL]
    if context[field.OPEN] == 0 or load(context[field.BUSY]) != 0 or active:
        return call_long(context[field.NUMBER], (1,))
    tables, started = table(context[field.TABLE], compiled.START + 1, 2), line(context[field.STARTED], 1)
    started[0] += 1
    code = run(context, context[field.TABLE], context[field.SPIN_NS])
    return call_long(context[field.NUMBER], (0 if end(context, tables, code, load(arguments)) else 1,))


def finish(this, arguments, n):  # type: ignore[no-untyped-def]
    """Return Python's 0 if the request that `fast_start` completed is inactive again, else 1."""
    context = line(load(this + DATA), field.CONTEXT)
    if context[field.OVER] == 0:
        return call_long(context[field.NUMBER], (1,))
    context[field.OVER] = 0
    tables = table(context[field.TABLE], compiled.START + 1, 2)
    library, call = line_of(tables, compiled.LIBRARY), line_of(tables, compiled.CALL)
    handle = load(arguments) + context[field.HANDLE]
    code = call_int(library[TESTALL], (1, handle, call[FLAG], call[STATUSES]))
    return call_long(context[field.NUMBER], (0 + code,))  # a word


class _Definition(ctypes.Structure):
    """Python's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


_defined: dict[Callable[..., Any], _Definition] = {}
_defining = threading.Lock()  # threads may come first together, and Python goes on using the one it was given


def _definition(function: Callable[..., Any]) -> _Definition:
    with _defining:
        if function not in _defined:
            modules = field, outcome, signature, compiled, counters, plan, memory
            sources = [str(module.__file__) for module in modules]
            with instead_of(Request(__name__, "prepare")):
                address = native(function, ["int64"] * 3, "int64", also=sources)
            docstring = b"0 where it carried out the collective"
            _defined[function] = _Definition(function.__name__.encode(), address, _METH_FASTCALL, docstring)
    return _defined[function]


def prepare() -> None:
    """Compile the functions, or load them."""
    for function in (fast_call, fast_start, finish):
        _definition(function)


def bound_to(context: np.ndarray, function: Callable[..., Any] = fast_call) -> Callable[..., int]:
    """Return the function, for calls under this context, which it keeps alive."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    bound_function: Callable[..., int] = make(ctypes.addressof(_definition(function)), context, None)
    return bound_function
