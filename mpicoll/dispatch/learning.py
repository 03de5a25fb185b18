"""Let calls take turns among algorithms, and agree with the other ranks on the fastest.

A blocking call waits for all ranks before its turn, and the last turn ends with an agreement. overlapping.py has the
turns of calls of which several may be in flight.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from mpi4py import MPI

from ..cost.network import network
from ..errors import MpicollError
from ..progress.operation import Operation
from ..progress.stages import RequestStage
from ..runtime.calibrate import FALLBACK_PRESET
from ..runtime.comm_state import CommState
from ..schedules.collectives import BLOCKING, PERSISTENT
from ..selection.learning import Candidate, Kind, Lesson, candidates, size_class
from ..selection.rules import UNKNOWN_TO_ALL, Rule
from ..selection.select import BITS, NATIVE, WHOLE, choose, native_choice
from ..selection.tables import layout, library, row, write
from . import methods, sums
from .call import Call, describe
from .methods import Invocation
from .overlapping import OverlappingLesson
from .prepare import select

LOG = logging.getLogger("mpicoll")


def lesson(state: CommState, invocation: Invocation) -> Lesson | None:
    """Return the lesson in which a blocking call takes its turn; None if it takes none, or its arguments are wrong.

    The answer is the same on every rank. If overlapping calls have had all their turns, it waits for their outcome.
    """
    if (call := _learning_call(state, invocation, BLOCKING)) is None:
        return None
    pending = _overlapping(state, call)
    if pending is not None and pending.last is not None:
        state.queue.advance_until_done(pending.last)
        _settle(state, pending)
        return None
    return _lesson(state, _kind(state, call, overlapping=False))


def overlapping_lesson(state: CommState, invocation: Invocation) -> OverlappingLesson | None:
    """Return the same for a call that may return before it is complete.

    The lesson is_over where the turns have been taken, and this rank does not know the outcome yet.
    """
    if (call := _learning_call(state, invocation, BLOCKING)) is None:
        return None
    lesson = _overlapping(state, call)
    if lesson is None or lesson.last is None or not lesson.last.done:
        return lesson
    _settle(state, lesson)
    return None


def lesson_of_request(state: CommState, invocation: Invocation) -> OverlappingLesson | None:
    """Return a new lesson for the starts of a persistent request; None where they take no turns."""
    if (call := _learning_call(state, invocation, PERSISTENT)) is None:
        return None
    lesson = _new_lesson(state, _kind(state, call, overlapping=True), ())
    return lesson if isinstance(lesson, OverlappingLesson) else None


def _settle(state: CommState, lesson: OverlappingLesson) -> None:
    """Go by what the ranks have agreed on, from the next call on."""
    if lesson.agreed is None:  # the call failed
        state.lessons.under_way[lesson.kind] = None
    else:
        _adopt(state, lesson, lesson.agreed)


def _learning_call(state: CommState, invocation: Invocation, form: str) -> Call | None:
    """Return a call that may belong to a lesson; None if it does not, or its arguments are wrong."""
    invocation = invocation.snapshot()
    try:
        parsed = invocation.method.parse(state, invocation.send, invocation.recv, invocation.root)
        call = describe(invocation, parsed, form)
        return call if _takes_turns(state, call) else None
    except MpicollError:
        return None


@contextmanager
def turn(state: CommState, lesson: Lesson, candidate: Candidate) -> Iterator[None]:
    """Have a call be prepared for, and carried out by, a candidate."""
    before = state.overrides
    algorithm = {lesson.kind.collective: candidate.algorithm}
    state.override(before.merged(algorithm, candidate.chunk_bytes or WHOLE, candidate.window, None, learn=False))
    try:
        yield
    finally:
        state.override(before)


def is_under_way(state: CommState, call: Call) -> bool:
    """Return whether calls of this kind take turns, so that the fast path must not serve them yet."""
    if not state.overrides.learns or not _takes_turns(state, call):
        return False
    kinds = [_kind(state, call, overlapping) for overlapping in (False, True)]
    return any(_lesson(state, kind) is not None for kind in kinds)


def _takes_turns(state: CommState, call: Call) -> bool:
    """Return whether calls like this may take turns: all ranks know the bytes, and nothing says what is to run."""
    kernel, overrides = call.operator, state.overrides
    plain = kernel is None or not (call.no_kernel_reason or kernel.is_low or sums.are_float32(state, kernel))
    if (
        state.size == 1
        or not (plain and call.commutative)
        or call.collective in UNKNOWN_TO_ALL
        or call.invocation.method is methods.REDUCE_SCATTER  # whose recvcounts a rank may leave out
        or state.is_checked(state.sequence + 1)
        or (overrides.chunk_bytes or overrides.window or overrides.engine or overrides.seed is not None)
    ):
        return False
    choice = select(state, call.collective, call.nbytes(state.size), True, form=call.form)
    return not (choice.forced or choice.measured)


def _kind(state: CommState, call: Call, overlapping: bool) -> Kind:
    """Return the kind of lesson that a call belongs to."""
    least, _ = size_class(call.nbytes(state.size))
    return Kind(call.collective, least, state.overrides.learn or BITS, overlapping)


def _overlapping(state: CommState, call: Call) -> OverlappingLesson | None:
    """Return the lesson of overlapping calls like this; None where there is nothing to choose from."""
    lesson = _lesson(state, _kind(state, call, overlapping=True))
    return lesson if isinstance(lesson, OverlappingLesson) else None


def _lesson(state: CommState, kind: Kind) -> Lesson | None:
    """Return the lesson of a kind; None where there is nothing to choose from."""
    lessons = state.lessons.under_way
    if kind not in lessons:
        lessons[kind] = _new_lesson(state, kind, state.agreed.measured(kind.collective))
    return lessons[kind]


def _new_lesson(state: CommState, kind: Kind, table: Sequence[Rule]) -> Lesson | None:
    """Return a new lesson. It depends on the size class alone, not on which call is the first to ask."""
    agreed, typical = state.agreed, sum(size_class(kind.least)) // 2
    overrides, size, nodes, net = state.overrides, state.size, agreed.nodes, agreed.network
    choice = choose(kind.collective, typical, size, True, overrides, agreed.engine, nodes, table, net)
    if kind.overlapping and choice.algorithm == NATIVE:  # which takes no turns with others
        return None
    what = candidates(choice, typical, size, nodes, net or network(FALLBACK_PRESET), kind.learns, kind.overlapping)
    make = OverlappingLesson if kind.overlapping else Lesson
    return make(kind, what) if len(what) > 1 else None


def end(state: CommState, over: Lesson) -> None:
    """Agree with the other ranks on what was the fastest, and go by it from the next call on. Collective.

    The lesson begins again if a rank ran a turn without its compiled kernels.
    """
    us = over.measured()
    *slowest, in_doubt = _slowest(state, np.append(us, over.is_in_doubt))
    if in_doubt:
        over.begin()
    else:
        _adopt(state, over, over.rule(np.reshape(slowest, us.shape)))


def _adopt(state: CommState, over: Lesson, rule: Rule) -> None:
    """Go by a rule that all ranks know."""
    state.lessons.end(over, rule)
    state.forget()
    if state.rank == 0 and not over.is_in_doubt:
        LOG.info("%s: %s: %s", over.kind.collective, rule.algorithm, rule.why)
        _write(state, over.kind.collective)


def meet(state: CommState) -> None:
    """Wait for all ranks before a turn, so that it is not timed with what an earlier call left under way."""
    _wait(state, state.comm.Ibarrier(), "barrier", None)


def _slowest(state: CommState, us: np.ndarray) -> np.ndarray:
    """Return the most that any rank measured."""
    every = np.empty_like(us)
    _wait(state, state.comm.Iallreduce(us, every, MPI.MAX), "allreduce", (us, every))
    return every


def _wait(state: CommState, request: MPI.Request, collective: str, keep: object) -> None:
    """Wait for all ranks, in a call that is counted and watched as others are."""
    stage = RequestStage(request, "the other ranks, to learn which algorithm is the fastest")
    choice, sequence = native_choice(collective, "learning"), state.next_sequence()
    state.queue.run(Operation(choice, sequence, [lambda: stage], lambda: None, keep, name="learning"))


def _write(state: CommState, collective: str) -> None:
    """Add what was learned of a collective to the tuning table, if there is one; rank 0 does."""
    tuning = state.settings.tuning
    if tuning is None:
        return
    usual = state.agreed.measured(collective)
    rules = [row(rule) for rule in state.lessons.to_keep(collective, state.overrides.learn, usual)]
    table = {"mpi": library(MPI), "nodes": list(layout(state.agreed.nodes)), "rules": {collective: rules}}
    path = Path(tuning.path)
    try:
        with _locked(path):
            write(path, table)
    except (OSError, ValueError, KeyError, TypeError, MpicollError) as error:
        LOG.warning("what was learned is not kept: cannot write %s: %s", path, error)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time change a file."""
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
