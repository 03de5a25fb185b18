"""The status that ranks send each other when a call stalls, so that reports name the missing ranks.

No status message is sent while calls progress. A rank whose call has stalled reads the flight records of the other
ranks of its communicator on its host, and asks those elsewhere. A status has the number of calls, the operations in
flight, the errors by which the rank left calls, and the line that its program is at. A rank outside mpicoll answers
from its status thread (status_thread.py), and one whose program has ended before MPI_Finalize. peer_status.py has the
messages.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import NamedTuple

import mpi4py

from ..errors import MpicollError, spans
from ..progress.operation import CallId

MAX_ERROR_LENGTH = 300  # characters of an error in an answer
MAX_ACTIVE = 64  # calls in flight in an answer
MAX_FAILURES = 8  # errors in an answer
MAX_LINES = 8  # lines of a report on other ranks
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
OWN_FILES = _PACKAGE, os.path.dirname(os.path.abspath(mpi4py.__file__)) + os.sep
_STANDARD_LIBRARY = os.path.dirname(os.__file__) + os.sep
_INSTALLED = os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep
MAX_OTHER_THREADS = 3  # besides the main one, in a location
_ENTRANCES = tuple(
    os.path.join(_PACKAGE, *module)
    for module in (("comm", "methods.py"), ("comm", "requests.py"), ("comm", "prequest.py"), ("torch", "calls.py"))
)


class Failure(NamedTuple):
    """An error by which a rank left a call.

    A refused call, which was not made, has the number that it would have had.
    """

    call: int
    start: int
    name: str
    error: str
    was_made: bool = True

    def __str__(self) -> str:
        kind, colon, words = self.error.partition(":")
        return f"raised {kind} in {CallId(*self[:3])}{colon}{words}"


@dataclass
class Answer:
    """The status of a rank.

    `started`: how often each persistent collective was started. `failures`: the last ones, in order. `location`: the
    line that its program is at. `inside`: whether that is in a call of mpicoll, which need not be in flight yet.
    `ended`: how the program ended, empty if it runs. `recovery`: the Agree or Shrink that it is in, if any.
    `object_calls`: how many lowercase collectives it has begun. `object_call`: the one that it is in. `silence`: why
    the rest is outdated.
    """

    calls: int
    under_way: list[CallId] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    location: str = ""
    inside: bool = False
    ended: str = ""
    recovery: str = ""
    object_calls: int = 0
    object_call: str = ""
    silence: str = ""

    def pack(self) -> bytes:
        """Return the answer as bytes."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, note: bytes) -> Answer:
        """Return the answer that pack() turned into this note."""
        fields = json.loads(note)
        fields["under_way"] = [CallId(*values) for values in fields["under_way"]]
        fields["failures"] = [Failure(*values) for values in fields["failures"]]
        fields["started"] = {int(call): starts for call, starts in fields["started"].items()}
        return cls(**fields)

    def of_objects(self) -> Answer:
        """Return the status of lowercase collectives alone, as the calls."""
        active = [CallId(self.object_calls, 0, f"pickled {self.object_call}")] if self.object_call else []
        inside = bool(active)
        return replace(self, calls=self.object_calls, under_way=active, started={}, failures=[], inside=inside)

    def has_made(self, call_id: CallId) -> bool:
        """Return whether this rank has made this call, or started this request."""
        if call_id.start and call_id.call in self.started:
            return self.started[call_id.call] >= call_id.start
        return self.calls >= call_id.call

    def next_call_towards(self, call_id: CallId) -> tuple[int, int]:
        """Return the next call and start of this rank if it has not made this call yet, else this call."""
        if self.has_made(call_id):
            return call_id.call, call_id.start
        if call_id.start and call_id.call in self.started:
            return call_id.call, self.started[call_id.call] + 1
        return self.calls + 1, 0

    def has_left(self, call_id: CallId) -> bool:
        """Return whether this rank has made this call and returned from it."""
        if len(self.under_way) >= MAX_ACTIVE or any(active[:2] == call_id[:2] for active in self.under_way):
            return False
        later = self.started.get(call_id.call, 0) > call_id.start if call_id.start else self.calls > call_id.call
        return self.has_made(call_id) and (later or not self.inside)


