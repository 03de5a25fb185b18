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
from ..runtime.calibrate import UNKNOWN
from ..runtime.channel import Channel
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


def lesson(channel: Channel, invocation: Invocation, overlapping: bool = False) -> Lesson | None:
    """Return the lesson in which such a call takes its turn; None if it takes none, or its arguments are wrong.

    The answer is the same on every rank. What the ranks of overlapping calls have agreed on is adopted here, in the
    order of calls, for which a blocking call waits; their lesson is_over where this rank does not know it yet.
    """
    call, kinds = _describe(channel, invocation, BLOCKING)
    if call is None or not kinds:
        return None
    pending = channel.lessons.under_way.get(kinds[True])
    if isinstance(pending, OverlappingLesson) and pending.last is not None:
        if not overlapping:
            channel.queue.advance_until_done(pending.last)
        if not pending.last.done:
            return pending
        if pending.agreed is None:  # the call failed
            channel.lessons.under_way[pending.kind] = None
        else:
            _adopt(channel, pending, pending.agreed)
        return None
    return _lesson(channel, kinds[overlapping], call.nbytes(channel.size))


def lesson_of_request(channel: Channel, invocation: Invocation) -> OverlappingLesson | None:
    """Return a new lesson for the starts of a persistent request; None where they take no turns."""
    call, kinds = _describe(channel, invocation, PERSISTENT)
    lesson = _new_lesson(channel, kinds[True], call.nbytes(channel.size), ()) if call is not None and kinds else None
    return lesson if isinstance(lesson, OverlappingLesson) else None


def _describe(channel: Channel, invocation: Invocation, form: str) -> tuple[Call | None, tuple[Kind, ...]]:
    """Return a call and its kinds of lessons; None and none where nothing is learned, or the arguments are wrong."""
    if channel.overrides.learns:
        invocation = invocation.snapshot()
        try:
            parsed = invocation.method.parse(channel, invocation.send, invocation.recv, invocation.root)
            call = describe(invocation, parsed, form)
            return call, _kinds(channel, call)
        except MpicollError:
            pass
    return None, ()


@contextmanager
def turn(channel: Channel, lesson: Lesson, candidate: Candidate) -> Iterator[None]:
    """Have a call be prepared for, and carried out by, a candidate."""
    before = channel.overrides
    algorithm = {lesson.kind.collective: candidate.algorithm}
    channel.override(before.merged(algorithm, candidate.chunk_bytes or WHOLE, candidate.window, None, learn=False))
    try:
        yield
    finally:
        channel.override(before)


def is_under_way(channel: Channel, call: Call) -> bool:
    """Return whether calls of this kind take turns, so that the fast path must not serve them yet."""
    nbytes = call.nbytes(channel.size)
    return any(_lesson(channel, kind, nbytes) is not None for kind in _kinds(channel, call))


def _kinds(channel: Channel, call: Call) -> tuple[Kind, ...]:
    """Return the kinds of lessons that a call may belong to, of blocking calls and of overlapping ones.

    They are those of calls of which all ranks know the bytes, and for which nothing says what is to run.
    """
    kernel, overrides = call.operator, channel.overrides
    plain = kernel is None or not (call.missing or kernel.is_low or sums.are_float32(channel, kernel))
    if (
        not overrides.learns
        or channel.size == 1
        or not (plain and call.commutative)
        or call.collective in UNKNOWN_TO_ALL
        or call.invocation.method is methods.REDUCE_SCATTER  # whose recvcounts a rank may leave out
        or channel.compares(channel.sequence + 1)
        or (overrides.chunk_bytes or overrides.window or overrides.engine or overrides.seed is not None)
    ):
        return ()
    nbytes = call.nbytes(channel.size)
    choice = select(channel, call.collective, nbytes, True, form=call.form)
    if choice.forced or choice.measured:
        return ()
    of = call.collective, size_class(nbytes)[0], overrides.learn or BITS
    return Kind(*of, overlapping=False), Kind(*of, overlapping=True)


def _lesson(channel: Channel, kind: Kind, nbytes: int) -> Lesson | None:
    """Return the lesson of a kind; None where there is nothing to choose from.

    It depends on the size class alone, not on which call is the first to ask.
    """
    lessons = channel.lessons.under_way
    if kind not in lessons:
        lessons[kind] = _new_lesson(channel, kind, nbytes, channel.agreed.measured(kind.collective))
    return lessons[kind]


def _new_lesson(channel: Channel, kind: Kind, nbytes: int, table: Sequence[Rule]) -> Lesson | None:
    agreed, typical = channel.agreed, sum(size_class(nbytes)) // 2
    overrides, size, nodes, net = channel.overrides, channel.size, agreed.nodes, agreed.network
    choice = choose(kind.collective, typical, size, True, overrides, agreed.engine, nodes, table, net)
    if kind.overlapping and choice.algorithm == NATIVE:  # which takes no turns with others
        return None
    what = candidates(choice, typical, size, nodes, net or network(UNKNOWN), kind.learns, kind.overlapping)
    make = OverlappingLesson if kind.overlapping else Lesson
    return make(kind, what) if len(what) > 1 else None


def end(channel: Channel, over: Lesson) -> None:
    """Agree with the other ranks on what was the fastest, and go by it from the next call on. Collective.

    The lesson begins again if a rank ran a turn without its compiled kernels.
    """
    us = over.measured()
    *slowest, in_doubt = _slowest(channel, np.append(us, over.is_in_doubt))
    if in_doubt:
        over.begin()
    else:
        _adopt(channel, over, over.rule(np.reshape(slowest, us.shape)))


def _adopt(channel: Channel, over: Lesson, rule: Rule) -> None:
    """Go by a rule that all ranks know."""
    channel.lessons.end(over, rule)
    channel.forget()
    if channel.rank == 0 and not over.is_in_doubt:
        LOG.info("%s: %s: %s", over.kind.collective, rule.algorithm, rule.why)
        _write(channel, over.kind.collective)


def meet(channel: Channel) -> None:
    """Wait for all ranks before a turn, so that it is not timed with what an earlier call left under way."""
    _wait(channel, channel.comm.Ibarrier(), "barrier", None)


def _slowest(channel: Channel, us: np.ndarray) -> np.ndarray:
    """Return the most that any rank measured."""
    every = np.empty_like(us)
    _wait(channel, channel.comm.Iallreduce(us, every, MPI.MAX), "allreduce", (us, every))
    return every


def _wait(channel: Channel, request: MPI.Request, collective: str, keep: object) -> None:
    """Wait for all ranks, in a call that is counted and watched as others are."""
    stage = RequestStage(request, "the other ranks, to learn which algorithm is the fastest")
    choice, sequence = native_choice(collective, "learning"), channel.next_sequence()
    channel.queue.run(Operation(choice, sequence, [lambda: stage], lambda: None, keep, name="learning"))


def _write(channel: Channel, collective: str) -> None:
    """Add what was learned of a collective to the tuning table, if there is one; rank 0 does."""
    tuning = channel.settings.tuning
    if tuning is None:
        return
    usual = channel.agreed.measured(collective)
    rules = [row(rule) for rule in channel.lessons.to_keep(collective, channel.overrides.learn, usual)]
    table = {"mpi": library(MPI), "nodes": list(layout(channel.agreed.nodes)), "rules": {collective: rules}}
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
