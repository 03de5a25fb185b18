"""Report stalled calls: which rank waits, in which call, for which ranks, and which ranks are missing.

A call is reported when it has stalled for the time that was set. But a rank looks where the others are much earlier: in
their flight records on this host, and by asking those elsewhere. If a rank raised an error, ended or made another call,
so that waiting cannot help, it reports the call at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from mpi4py import MPI

from ..errors import StallError, have_failed
from ..progress.faults import attempt, contained
from ..progress.operation import Operation
from ..progress.queue import Queue
from ..selection.select import NATIVE
from ..selection.settings import Settings, read
from ..stderr import last_words, say
from .fault_tolerance import RankFailure, failed_ranks, hosts_of
from .flight import RECORD, SLOTS, Place
from .peer_status import POLL_INTERVAL, PeerStatus
from .status import MAX_ACTIVE, Answer, Failure, Finding, ending, find, find_absent, location, report_lines
from .status_thread import STATUS_THREAD

EARLY = 2.0  # seconds that a call stalls before the others are asked, and again after twice as long
PATIENCE = 0.5  # seconds that a report waits for answers
EARLY_PATIENCE = 1.0  # the same, for an early report, which leaves out the ranks that have not answered
NOTES = "exchanging notes with other ranks"  # a failure there is no error of the program's
REPORT = "reporting a stalled call"
STILL = 0.5  # seconds after which a call in flight is asked for whom it waits
AFTER_FAILURE = "after a failure the ranks cannot ask each other; `mpicoll status` on each host shows where they are"
HASTE = 0.5  # the least seconds of a stall that is reported, even if waiting cannot help


@dataclass
class RecoveryCall:
    """An Agree or Shrink in progress. MPI completes it when every rank that has not failed has called it.

    began: the time of the call, by time.monotonic().
    """

    name: str
    began: float
    reported: bool = False


class Making:
    """The making of a Comm in progress, which MPI completes when every rank of the communicator has called it.

    The ranks have no private communicator yet, so they cannot ask each other.
    """

    def __init__(self, rank: int) -> None:
        self.rank, self.began, self.reported = rank, time.monotonic(), False

    def respond(self) -> None:
        """Report the call when it stalls; abort the run if MPICOLL_TIMEOUT says so."""
        seconds = time.monotonic() - self.began
        if seconds < HASTE:
            return
        settings = read()  # of this rank, since the ranks agree on settings in this call
        if seconds > settings.timeout and not self.reported:
            self.reported = True
            waits = f"Comm() has not returned for {seconds:.0f} s: it waits for every rank of the communicator"
            hint = "  a rank that prints no such report has not called it"
            say("\n".join(f"mpicoll: rank {self.rank}: {line}" for line in (waits, hint)))
        _abort_if_over(self.rank, settings, seconds)


class Watched(Protocol):
    """A communicator, as the watchdog needs it."""

    rank: int
    settings: Settings
    peer_status: PeerStatus
    queue: Queue
    failures: list[Failure]
    rank_failure: RankFailure
    entered: int
    place: Place
    waited_for: tuple[int, ...]
    recovery_call: RecoveryCall | None
    object_calls: int
    object_call: str

    def is_checked(self, sequence: int) -> bool:
        """Return whether the ranks compare that call."""

    @property
    def sequence(self) -> int:
        """Return the number of the last call."""


def findings(operation: Operation, state: Watched, ranks: Iterable[int]) -> dict[int, Finding]:
    """Return which of these ranks are not in this call, and why, by their answers."""
    answers = state.peer_status.answers
    if operation.is_message:  # other ranks know nothing of it; but one that has ended sends and takes nothing more
        ended = {rank: answers[rank].ended for rank in ranks if rank in answers and answers[rank].ended}
        waited_for = operation.waited_for()
        return {rank: Finding(how, rank in waited_for) for rank, how in ended.items()}
    return find(operation.call_id, ranks, operation.waited_for(), answers, state.failures)


def report(operation: Operation, state: Watched, seconds: float, ranks: Iterable[int] | None = None) -> str:
    """Return one rank's report on one call; it names the missing ranks among `ranks`, all others if None."""
    lines = words(operation, state, f"has not moved for {seconds:.0f} s", ranks)
    return "\n".join(f"mpicoll: rank {state.rank}: {line}" for line in lines)


def words(operation: Operation, state: Watched, what: str, ranks: Iterable[int] | None = None) -> list[str]:
    """Return the lines of a report on a call; `what` ends the first."""
    choice, call_id = operation.choice, operation.call_id
    how = choice.why if choice.algorithm == NATIVE else f"{choice.algorithm}, {choice.engine} engine"
    start = f", start {call_id.start}" if call_id.start else ""
    which = how if operation.is_message else f"call {call_id.call}{start}, {how}"
    waits: list[str] = attempt(REPORT, operation.describe, [])
    others: list[str] = attempt(REPORT, lambda: _missing(operation, state, ranks), [])
    return [f"{call_id.name} ({which}) {what}", *(f"  {line}" for line in (*waits, *others))]


