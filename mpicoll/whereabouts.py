"""Where each rank is: what ranks tell each other once a call stands still, so that the missing ones are named.

Nothing is sent while all goes well. A rank whose call has stood still for a while asks the others of its
communicator, and each that looks answers with what it knows of itself: how many calls it has made, what is under way,
where its program is. A rank that is in no call of mpicoll looks by its attendant (attendant.py); one whose program
has ended still answers before MPI_Finalize. How that travels is in notes.py.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import mpi4py

from .errors import MpicollError, spans

LONG = 300  # characters of what is told of an error
MANY = 64  # calls under way that are told of
LINES = 8  # of a report on other ranks
_OURS = tuple(os.path.dirname(os.path.abspath(f)) + os.sep for f in (__file__, mpi4py.__file__))
_ENTRANCES = tuple(_OURS[0] + module for module in ("interface.py", "requests.py", "persistent.py"))


class Standing(NamedTuple):
    """A call under way, as every rank knows it: its number, how often a persistent one was started, its method."""

    call: int
    start: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (call {self.call}{f', start {self.start}' if self.start else ''})"


@dataclass
class Answer:
    """What a rank says of itself.

    `started`: of the calls it was asked for, how often those persistent were started. `refused`: the error of its last
    call. `place`: where its program is, `inside` a call of mpicoll, which need not be under way yet. `ended`: how.
    """

    calls: int
    under_way: list[Standing] = field(default_factory=list)
    started: dict[int, int] = field(default_factory=dict)
    refused: str = ""
    place: str = ""
    inside: bool = False
    ended: str = ""

    def pack(self) -> bytes:
        """As a note."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpack(cls, note: bytes) -> Answer:
        """From a note."""
        told = json.loads(note)
        told["under_way"] = [Standing(*each) for each in told["under_way"]]
        told["started"] = {int(call): starts for call, starts in told["started"].items()}
        return cls(**told)

    def has_made(self, one: Standing) -> bool:
        """Whether this rank has made such a call, or started such a request."""
        if one.start and one.call in self.started:
            return self.started[one.call] >= one.start
        return self.calls >= one.call


# -- what a rank knows of itself --------------------------------------------------------------------------


def place() -> tuple[str, bool]:
    """Where the main thread is in the user's program, and whether that is a call of mpicoll."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    stack = [(f.f_code.co_filename, line, f.f_code.co_name) for f, line in traceback.walk_stack(frame)]
    entered = [i for i, (file, _, _) in enumerate(stack) if file in _ENTRANCES]
    return _innermost(stack[entered[-1] :] if entered else stack), bool(entered)


def ending() -> str:
    """How the program of this rank ended."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if error is None:
        return "reached the end of the program"
    frames = reversed(traceback.extract_tb(error.__traceback__))
    where = _innermost((f.filename, f.lineno, f.name) for f in frames)
    return f"ended with {describe(error)}{f' ({where})' if where else ''}"


def describe(error: BaseException) -> str:
    """An error in one line."""
    words = " ".join((error.message() if isinstance(error, MpicollError) else str(error)).split())
    return f"{type(error).__name__}{f': {words}' if words else ''}"[:LONG]


def _innermost(frames: Iterable[tuple[str, int | None, str]]) -> str:
    """The first of these frames that is neither mpicoll's nor mpi4py's."""
    for file, line, name in frames:
        if not file.startswith(_OURS):
            return f"{os.path.basename(file)}, line {line}, in {name}"
    return ""


# -- what a report says of the others ---------------------------------------------------------------------


def tell(one: Standing, others: Iterable[int], waited_for: Sequence[int], told: Mapping[int, Answer]) -> list[str]:
    """Who is not in a call that stands still and why, a line each; waited_for are the ranks its messages need."""
    said: dict[tuple[str, str], list[int]] = {}
    for rank in others:
        sentence = _sentence(one, told.get(rank), rank in waited_for)
        if sentence is not None:
            said.setdefault(sentence, []).append(rank)
    lines = [f"rank {spans(r)} {s}" if len(r) == 1 else f"ranks {spans(r)} {m}" for (s, m), r in said.items()]
    if len(lines) > LINES:
        lines[LINES:] = [f"and {len(lines) - LINES} lines more of the kind"]
    if not lines:
        lines = ["every rank has made this call: MPICOLL_CHECK=1 compares what they gave"]
    return lines


def _sentence(one: Standing, answer: Answer | None, waited_for: bool) -> tuple[str, str] | None:
    """What is to be said of one rank, for one and for several; None for one that is where it should be."""
    if answer is None:
        what = "not answered: no thread there could (see docs/TROUBLESHOOTING.md)"
    else:
        now = _now(answer)
        same = [each for each in answer.under_way if each[:2] == one[:2]]
        if same and same[0].name != one.name:
            what = f"made another call here: {same[0].name}, at {answer.place}; MPICOLL_CHECK=1 compares calls"
        elif not answer.has_made(one):
            what = f"not {'started' if one.start else 'made'} this call: {now}"
        elif not same and waited_for and not answer.inside:
            what = f"made another call here, or with other counts: {now}; MPICOLL_CHECK=1 compares calls"
        else:
            return None
    return f"has {what}", f"have {what}"


def _now(answer: Answer) -> str:
    if answer.ended:
        return answer.ended
    raised = f"raised {answer.refused}; " if answer.refused else ""
    inside = f"in {answer.under_way[0]}, " if answer.under_way else ""
    return f"{raised}now {inside}at {answer.place}"