# -- the status of this rank ------------------------------------------------------------------------------


def location() -> tuple[str, bool]:
    """Return where the threads are in the user's program, and whether the main one is in a call of mpicoll.

    The main thread comes first, and then MAX_OTHER_THREADS others that are in the program.
    """
    frames = sys._current_frames()
    main = threading.main_thread().ident or 0
    where, is_inside = _where(frames[main]) if main in frames else (None, False)
    others: list[str] = []
    for thread in threading.enumerate():
        is_other = thread.ident != main and thread.ident in frames
        there, _ = _where(frames[thread.ident or 0]) if is_other else (None, False)
        if there and not _is_library(there.file) and len(others) < MAX_OTHER_THREADS:
            name = thread.name if thread.name.isprintable() else "?"
            others.append(f"; thread {name} at {there}")
    frames.clear()
    return f"{where or ''}{''.join(others)}", is_inside


class Place(NamedTuple):
    """A line of the program."""

    file: str
    line: int | None
    function: str

    def __str__(self) -> str:
        return at_line(*self)


def _where(frame: FrameType) -> tuple[Place | None, bool]:
    """Return the line at which a thread is in the program, and whether that is a call of mpicoll."""
    stack = [Place(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_stack(frame)]
    del frame  # in the calling thread it is this function's own, and would keep itself and all buffers of its callers
    entered = [i for i, place in enumerate(stack) if place.file in _ENTRANCES]
    return _innermost(stack[entered[-1] :] if entered else stack), bool(entered)


def _is_library(file: str) -> bool:
    """Return whether a file is of Python's standard library, of mpicoll or of mpi4py."""
    is_standard = file.startswith((_STANDARD_LIBRARY, "<frozen ")) and not any(part in file for part in _INSTALLED)
    return is_standard or file.startswith(OWN_FILES)


def last_error() -> BaseException | None:
    """Return the error that the interpreter has printed a traceback of; None if there is none."""
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)


def ending(error: BaseException | None) -> str:
    """Return how the program of this rank ended, by the error that it raised, if any."""
    if error is None:
        return "reached the end of the program"
    frames = reversed(traceback.extract_tb(error.__traceback__))
    where = _innermost(Place(f.filename, f.lineno, f.name) for f in frames)
    return f"ended with {describe(error)}{f' ({where})' if where else ''}"


def describe(error: BaseException) -> str:
    """Return the description of an error in one line."""
    try:
        words = " ".join((error.message() if isinstance(error, MpicollError) else str(error)).split())
    except Exception:  # the program's own error, which cannot be printed
        words = "its message cannot be printed"
    return f"{type(error).__name__}{f': {words}' if words else ''}"[:MAX_ERROR_LENGTH]


def _innermost(places: Iterable[Place]) -> Place | None:
    """Return the first of these places outside libraries, or else outside mpicoll and mpi4py."""
    outside = [place for place in places if not place.file.startswith(OWN_FILES)]
    return next((place for place in outside if not _is_library(place.file)), outside[0] if outside else None)


def at_line(file: str, line: int | None, name: str) -> str:
    """Return the words for a line of the program."""
    return f"{os.path.basename(file)}, line {line}, in {name}"


# -- reports on the other ranks ---------------------------------------------------------------------------


class Finding(NamedTuple):
    """The words of a report that follow "rank r has"; certain: whether they prove an error without more waiting."""

    what: str
    certain: bool


_SILENT = Finding("not answered: no thread there could (see docs/TROUBLESHOOTING.md)", False)