def _missing(operation: Operation, state: Watched, ranks: Iterable[int] | None) -> list[str]:
    """Return the lines of a report on the other ranks."""
    if failed := _failed(state):
        return failed
    missing = findings(operation, state, state.peer_status.others if ranks is None else ranks)
    return report_lines(missing) if missing or not operation.is_message else []


def record(states: Mapping[int, Watched], waiting: Watched | None = None, ended: str = "") -> None:
    """Write the status of this rank into its flight record, if that is due, or if its program has ended.

    waiting: the communicator on which the caller waits, whose lock it holds.
    """
    if ended or RECORD.is_due():
        with contained("writing the flight record"):
            calls = [(state, state.sequence) for state in list(states.values())[:SLOTS]]
            if waiting is not None:  # another thread may complete requests of the other communicators meanwhile
                first = waiting.queue.in_flight[:1]
                waiting.waited_for = first[0].waited_for() if first and first[0].stalled_for > STILL else ()
            where = location()
            RECORD.write(where[0], [(state, answer(state, number, *where)) for state, number in calls], ended)


def own_answer(state: Watched) -> Answer:
    """Return the status of this rank, for a rank that asks."""
    number = state.sequence
    return answer(state, number, *location())


def answer(state: Watched, number: int, where: str, is_inside: bool) -> Answer:
    """Return the status of this rank, by the number of its last call and then the location of its program.

    In this order, since the program may begin a call meanwhile: it must not seem to have left that already.
    """
    under_way = [operation.call_id for operation in state.queue.in_flight[:MAX_ACTIVE]]
    return Answer(
        max([number, *(call_id.call for call_id in under_way)]),
        under_way,
        {call: int(starts[0]) for call, starts in state.queue.started.copy().items()},
        state.failures,
        where,
        is_inside or state.entered > 0,
        ending(STATUS_THREAD.error) if STATUS_THREAD.is_exiting else "",
        call.name if (call := state.recovery_call) is not None else "",
        state.object_calls,
        state.object_call,
    )


def respond(state: Watched) -> None:
    """Answer the status questions of other ranks, unless another thread advances its calls. Log errors of MPI.

    Report a RecoveryCall that stalls, too: the thread that made it is in MPI.
    """
    if state.queue.lock.acquire(blocking=False):
        try:
            with contained(NOTES), state.rank_failure.noticed():
                if not state.queue.closed and not state.rank_failure.is_known:
                    state.peer_status.exchange(lambda: own_answer(state))
        finally:
            state.queue.lock.release()
    if (call := state.recovery_call) is not None:
        _watch_recovery(state, call, time.monotonic())


def _watch_recovery(state: Watched, call: RecoveryCall, now: float) -> None:
    """Report a call once when it stalls; abort the run if MPICOLL_TIMEOUT says so.

    After a failure the ranks cannot ask each other, since their private communicator is revoked. They still read the
    records on their host.
    """
    settings, peer_status, seconds = state.settings, state.peer_status, now - call.began
    if seconds <= settings.timeout - lead(settings):
        return
    with state.queue.lock, contained(NOTES), state.rank_failure.noticed():
        peer_status.read_records(now, seconds)
        if not state.queue.closed and not state.rank_failure.is_known:
            peer_status.ask(now)
    heard = state.rank_failure.is_known or peer_status.all_answered()
    if not call.reported and seconds > settings.timeout + (0.0 if heard else PATIENCE):
        call.reported = True
        with contained(REPORT):
            lines = _recovery_words(state, call, seconds)
            say("\n".join(f"mpicoll: rank {state.rank}: {line}" for line in lines))
    _abort_if_over(state.rank, settings, seconds)


def _recovery_words(state: Watched, call: RecoveryCall, seconds: float) -> list[str]:
    """Return the lines of a report on a call that stalls."""
    waits = f"{call.name} has not returned for {seconds:.0f} s: it waits for every rank that has not failed"
    peer_status, failed = state.peer_status, _failed(state)
    ranks, answers = peer_status.others, peer_status.answers
    if failed:
        answers = peer_status.read
        ranks = sorted(answers.keys() - failed_ranks(peer_status.comm))
    absent = find_absent(call.name, ranks, answers)
    others = report_lines(absent) if absent else [] if failed else ["every other rank has called it"]
    return [waits, *(f"  {line}" for line in (*failed, *others))]


def _failed(state: Watched) -> list[str]:
    """Return the lines of a report on the ranks that have failed; none if this rank knows of no failure."""
    if not state.rank_failure.is_known:
        return []
    failed = failed_ranks(state.peer_status.comm)
    known = [have_failed(failed, hosts_of(state.peer_status.comm, failed))] if failed else []
    return [*known, AFTER_FAILURE]


def notify_exit(state: Watched) -> None:
    """Send ranks that cannot read this one's record a last status: its program has ended."""
    with state.queue.lock, state.rank_failure.noticed():
        is_read_by = state.peer_status.records.is_read_by
        unread = [rank for rank in state.peer_status.others if not is_read_by(rank)]
        state.peer_status.tell(unread, own_answer(state))


