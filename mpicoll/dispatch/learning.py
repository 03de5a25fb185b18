"""Run calls by several algorithms in turn, and agree with the other ranks on the fastest.

A lesson (selection/learning.py) is the turns of one class of calls. A blocking call waits for all ranks before its
turn; after the last turn the ranks agree. overlapping.py has the lessons of calls of which several may be in flight.
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
from ..selection.uneven import EVEN
from . import methods, sums
from .call import Call, describe_call
from .methods import Invocation
from .overlapping import OverlappingLesson
from .prepare import select, skew_of

LOG = logging.getLogger("mpicoll")


def blocking_lesson(state: CommState, invocation: Invocation) -> Lesson | None:
    """Return the lesson in which a blocking call takes its turn; None if it takes none, or its arguments are wrong.

    The result is the same on every rank. If overlapping calls have had all their turns, wait for their agreement first.
    """
    if (call := _learning_call(state, invocation, BLOCKING)) is None:
        return None
    pending = _overlapping(state, call)
    if pending is not None and pending.last_turn is not None:
        state.queue.advance_until_done(pending.last_turn)
        _adopt_agreed(state, pending)
        return None
    return _lesson(state, _kind(state, call, overlapping=False))


def overlapping_lesson(state: CommState, invocation: Invocation) -> OverlappingLesson | None:
    """Return the lesson of a nonblocking call, as blocking_lesson() does.

    The lesson is_over if all turns have been taken and this rank does not know the agreement yet.
    """
    if (call := _learning_call(state, invocation, BLOCKING)) is None:
        return None
    lesson = _overlapping(state, call)
    if lesson is None or lesson.last_turn is None or not lesson.last_turn.done:
        return lesson
    _adopt_agreed(state, lesson)
    return None


def persistent_lesson(state: CommState, invocation: Invocation) -> OverlappingLesson | None:
    """Return a new lesson for the starts of a persistent request; None if they take no turns."""
    if (call := _learning_call(state, invocation, PERSISTENT)) is None:
        return None
    lesson = _new_lesson(state, _kind(state, call, overlapping=True), ())
    return lesson if isinstance(lesson, OverlappingLesson) else None


def _adopt_agreed(state: CommState, lesson: OverlappingLesson) -> None:
    """Use the rule on which the ranks have agreed, from the next call on."""
    if lesson.agreed is None:  # the call failed
        state.lessons.active[lesson.kind] = None
    else:
        _adopt(state, lesson, lesson.agreed)


def _learning_call(state: CommState, invocation: Invocation, form: str) -> Call | None:
    """Return the call of an invocation; None if it takes no turns, or its arguments are wrong."""
    invocation = invocation.snapshot()
    try:
        parsed = invocation.method.parse(state, invocation.send, invocation.recv, invocation.root)
        call = describe_call(invocation, parsed, form)
        return call if _takes_turns(state, call) else None
    except MpicollError:
        return None


@contextmanager
def turn(state: CommState, lesson: Lesson, candidate: Candidate) -> Iterator[None]:
    """Within the block, prepare and run calls with a candidate."""
    before = state.overrides
    algorithm = {lesson.kind.collective: candidate.algorithm}
    state.override(before.merged(algorithm, candidate.chunk_bytes or WHOLE, candidate.window, None, learn=False))
    try:
        yield
    finally:
        state.override(before)


def is_learning(state: CommState, call: Call) -> bool:
    """Return whether calls of this class take turns, so that the fast path must not serve them yet."""
    if not state.overrides.learns or not _takes_turns(state, call):
        return False
    kinds = [_kind(state, call, overlapping) for overlapping in (False, True)]
    return any(_lesson(state, kind) is not None for kind in kinds)


def _takes_turns(state: CommState, call: Call) -> bool:
    """Return whether such calls may take turns: all ranks know the bytes, and no setting fixes the choice."""
    operator, overrides = call.operator, state.overrides
    is_plain = operator is None or not (
        call.no_kernel_reason or operator.is_low or sums.uses_float32_sums(state, operator)
    )
    if (
        state.size == 1
        or not (is_plain and call.commutative)
        or call.collective in UNKNOWN_TO_ALL
        or call.invocation.method is methods.REDUCE_SCATTER  # whose recvcounts a rank may leave out
        or skew_of(state, call) != EVEN  # candidates are compared for equal shares
        or state.is_checked(state.sequence + 1)
        or (overrides.chunk_bytes or overrides.window or overrides.engine or overrides.seed is not None)
    ):
        return False
    choice = select(state, call.collective, call.nbytes(state.size), True, form=call.form)
    return not (choice.forced or choice.measured)


def _kind(state: CommState, call: Call, overlapping: bool) -> Kind:
    """Return the class of calls to which a call belongs."""
    least, _ = size_class(call.nbytes(state.size))
    return Kind(call.collective, least, state.overrides.learn or BITS, overlapping)


def _overlapping(state: CommState, call: Call) -> OverlappingLesson | None:
    """Return the lesson of overlapping calls like this; None if there is only one candidate."""
    lesson = _lesson(state, _kind(state, call, overlapping=True))
    return lesson if isinstance(lesson, OverlappingLesson) else None


def _lesson(state: CommState, kind: Kind) -> Lesson | None:
    """Return the lesson of a class; None if there is only one candidate."""
    lessons = state.lessons.active
    if kind not in lessons:
        lessons[kind] = _new_lesson(state, kind, state.agreed.measured(kind.collective))
    return lessons[kind]


def _new_lesson(state: CommState, kind: Kind, table: Sequence[Rule]) -> Lesson | None:
    """Return a new lesson. It depends on the size class alone, not on the call that comes first."""
    agreed, typical = state.agreed, sum(size_class(kind.least)) // 2
    overrides, size, nodes, net = state.overrides, state.size, agreed.nodes, agreed.network
    choice = choose(kind.collective, typical, size, True, overrides, agreed.engine, nodes, table, net)
    if kind.overlapping and choice.algorithm == NATIVE:  # MPI's own collective takes no turns with others
        return None
    net = net or network(FALLBACK_PRESET)
    algorithms = candidates(choice, typical, size, nodes, net, kind.learns, kind.overlapping)
    lesson_class = OverlappingLesson if kind.overlapping else Lesson
    return lesson_class(kind, algorithms) if len(algorithms) > 1 else None


def end(state: CommState, lesson: Lesson) -> None:
    """Agree with the other ranks on the fastest candidate, and use it from the next call on. Collective.

    The lesson begins again if a rank ran a turn without its compiled kernels.
    """
    us = lesson.measured()
    *slowest, in_doubt = _max_over_ranks(state, np.append(us, lesson.is_in_doubt))
    if in_doubt:
        lesson.begin()
    else:
        _adopt(state, lesson, lesson.rule(np.reshape(slowest, us.shape)))


def _adopt(state: CommState, lesson: Lesson, rule: Rule) -> None:
    """End a lesson with a rule on which all ranks agree."""
    state.lessons.end(lesson, rule)
    state.forget()
    if state.rank == 0 and not lesson.is_in_doubt:
        LOG.info("%s: %s: %s", lesson.kind.collective, rule.algorithm, rule.why)
        _save(state, lesson.kind.collective)


def wait_for_all_ranks(state: CommState) -> None:
    """Wait for all ranks before a turn, so that its time includes no delay of an earlier call."""
    _wait(state, state.comm.Ibarrier(), "barrier", None)


def _max_over_ranks(state: CommState, us: np.ndarray) -> np.ndarray:
    """Return the maximum of every element over all ranks."""
    maximum = np.empty_like(us)
    _wait(state, state.comm.Iallreduce(us, maximum, MPI.MAX), "allreduce", (us, maximum))
    return maximum


def _wait(state: CommState, request: MPI.Request, collective: str, keep: object) -> None:
    """Wait for a request in an operation, which is numbered and watched as a call is."""
    stage = RequestStage(request, "the other ranks, to learn which algorithm is the fastest")
    choice, sequence = native_choice(collective, "learning"), state.next_sequence()
    state.queue.run(Operation(choice, sequence, [lambda: stage], lambda: None, keep, name="learning"))


def _save(state: CommState, collective: str) -> None:
    """Write the learned rules of a collective to the tuning table, if there is one. Rank 0 calls this."""
    tuning = state.settings.tuning
    if tuning is None:
        return
    measured = state.agreed.measured(collective)
    rules = [row(rule) for rule in state.lessons.to_keep(collective, state.overrides.learn, measured)]
    table = {"mpi": library(MPI), "nodes": list(layout(state.agreed.nodes)), "rules": {collective: rules}}
    path = Path(tuning.path)
    try:
        with _locked(path):
            write(path, table)
    except (OSError, ValueError, KeyError, TypeError, MpicollError) as error:
        LOG.warning("learned rules are not kept: cannot write %s: %s", path, error)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file within the block."""
    with path.with_name(f"{path.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
