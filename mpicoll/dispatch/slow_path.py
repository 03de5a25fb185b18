"""Run a call that the fast path did not serve: check its arguments, choose, plan, and execute.

Every form of a call enters here: blocking by run(), nonblocking by begin(), persistent by with_recvcounts() and
prepare_call(). A blocking
call that completes at once never becomes an operation: the queue would take longer than the rest of a small call (13 of
34 µs).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..buffers.plain import plain_buffers
from ..errors import MismatchError, MpicollError
from ..progress.operation import Operation
from ..runtime.comm_state import CommState
from ..schedules.collectives import BLOCKING, NONBLOCKING, PERSISTENT
from ..selection.learning import Lesson
from . import check_mode, execute, learning, prepare
from .call import Call, describe_call
from .methods import ALLGATHER, REDUCE_SCATTER, Invocation, Method
from .overlapping import OverlappingLesson


class NativeRequest(NamedTuple):
    """A request of MPI's own collective, and the call whose buffers it uses."""

    request: MPI.Request
    call: Call


def run(state: CommState, comm: MPI.Intracomm, method: Method, *arguments: Any) -> None:
    """Run a blocking call, or complete one that the fast path began.

    arguments, here and below: send buffer, receive buffer, operator, root (Reduce_scatter: recvcounts).
    """
    arguments, begun, operation = _resume(state, comm, BLOCKING, method, arguments)
    if operation is not None:
        state.queue.run(operation)
    if begun:
        return
    if state.overrides.learns and (lesson := learning.blocking_lesson(state, Invocation(method, *arguments))):
        _run_turn(state, comm, lesson, method, *arguments)
        return
    call = prepare_call(state, BLOCKING, method, *arguments)
    execute.run(state, comm, call)
    state.fast_path.insert(call)


def begin(
    state: CommState, comm: MPI.Intracomm, form: str, method: Method, *arguments: Any, only_operations: bool = False
) -> Operation | NativeRequest | None:
    """Begin a call that may return before it is complete.

    Return None if the call is complete. Else return an operation for the caller to launch, or, unless
    only_operations, MPI's own request.
    """
    arguments, begun, operation = _resume(state, comm, form, method, arguments)
    if begun:
        if only_operations:  # the caller is a library: the program's line is further out
            state.fast_path.note_line()
        return operation
    if (operation := _turn_of_operation(state, form, method, *arguments)) is not None:
        return operation
    started: Operation | NativeRequest
    call = prepare_call(state, form, method, *arguments)
    if not call.prepared.is_native:
        started = execute.operation(state, call)
    elif only_operations or execute.needs_operation(state, call):
        started = execute.native_operation(state, comm, call)
    else:
        started = NativeRequest(execute.start_native(state, comm, call), call)
    state.fast_path.insert(call)
    return started


def _resume(
    state: CommState, comm: MPI.Intracomm, form: str, method: Method, arguments: tuple[Any, ...]
) -> tuple[tuple[Any, ...], bool, Operation | None]:
    """Complete a call that the fast path began. Else return arguments that it may serve from now on.

    They have arrays in place of other kinds of buffers, and the recvcounts that the ranks gather in place of left-out
    ones; with these the fast path tries again. Also return what its resume() returns.
    """
    begun, operation = state.fast_path.resume(method, form)
    if begun:
        return arguments, begun, operation
    send, recv, op, counts_or_root = counted = with_recvcounts(state, comm, form, method, arguments)
    if counted is not arguments:
        request = [MPI.Request()] if form == NONBLOCKING else []
        begun = not state.fast_path.fast_call(method, *counted, *request)
        MPI.Request.Waitall(request)  # frees a request that is complete; else it is null
        if not begun:
            begun, operation = state.fast_path.resume(method, form)
        if begun:
            state.fast_path.note_line()  # the caller that the fast path knows is this function
    return (*(plain_buffers(send, recv) or (send, recv)), op, counts_or_root), begun, operation