def find(
    call_id: CallId,
    others: Iterable[int],
    waited_for: Sequence[int],
    answers: Mapping[int, Answer],
    own: Sequence[Failure] = (),
) -> dict[int, Finding]:
    """Return which ranks are not in a stalled call, and why.

    waited_for are the ranks whose messages it needs. own are the failures of this rank: an error raised on every rank
    does not explain the stall. A rank that made the call after an error is reported only if no other is missing.
    """
    others = list(others)
    failures = {rank: _failure(call_id, answers[rank], own) for rank in others if rank in answers}
    findings = {rank: _find(call_id, answers.get(rank), failures.get(rank), rank in waited_for) for rank in others}
    if not any(findings.values()):
        findings |= {
            rank: Finding(f"made this call, having {failure}", True) for rank, failure in failures.items() if failure
        }
    return {rank: finding for rank, finding in findings.items() if finding is not None}


def find_absent(call: str, others: Iterable[int], answers: Mapping[int, Answer]) -> dict[int, Finding]:
    """Return which ranks are not in an Agree or Shrink, and where they are."""
    reported = {rank: answers.get(rank) for rank in others}
    return {
        rank: _SILENT if answer is None else Finding(f"not called it: {_now(answer)}", bool(answer.ended))
        for rank, answer in reported.items()
        if answer is None or answer.recovery != call
    }


def report_lines(findings: Mapping[int, Finding]) -> list[str]:
    """Return the lines of a report on the ranks that are not in a stalled call, one for each reason."""
    ranks_by_reason: dict[str, list[int]] = {}
    for rank, finding in findings.items():
        ranks_by_reason.setdefault(finding.what, []).append(rank)
    who = {
        what: f"rank {spans(r)} has" if len(r) == 1 else f"ranks {spans(r)} have" for what, r in ranks_by_reason.items()
    }
    lines = [f"{ranks} {what}" for what, ranks in who.items()]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} lines more of the kind"]
    if not lines:
        lines = ["every rank has made this call: MPICOLL_CHECK=1 compares what they gave"]
    return lines


def _failure(call_id: CallId, answer: Answer, own: Sequence[Failure]) -> Failure | None:
    """Return the last error of a rank in this call, or in an earlier one if it made more of its kind than this rank."""
    at = answer.next_call_towards(call_id)
    there, here = ([failure for failure in failures if failure[:2] == at] for failures in (answer.failures, own))
    made_there, made_here = ([failure.was_made for failure in failures] for failures in (there, here))
    more = [made_there.count(failure.was_made) > made_here.count(failure.was_made) for failure in there]
    return next((failure for failure, has_more in zip(reversed(there), reversed(more)) if has_more), None)


def _find(call_id: CallId, answer: Answer | None, failure: Failure | None, waited_for: bool) -> Finding | None:
    """Return the finding on one rank; None if the rank is where it should be."""
    if answer is None:
        return _SILENT
    raised = f"{failure}; " if failure is not None and failure.error not in answer.ended else ""
    advice = f"{failure or 'MPICOLL_CHECK=1 compares calls'}"
    other = next(
        (call.name for call in answer.under_way if call[:2] == call_id[:2] and call.name != call_id.name), None
    )
    if other is not None:
        differs = _collective(other) != _collective(call_id.name)
        where = answer.ended or f"at {answer.location}"
        return Finding(f"made another call here: {other}, {where}; {advice}", differs)
    if not answer.has_made(call_id):
        verb = "started" if call_id.start else "made"
        return Finding(f"not {verb} this call: {raised}{_now(answer)}", bool(failure or answer.ended))
    if failure is not None and failure.was_made:
        return Finding(f"{raised}{_now(answer)}", True)
    has_left = answer.has_left(call_id)
    if waited_for and has_left:
        return Finding(f"made another call here, or with other counts: {_now(answer)}; {advice}", True)
    return Finding(f"made this call: {_now(answer)}", False) if answer.silence and not has_left else None


def _collective(name: str) -> str:
    """Return a method without its form where the messages are the same: Iallreduce's are Allreduce's."""
    return name.lower().removeprefix("i")


def _now(answer: Answer) -> str:
    inside = f"in {answer.under_way[0]}, " if answer.under_way else ""
    where = f" {inside}at {answer.location}" if answer.location else ""
    return answer.ended or (f"{answer.silence}{', last' if where else ''}{where}" if answer.silence else f"now{where}")
