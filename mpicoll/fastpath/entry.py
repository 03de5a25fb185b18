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
SEND_BYTES, RECV_BYTES, SEND_OFFSET, RECV_OFFSET, MOMENT, NEEDED, TABLES, KNOWN_DETAILS = range(KEYS, KEYS + 8)
COLUMNS = KEYS + 8
_METH_FASTCALL = 0x80
MISSED, UNDER_WAY, RAN, STALE = map(int, outcome.Outcome)  # plain numbers, for numba
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
    """Put down how far it came. Whether that is all, and nobody wants a record; a request is complete then."""
    context[field.OUTCOME] = RAN if code == DONE else UNDER_WAY if code == WAITING else code
    if code != DONE or load(context[field.NUMBERS] + 8 * TRACES) != 0:
        return False
    context[field.OUTCOME] = MISSED
    context[field.OVER], context[field.LENT] = 1, 0
    if request != 0:  # a message to nobody is complete at once, and not null: MPI's Waitany finds it
        library = line_of(tables, compiled.LIBRARY)
        nothing = context[field.NOBODY], 0, context[field.ONESELF], request + context[field.HANDLE]
        call_int(library[ISEND], (0, 0, library[BYTE], *nothing))
    return True


@njit
def let_go(context):  # type: ignore[no-untyped-def]
    """Let go of the buffers that were held for Python, which may run a finaliser: nothing is half done by then."""
    send, recv = context[field.HELD_SEND], context[field.HELD_RECV]
    context[field.HELD_SEND] = context[field.HELD_RECV] = 0
    if send != 0:
        call_long(context[field.LET_GO], (send,))
    if recv != 0:
        call_long(context[field.LET_GO], (recv,))


def fast_call(this, arguments, n):  # type: ignore[no-untyped-def]  # noqa: C901 - one compiled function
    """Python's 0 where the collective was carried out; else 1, and OUTCOME says how far it came.

    With a null request as the sixth argument it waits for a moment at most, and the request is complete where it is 0.
    With seven arguments it carries out nothing, but puts down what kind of call it is and its row.
    """
    context = line(load(this + DATA), field.CONTEXT)
    context[field.KEY + METHOD] = 0
    if n > 6:
        if context[field.OPEN] != 0 and find(context, arguments):
            look_up(context)
        return call_long(context[field.NUMBER], (1,))
    if context[field.OUTCOME] == RAN:  # whoever called before was interrupted before he could leave a record of it
        context[field.OUTCOME], context[field.LENT] = MISSED, 0
        let_go(context)
    if context[field.OUTCOME] != MISSED:  # or before he could go on with it
        context[field.OUTCOME] = STALE
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
    bases[2], context[field.LENT] = context[field.SCRATCH], 1 if row[NEEDED] > 0 else 0
    numbers[CALLS] += 1
    call[TAG] = tag(numbers[CALLS], 0, 0)
    call_long(context[field.HOLD], (send,))  # a list of the caller's may lose them to another thread meanwhile
    call_long(context[field.HOLD], (recv,))
    code = run(context, row[TABLES], NANOSECONDS if n == 5 else row[MOMENT])
    served = end(context, tables, code, 0 if n == 5 else load(arguments + 40))
    context[field.HELD_SEND], context[field.HELD_RECV] = send, recv
    if served:  # else Python lets go of them; MPI may go on with this memory, whatever becomes of the caller
        let_go(context)
    return call_long(context[field.NUMBER], (0 if served else 1,))


def fast_start(this, arguments, n):  # type: ignore[no-untyped-def]
    """As `fast_call`, for a persistent collective, whose inactive request is the argument; its tables stay bound."""
    context = line(load(this + DATA), field.CONTEXT)
    context[field.OVER] = 0
    if context[field.OUTCOME] != MISSED:
        context[field.OUTCOME] = STALE
        return call_long(context[field.NUMBER], (1,))
    handle = load(arguments) + context[field.HANDLE]
    active = (load(handle) if context[field.WIDE] else load_short(handle)) != context[field.NULL]
    if context[field.OPEN] == 0 or load(context[field.BUSY]) != 0 or active:
        return call_long(context[field.NUMBER], (1,))
    tables, started = table(context[field.TABLE], compiled.START + 1, 2), line(context[field.STARTED], 1)
    started[0] += 1
    code = run(context, context[field.TABLE], context[field.MOMENT])
    return call_long(context[field.NUMBER], (0 if end(context, tables, code, load(arguments)) else 1,))


def finish(this, arguments, n):  # type: ignore[no-untyped-def]
    """Python's 0 where the request, which `fast_start` made complete, is inactive again; else 1."""
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
            said = b"0 where it carried out the collective"
            _defined[function] = _Definition(function.__name__.encode(), address, _METH_FASTCALL, said)
    return _defined[function]


def prepare() -> None:
    """Compile the functions, or load them."""
    for function in (fast_call, fast_start, finish):
        _definition(function)


def bound_to(context: np.ndarray, function: Callable[..., Any] = fast_call) -> Callable[..., int]:
    """Return the function, for calls under this context, which it keeps alive."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    made: Callable[..., int] = make(ctypes.addressof(_definition(function)), context, None)
    return made