def notify_error(state: Watched) -> None:
    """Send the ranks that have asked a new status: this rank has raised an error since."""
    with state.queue.lock, contained(NOTES), state.rank_failure.noticed():
        if state.peer_status.askers and not state.queue.closed and not state.rank_failure.is_known:
            state.peer_status.tell(state.peer_status.askers, own_answer(state))
            state.peer_status.askers.clear()


def watch(state: Watched, now: float) -> None:
    """Report stalled operations, once each; abort the run if MPICOLL_TIMEOUT says so.

    The ranks ask each other for their status before a report. The abort comes a little after it, so that the other
    stuck ranks can print theirs. An operation that gives up ends where waiting cannot help, or at its deadline.
    """
    settings, peer_status = state.settings, state.peer_status
    if now - peer_status.looked < POLL_INTERVAL:
        return
    peer_status.looked = now
    with contained(NOTES), state.rank_failure.noticed():
        peer_status.exchange(lambda: own_answer(state))
    still = {operation: operation.stalled(now) for operation in state.queue.in_flight}
    waiting = {operation: seconds for operation, seconds in still.items() if not operation.reported}
    ended = waiting.keys() | {operation for operation in still if operation.raises_on_stall}
    hopeless = {operation for operation in ended if peer_status.answers and cannot_complete(operation, state)}
    longest = max((still[operation] for operation in ended), default=0.0)
    with contained(NOTES), state.rank_failure.noticed():
        if longest > HASTE:
            peer_status.read_records(now, longest)
        if hopeless or any(is_due(operation, seconds, settings, now) for operation, seconds in waiting.items()):
            peer_status.ask(now)
            for operation, seconds in waiting.items():
                operation.asked_after = seconds
    heard = state.rank_failure.is_known or peer_status.all_answered()
    after = settings.timeout + (0.0 if heard else PATIENCE)
    late: dict[Operation, Iterable[int] | None] = {
        late_operation: None for late_operation, seconds in waiting.items() if seconds > after
    }
    if heard or now - peer_status.began > EARLY_PATIENCE:
        sure = [operation for operation in hopeless if still[operation] > HASTE and cannot_complete(operation, state)]
        early = [operation for operation in sure if operation.raises_on_stall or operation not in late]
        late |= dict.fromkeys(early, peer_status.answers)
    reports = _told(state, {late_operation: (still[late_operation], ranks) for late_operation, ranks in late.items()})
    if reports:
        with contained(REPORT):
            say("\n".join(reports))
    for operation in still:
        if now > operation.deadline and not operation.done:
            _abandon(operation, state, "did not end before its timeout was over")
    _abort_if_over(state.rank, settings, max(still.values(), default=0.0))


def _abort_if_over(rank: int, settings: Settings, seconds: float) -> None:
    """Abort the run if MPICOLL_TIMEOUT is set, and a call stalls for longer."""
    if settings.abort and seconds > settings.timeout + grace(settings):
        with contained(REPORT):
            last_words(f"mpicoll: rank {rank}: MPICOLL_TIMEOUT={settings.timeout:g} is over, aborting")
        MPI.COMM_WORLD.Abort(86)


def _told(state: Watched, late: Mapping[Operation, tuple[float, Iterable[int] | None]]) -> list[str]:
    """Return reports on stalled operations, each given its seconds and ranks; abandon those that give up."""
    reports = []
    for operation, (seconds, ranks) in late.items():
        operation.reported = True
        if operation.raises_on_stall and ranks is not None:
            _abandon(operation, state, f"was given up after {seconds:.0f} s", ranks)
        else:
            reports.append(report(operation, state, seconds, ranks))
    return reports


def _abandon(operation: Operation, state: Watched, what: str, ranks: Iterable[int] | None = None) -> None:
    operation.abandon(StallError("\n".join(words(operation, state, what, ranks))))


def cannot_complete(operation: Operation, state: Watched) -> bool:
    """Return whether the answers so far prove that waiting cannot help.

    Where ranks compare the call, only a rank that has ended proves it, since a mismatch raises on every other rank.
    Messages that a rank sent before it answered have been polled for since. After a failure the answers are old.
    """
    if state.rank_failure.is_known:
        return False
    answers = state.peer_status.answers
    rank_findings: dict[int, Finding] = attempt(
        NOTES, lambda: findings(operation, state, state.peer_status.others), {}
    )
    return any(
        finding.certain and (not state.is_checked(operation.sequence) or answers[rank].ended)
        for rank, finding in rank_findings.items()
    )


def is_due(operation: Operation, seconds: float, settings: Settings, now: float) -> bool:
    """Return whether to ask the other ranks now: early, at growing intervals, before a report and before a deadline."""
    late = seconds > settings.timeout - lead(settings) or (now > operation.deadline - PATIENCE and seconds > 0)
    return late or seconds > max(EARLY, 2 * operation.asked_after)


def lead(settings: Settings) -> float:
    """Return the seconds from the first question to the report."""
    return min(2.0, settings.timeout / 2)


def grace(settings: Settings) -> float:
    """Return the seconds from the report to the abort."""
    return max(1.0, settings.timeout / 10)