def with_recvcounts(
    state: CommState, comm: MPI.Intracomm, form: str, method: Method, arguments: tuple[Any, ...]
) -> tuple[Any, ...]:
    """Gather the recvcounts that a Reduce_scatter was called without, and return its arguments with them. Collective.

    For other calls, return the arguments as they are. Raises MpicollError, and reports it to other ranks.
    """
    send, recv, op, counts = arguments
    if method is not REDUCE_SCATTER or counts is not None:
        return arguments
    try:
        state.rank_failure.check()
        invocation = Invocation(method, *arguments).snapshot()
        parsed = method.parse(state, invocation.send, invocation.recv, None)
        if parsed is None or parsed.recv is None or not parsed.lacks_counts:
            return arguments
        describe_call(invocation, parsed, form)  # checks the operator
        check_mode.compare_calls_without_recvcounts(state, method.spelled(form))
    except MpicollError as error:
        _report(state, error, form, method)
        raise
    own, gathered = np.array([parsed.recv.count]), np.empty(state.size, np.int64)
    of_gather = ALLGATHER, own, gathered, None, 0
    if state.fast_path.fast_call(*of_gather):
        run(state, comm, *of_gather)
    else:
        state.fast_path.note_line()  # as in _resume
    return send, recv, op, gathered.tolist()


def _report(state: CommState, error: MpicollError, form: str, method: Method) -> None:
    """Report to other ranks that this one refuses its arguments; they know of a MismatchError themselves."""
    if not isinstance(error, MismatchError):
        error.rank = state.rank
        check_mode.report_refusal(state, error, form, method.spelled(form))


def prepare_call(state: CommState, form: str, method: Method, *arguments: Any) -> Call:
    """Check arguments, choose and plan, without sending data. Raises MpicollError, and reports it to other ranks."""
    invocation = Invocation(method, *arguments).snapshot()
    try:
        state.rank_failure.check()
        parsed = method.parse(state, invocation.send, invocation.recv, invocation.root)
        call = describe_call(invocation, parsed, form)
        prepare.prepare(state, call)
        if form != PERSISTENT and not call.prepared.is_native:
            state.check_tags()
            if not (learning.is_learning(state, call) or state.is_checked(state.sequence + 1)):
                call.key = state.fast_path.key(call)
        return call
    except MpicollError as error:
        _report(state, error, form, method)
        raise


def prepare_candidates(
    state: CommState, method: Method, *arguments: Any
) -> tuple[OverlappingLesson, list[Call]] | None:
    """Return the lesson of a persistent request, and its call prepared with every candidate; None if it takes no turns.

    Raises MpicollError.
    """
    if not state.overrides.learns:
        return None
    lesson = learning.persistent_lesson(state, Invocation(method, *arguments))
    if lesson is None:
        return None
    calls = []
    for candidate in lesson.candidates:
        with learning.turn(state, lesson, candidate):
            calls.append(prepare_call(state, PERSISTENT, method, *arguments))
    return lesson, calls


def _run_turn(state: CommState, comm: MPI.Intracomm, lesson: Lesson, method: Method, *arguments: Any) -> None:
    """Run and time a call with the candidate whose turn it is. After the last turn, agree on the fastest."""
    with learning.turn(state, lesson, lesson.current):
        learning.wait_for_all_ranks(state)
        began = MPI.Wtime()
        if state.fast_path.fast_call(method, *arguments):
            run(state, comm, method, *arguments)
        seconds = MPI.Wtime() - began
    lesson.note(lesson.take_turn(state.follows_kernels), seconds)
    if lesson.is_over:
        learning.end(state, lesson)


def _turn_of_operation(state: CommState, form: str, method: Method, *arguments: Any) -> Operation | None:
    """Return the operation of a call that takes a turn or waits for the agreement; None if it does neither."""
    if not state.overrides.learns:
        return None
    lesson = learning.overlapping_lesson(state, Invocation(method, *arguments))
    if lesson is None:
        return None
    with learning.turn(state, lesson, lesson.current):
        operation = execute.operation(state, prepare_call(state, form, method, *arguments))
    if lesson.is_over:
        return lesson.wait_for_outcome(state, operation)
    return lesson.turn(operation, state.follows_kernels)
