"""Begin a call that the fast path did not serve, in any form: check, select, bind a plan, and make its operation.

Every form enters here. A blocking call that completes at once becomes no operation: an operation's turn in the queue
takes longer than all the rest of a small call (13 of 34 µs).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI

from ..errors import MismatchError, MpicollError
from ..progress.operation import Operation
from ..runtime.comm_state import CommState
from ..schedules.collectives import BLOCKING, PERSISTENT
from ..selection.learning import Lesson
from . import check_mode, execute, learning, prepare
from .call import Call, describe
from .methods import Invocation, Method
from .overlapping import OverlappingLesson


class NativeRequest(NamedTuple):
    """A request of MPI's own, and the call whose buffers it uses."""

    request: MPI.Request
    call: Call


def run(state: CommState, comm: MPI.Intracomm, method: Method, *arguments: Any) -> None:
    """Run a blocking call, or the rest of one that the fast path began, and return when it is complete.

    arguments, here and below: send buffer, receive buffer, operator, root or recvcounts.
    """
    begun, operation = state.fast_path.resume(method, BLOCKING)
    if operation is not None:
        state.queue.run(operation)
    if begun:
        return
    if state.overrides.learns and (lesson := learning.lesson(state, Invocation(method, *arguments))):
        _run_turn(state, comm, lesson, method, *arguments)
        return
    call = check(state, BLOCKING, method, *arguments)
    execute.run(state, comm, call)
    state.fast_path.insert(call)


def begin(
    state: CommState, comm: MPI.Intracomm, form: str, method: Method, *arguments: Any, only_operations: bool = False
) -> Operation | NativeRequest | None:
    """Begin a call that may return before it is complete. Return None if it is complete.

    Else return the operation, which the caller launches, or MPI's own request unless only operations are wanted.
    """
    begun, operation = state.fast_path.resume(method, form)
    if begun:
        if only_operations:  # a library is between the program and this call
            state.fast_path.note_line()
        return operation
    if (operation := _turn_of_operation(state, form, method, *arguments)) is not None:
        return operation
    started: Operation | NativeRequest
    call = check(state, form, method, *arguments)
    if not call.prepared.is_native:
        started = execute.operation(state, call)
    elif only_operations or execute.needs_operation(state, call):
        started = execute.native_operation(state, comm, call)
    else:
        started = NativeRequest(execute.start_native(state, comm, call), call)
    state.fast_path.insert(call)
    return started


def check(state: CommState, form: str, method: Method, *arguments: Any) -> Call:
    """Check arguments, select, and plan; send no data. Raises MpicollError, and reports it to the other ranks."""
    invocation = Invocation(method, *arguments).snapshot()
    try:
        state.rank_failure.check()
        parsed = method.parse(state, invocation.send, invocation.recv, invocation.root)
        if parsed is not None and parsed.lacks_counts:
            check_mode.gather_recvcounts(state, parsed, method.spelled(form))
        call = describe(invocation, parsed, form)
        prepare.prepare(state, call)
        if form != PERSISTENT and not call.prepared.is_native:
            state.check_tags()
            if not (learning.is_under_way(state, call) or state.is_checked(state.sequence + 1)):
                call.key = state.fast_path.key(call)
        return call
    except MismatchError:
        raise
    except MpicollError as error:
        error.rank = state.rank
        check_mode.refuse(state, error, form, method.spelled(form))
        raise


def check_turns(state: CommState, method: Method, *arguments: Any) -> tuple[OverlappingLesson, list[Call]] | None:
    """Return the lesson of a persistent request and its call as checked for each candidate; None if it takes no turns.

    Raises MpicollError.
    """
    if not state.overrides.learns:
        return None
    lesson = learning.lesson_of_request(state, Invocation(method, *arguments))
    if lesson is None:
        return None
    calls = []
    for candidate in lesson.candidates:
        with learning.turn(state, lesson, candidate):
            calls.append(check(state, PERSISTENT, method, *arguments))
    return lesson, calls


def _run_turn(state: CommState, comm: MPI.Intracomm, lesson: Lesson, method: Method, *arguments: Any) -> None:
    """Run a call by the candidate whose turn it is, and time it. The last turn of a lesson ends it."""
    with learning.turn(state, lesson, lesson.current):
        learning.meet(state)
        began = MPI.Wtime()
        if state.fast_path.fast_call(method, *arguments):
            run(state, comm, method, *arguments)
        seconds = MPI.Wtime() - began
    lesson.note(lesson.take_turn(state.follows_kernels), seconds)
    if lesson.is_over:
        learning.end(state, lesson)


def _turn_of_operation(state: CommState, form: str, method: Method, *arguments: Any) -> Operation | None:
    """Return the operation of a call that takes its turn, or waits for the outcome; None if it does neither."""
    if not state.overrides.learns:
        return None
    lesson = learning.overlapping_lesson(state, Invocation(method, *arguments))
    if lesson is None:
        return None
    with learning.turn(state, lesson, lesson.current):
        operation = execute.operation(state, check(state, form, method, *arguments))
    if lesson.is_over:
        return lesson.follow(state, operation)
    return lesson.turn(operation, state.follows_kernels)
