"""Compile the function that a collective method tries first: find the call's row, bind buffers, run the plan.

For a kind of call that was served before, only the method itself is Python between the call and its first message. The
function has C's calling convention with METH_FASTCALL arguments, which are part of Python's stable interface. It is
compiled by numba, like kernels.

Its arguments are (method, send buffer, receive buffer, operator, root), with recvcounts in place of the root for
Reduce_scatter. It identifies objects by their addresses; signature.py computes the key of a call. `context` is the
int64 array to which the function is bound, one per communicator (context.py). A row of its table is one kind of call.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ..diagnostics import counters, history, ring
from ..diagnostics.counters import BROKEN, CALLS, IN_FLIGHT, NUMBERS, RING_SHIFT, TRACES
from ..diagnostics.history import NUMBER_SHIFT
from ..engines import compiled, events
from ..engines.compiled import (
    BYTE,
    DONE,
    FLAG,
    ISEND,
    STATE_COLUMNS,
    STATUSES,
    TAG,
    TESTALL,
    WAITING,
    line_of,
)
from ..kernels import clock, memory
from ..kernels import pack as copies
from ..kernels.background import Request, instead_of
from ..kernels.cache import native
from ..kernels.deferred import njit
from ..kernels.memory import call_int, call_long, line, load, table
from ..plans import plan
from ..progress import table as progress
from . import context as field
from . import (
    history_rows,
    other_buffers,
    outcome,
    pack,
    rebind,
    recipe,
    recipe_table,
    ring_rows,
    rows,
    signature,
    sites,
    spin,
)
from .other_buffers import make_array
from .rows import (
    ANY_COUNTS,
    COLUMNS,
    ERRORS,
    PACKS,
    RECV_BYTES,
    RECV_OFFSET,
    ROW_BYTES,
    ROW_COMM,
    ROW_IDS,
    ROW_IDS_NONBLOCKING,
    ROW_KIND,
    ROW_ROOT,
    SCRATCH_NEEDED,
    SEND_BYTES,
    SEND_OFFSET,
    SPIN_NS,
    TABLES,
    bind_counts,
    find_row,
)
from .signature import DATA, METHOD, RECV_COUNT, SEND_COUNT, compute_key

MAX_BLOCKING_NS = 10_000_000  # that a blocking call runs before signals, stalls and other operations are handled
_METH_FASTCALL = 0x80
NOT_SERVED, IN_PROGRESS, COMPLETED, ABANDONED = map(int, outcome.Outcome)  # plain numbers, for numba
tag = njit(plan.tag)


@njit
def run_plan(context, at, nanoseconds, continues):  # type: ignore[no-untyped-def]
    """Run the bound tables at an address from the start. Return DONE, WAITING or minus an error code of MPI's.

    All other plans in flight are advanced too. continues: run as long as anything moves, unless the program computes
    meanwhile and the driver has a processor to itself.
    """
    tables = table(at, compiled.START + 1, 2)
    units = tables[compiled.STATE, 1]
    state = table(tables[compiled.STATE, 0], units, STATE_COLUMNS)
    begin = table(tables[compiled.START, 0], units, STATE_COLUMNS)
    line_of(tables, compiled.PROGRESS)[:] = 0
    state[:] = begin
    walk = context[field.ADVANCE], at, tables[compiled.PROGRESS, 0]
    thread, moved = call_long(context[field.SAVE], ()), 0
    code = call_long(context[field.WAIT], (context[field.CONTROL], *walk, nanoseconds))
    control = line(context[field.CONTROL], progress.CONTROL)
    is_hidden = control[progress.BEGUN] != 0 and control[progress.COMPUTES] != 0 and control[progress.CONTENDED] == 0
    while code == WAITING and continues and not is_hidden:
        before, moved = moved, progress.moves(tables[compiled.PROGRESS, 0])
        if moved == before:
            break
        code = call_long(context[field.WAIT], (context[field.CONTROL], *walk, spin.IDLE_NS))
    call_long(context[field.RESTORE], (thread,))
    return code


@njit
def store_outcome(context, tables, code, request, errors, kind, sequence, start, nbytes):  # type: ignore[no-untyped-def]
    """Store the outcome. Return True, with a complete request, if the call is complete and needs no Python.

    The last four arguments are words of the call's row in the ring of timelines.
    """
    context[field.OUTCOME] = COMPLETED if code == DONE else IN_PROGRESS if code == WAITING else code
    if code != DONE or (errors != 0 and load(errors) != 0) or context[field.UNKNOWN_SITE] != 0:
        return False
    traces = load(context[field.NUMBERS] + 8 * TRACES)
    if traces != 0:
        comm = traces >> RING_SHIFT
        if traces != comm << RING_SHIFT or not ring_rows.write(context, tables, comm, kind, sequence, start, nbytes):
            return False
    context[field.OUTCOME] = NOT_SERVED
    context[field.FINISHED], context[field.SCRATCH_SHARED] = 1, 0
    if request != 0:  # a send to PROC_NULL: complete, but not null, as Waitany needs
        library = line_of(tables, compiled.LIBRARY)
        nothing = context[field.PROC_NULL], 0, context[field.COMM_SELF], request + context[field.HANDLE]
        call_int(library[ISEND], (0, 0, library[BYTE], *nothing))
    return True


@njit
def release_buffers(context):  # type: ignore[no-untyped-def]
    """Release the references to both buffers. Call this last, since it may run Python finalizers."""
    send, recv = context[field.HELD_SEND], context[field.HELD_RECV]
    context[field.HELD_SEND] = context[field.HELD_RECV] = 0
    if send != 0:
        call_long(context[field.DECREF], (send,))
    if recv != 0:
        call_long(context[field.DECREF], (recv,))


def fast_call(this, arguments, n):  # type: ignore[no-untyped-def]
    """Run a collective and return Python's 0; return 1 if the slow path must run or complete it: see OUTCOME.

    With a null request as sixth argument, spin for a limited time, and return 0 if the request is complete. With seven
    arguments, only compute the call's key and the rows for it; return 0 if a row serves the call already.

    Arrays for buffers of other kinds are made first, since that may run code that makes another call here.
    """
    context, arrays = line(load(this + DATA), field.CONTEXT), (0, 0)
    if n >= 5 and context[field.OPEN] != 0:
        arrays = make_array(context, load(arguments + 8)), make_array(context, load(arguments + 16))
    is_interrupted = arrays[0] < 0 or arrays[1] < 0
    served = not is_interrupted and run_call(context, arguments, n, arrays)
    for array in arrays:
        if array > 0:
            call_long(context[field.DECREF], (array,))
    return 0 if is_interrupted else call_long(context[field.NUMBER], (0 if served else 1,))


@njit
def run_call(context, arguments, n, arrays):  # type: ignore[no-untyped-def]  # noqa: C901 - one compiled function
    """Run a collective; return False if the slow path must run or complete it.

    arguments and n are those of fast_call, arrays those of compute_key.
    """
    context[field.KEY + METHOD] = 0
    if n > 6:
        known = False
        if context[field.OPEN] != 0 and compute_key(context, arguments, arrays):
            known = find_row(context, field.ROW)
            known |= find_row(context, field.ANY_ROW)
        return known
    if context[field.OUTCOME] == COMPLETED:  # an interrupt came before the previous call was recorded
        context[field.OUTCOME], context[field.SCRATCH_SHARED] = NOT_SERVED, 0
        release_buffers(context)
    if context[field.OUTCOME] != NOT_SERVED:  # or before it was resumed
        context[field.OUTCOME] = ABANDONED
        return False
    is_closed = context[field.OPEN] == 0 or n < 5 or load(context[field.NEEDS_PYTHON]) != 0
    if is_closed or not compute_key(context, arguments, arrays):
        return False
    if not find_row(context, field.ROW):
        if not find_row(context, field.ANY_ROW):
            return False
        context[field.ROW] = context[field.ANY_ROW]
    row = line(context[field.TABLE] + 8 * COLUMNS * context[field.ROW], COLUMNS)
    if row[ANY_COUNTS] != 0:
        bind_counts(context, row)
    numbers = line(context[field.NUMBERS], NUMBERS)
    tags = (numbers[CALLS] + 1) % plan.SEQUENCES
    in_use = numbers[BROKEN + tags] != 0 or numbers[IN_FLIGHT + tags] != 0
    if in_use or row[SCRATCH_NEEDED] > context[field.SCRATCH_BYTES]:
        return False
    send, recv = context[field.SEND_ARRAY], context[field.RECV_ARRAY]
    if row[SEND_BYTES] > 0 and row[RECV_BYTES] > 0:
        from_, to = load(send + DATA), load(recv + DATA)
        if from_ < to + row[RECV_BYTES] and to < from_ + row[SEND_BYTES]:
            return False
    tables = table(row[TABLES], compiled.START + 1, 2)
    bases, call = line_of(tables, compiled.BASES), line_of(tables, compiled.CALL)
    if row[SEND_COUNT] >= 0:
        bases[0] = load(send + DATA) + row[SEND_OFFSET]
    if row[RECV_COUNT] >= 0:
        bases[1] = load(recv + DATA) + row[RECV_OFFSET]
    bases[2], context[field.SCRATCH_SHARED] = context[field.SCRATCH], 1 if row[SCRATCH_NEEDED] > 0 else 0
    if row[PACKS] != 0:
        from_ = load(send + DATA) if row[SEND_COUNT] >= 0 else 0
        to = load(recv + DATA) if row[RECV_COUNT] >= 0 else 0
        pack.pack(row[PACKS], context[field.SCRATCH], from_, to, bases)
    numbers[CALLS] += 1
    call[TAG] = tag(numbers[CALLS], 0, 0)
    ids = row[ROW_IDS if n == 5 else ROW_IDS_NONBLOCKING]
    history_rows.begin(context, ids, numbers[CALLS] + row[ROW_COMM], row[ROW_ROOT], row[ROW_BYTES], 1 if n == 5 else 2)
    call_long(context[field.INCREF], (send,))  # another thread may remove them from the caller's list
    call_long(context[field.INCREF], (recv,))
    code = run_plan(context, row[TABLES], MAX_BLOCKING_NS if n == 5 else row[SPIN_NS], n > 5)
    if code == DONE:
        if row[PACKS] != 0:
            pack.unpack(row[PACKS])
        history_rows.end(context)
    request, kind = (0, row[ROW_KIND]) if n == 5 else (load(arguments + 40), row[ROW_KIND] + 1)
    nbytes = row[ROW_BYTES] if row[ANY_COUNTS] != 0 else ring.AS_KIND
    served = store_outcome(context, tables, code, request, row[ERRORS], kind, numbers[CALLS], 0, nbytes)
    context[field.HELD_SEND], context[field.HELD_RECV] = send, recv
    if served:  # else Python releases them when MPI has finished with their memory
        release_buffers(context)
    return served


def fast_start(this, arguments, n):  # type: ignore[no-untyped-def]
    """Start a persistent collective, as fast_call runs a call. The argument is its inactive request."""
    context = line(load(this + DATA), field.CONTEXT)
    context[field.FINISHED] = 0
    if context[field.OUTCOME] != NOT_SERVED:
        context[field.OUTCOME] = ABANDONED
        return call_long(context[field.NUMBER], (1,))
    handle = load(arguments) + context[field.HANDLE]
    active = recipe.handle_at(context, handle) != context[field.NULL]
    if context[field.OPEN] == 0 or load(context[field.NEEDS_PYTHON]) != 0 or active:
        return call_long(context[field.NUMBER], (1,))
    tables, started = table(context[field.TABLE], compiled.START + 1, 2), line(context[field.STARTED], 1)
    started[0] += 1
    ids, sequence, root, nbytes = field.ROW_WORDS, field.ROW_WORDS + 1, field.ROW_WORDS + 2, field.ROW_WORDS + 3
    history_rows.begin(context, context[ids], context[sequence], context[root] + started[0], context[nbytes], 1)
    if context[field.PACKS] != 0:
        pack.pack_again(context[field.PACKS], line_of(tables, compiled.BASES))
    code = run_plan(context, context[field.TABLE], context[field.SPIN_NS], True)
    if code == DONE:
        if context[field.PACKS] != 0:
            pack.unpack(context[field.PACKS])
        history_rows.end(context)
    number = context[sequence] & ((1 << NUMBER_SHIFT) - 1)  # without that of the communicator
    of_row = context[field.KIND], number, started[0], ring.AS_KIND
    served = store_outcome(context, tables, code, load(arguments), 0, *of_row)
    return call_long(context[field.NUMBER], (0 if served else 1,))


def finish(this, arguments, n):  # type: ignore[no-untyped-def]
    """Make the request that fast_start completed inactive again. Return Python's 0, or 1 if it was not complete."""
    context = line(load(this + DATA), field.CONTEXT)
    if context[field.FINISHED] == 0:
        return call_long(context[field.NUMBER], (1,))
    context[field.FINISHED] = 0
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
_lock = threading.Lock()  # two threads must not make two definitions: Python keeps using the first


def _definition(function: Callable[..., Any]) -> _Definition:
    with _lock:
        if function not in _defined:
            own = field, history_rows, other_buffers, outcome, pack, rebind, recipe, recipe_table, ring_rows, rows
            others = clock, compiled, copies, counters, events, history, ring, plan, memory, progress
            modules = *own, signature, sites, spin, *others
            sources = [str(module.__file__) for module in modules]
            with instead_of(Request(__name__, "prepare")):
                address = native(function, ["int64"] * 3, "int64", also=sources)
            docstring = b"Return 0 if the collective is complete."
            _defined[function] = _Definition(function.__name__.encode(), address, _METH_FASTCALL, docstring)
    return _defined[function]


def prepare() -> None:
    """Compile the functions, or load them."""
    for function in (fast_call, fast_start, finish):
        _definition(function)


def bind_to(context: np.ndarray, function: Callable[..., Any] = fast_call) -> Callable[..., int]:
    """Return the function bound to a context, which it keeps alive."""
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]
    bound_function: Callable[..., int] = make(ctypes.addressof(_definition(function)), context, None)
    return bound_function
