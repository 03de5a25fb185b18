"""Begin a call that the fast path did not serve, in any form: check, select, bind a plan, and make its operation.

Every form enters here. A blocking call that completes at once becomes no operation: an operation's turn in the queue
takes longer than all the rest of a small call (13 of 34 µs).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mpi4py import MPI

from ..errors import MismatchError, MpicollError
from ..progress.operation import Operation
from ..runtime.channel import Channel
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


def run(channel: Channel, comm: MPI.Intracomm, method: Method, *arguments: Any) -> None:
    """Run a blocking call, or the rest of one that the fast path began, and return when it is complete.

    arguments, here and below: send buffer, receive buffer, operator, root or recvcounts.
    """
    begun, operation = channel.fast_path.resume(method, BLOCKING)
    if operation is not None:
        channel.queue.run(operation)
    if begun:
        return
    if channel.overrides.learns and (lesson := learning.lesson(channel, Invocation(method, *arguments))):
        _run_turn(channel, comm, lesson, method, *arguments)
        return
    call = check(channel, BLOCKING, method, *arguments)
    execute.run(channel, comm, call)
    channel.fast_path.insert(call)


def begin(
    channel: Channel, comm: MPI.Intracomm, form: str, method: Method, *arguments: Any, only_operations: bool = False
) -> Operation | NativeRequest | None:
    """Begin a call that may return before it is complete. Return None if it is complete.

    Else return the operation, which the caller launches, or MPI's own request unless only operations are wanted.
    """
    begun, operation = channel.fast_path.resume(method, form)
    if begun:
        return operation
    if (operation := _turn_of_operation(channel, form, method, *arguments)) is not None:
        return operation
    started: Operation | NativeRequest
    call = check(channel, form, method, *arguments)
    if not call.prepared.is_native:
        started = execute.operation(channel, call)
    elif only_operations or execute.needs_operation(channel, call):
        started = execute.native_operation(channel, comm, call)
    else:
        started = NativeRequest(execute.start_native(channel, comm, call), call)
    channel.fast_path.insert(call)
    return started


def check(channel: Channel, form: str, method: Method, *arguments: Any) -> Call:
    """Check arguments, select, and plan; send no data. Raises MpicollError, and reports it to the other ranks."""
    invocation = Invocation(method, *arguments).snapshot()
    try:
        channel.rank_failure.check()
        parsed = method.parse(channel, invocation.send, invocation.recv, invocation.root)
        if parsed is not None and parsed.lacks_counts:
            check_mode.gather_recvcounts(channel, parsed, method.spelled(form))
        call = describe(invocation, parsed, form)
        prepare.prepare(channel, call)
        if form != PERSISTENT and not call.prepared.is_native:
            channel.check_tags()
            if not (learning.is_under_way(channel, call) or channel.compares(channel.sequence + 1)):
                call.key = channel.fast_path.key(call)
        return call
    except MismatchError:
        raise
    except MpicollError as error:
        error.rank = channel.rank
        check_mode.refuse(channel, error, form, method.spelled(form))
        raise


def check_turns(channel: Channel, method: Method, *arguments: Any) -> tuple[OverlappingLesson, list[Call]] | None:
    """Return the lesson of a persistent request and its call as checked for each candidate; None if it takes no turns.

    Raises MpicollError.
    """
    if not channel.overrides.learns:
        return None
    lesson = learning.lesson_of_request(channel, Invocation(method, *arguments))
    if lesson is None:
        return None
    calls = []
    for candidate in lesson.candidates:
        with learning.turn(channel, lesson, candidate):
            calls.append(check(channel, PERSISTENT, method, *arguments))
    return lesson, calls


def _run_turn(channel: Channel, comm: MPI.Intracomm, lesson: Lesson, method: Method, *arguments: Any) -> None:
    """Run a call by the candidate whose turn it is, and time it. The last turn of a lesson ends it."""
    with learning.turn(channel, lesson, lesson.current):
        learning.meet(channel)
        began = MPI.Wtime()
        if channel.fast_path.fast_call(method, *arguments):
            run(channel, comm, method, *arguments)
        seconds = MPI.Wtime() - began
    lesson.note(lesson.take_turn(channel.follows_kernels), seconds)
    if lesson.is_over:
        learning.end(channel, lesson)


def _turn_of_operation(channel: Channel, form: str, method: Method, *arguments: Any) -> Operation | None:
    """Return the operation of a call that takes its turn, or waits for the outcome; None if it does neither."""
    if not channel.overrides.learns:
        return None
    lesson = learning.overlapping_lesson(channel, Invocation(method, *arguments))
    if lesson is None:
        return None
    with learning.turn(channel, lesson, lesson.current):
        operation = execute.operation(channel, check(channel, form, method, *arguments))
    if lesson.is_over:
        return lesson.follow(channel, operation)
    return lesson.turn(operation, channel.follows_kernels)
