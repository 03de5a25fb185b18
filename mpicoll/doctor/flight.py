"""Read the flight records of a run's processes, and say where its ranks are and which of them others wait for.

The records are those of diagnostics/flight.py. A process may run, hang, or be gone; reading takes nothing from it.
"""

from __future__ import annotations

import enum
import json
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import flight
from ..diagnostics.counters import CALLS, NUMBERS
from ..diagnostics.status import Answer, find
from ..errors import spans
from ..progress.operation import CallId
from ..schedules.collectives import BLOCKING
from ..selection.tables import members
from . import history
from .history import Row

TRIES = 3  # to read a record
FRESH = 2.0  # seconds after which a status that is not written anew is said to be old
KEEPS_LOCK = "native code keeps Python's lock, or no status thread runs"


class Verdict(enum.IntEnum):
    """The state of a run, and the exit status of `mpicoll status`."""

    MOVING = 0
    STALLED = 1
    MISMATCH = 2
    DEAD = 3


@dataclass
class Process:
    """The contents of one process's record; is_alive is None where its host is another one."""

    path: Path
    rank: int
    size: int
    pid: int
    host: str
    program: str
    location: str
    ended: str
    age: float  # seconds since it was last written
    is_alive: bool | None
    answers: dict[str, Answer] = field(default_factory=dict)  # by communicator
    waited_for: dict[str, list[int]] = field(default_factory=dict)  # by the first call in flight, if it has stalled
    content: bytes = b""  # of the record

    @cached_property
    def history(self) -> list[Row]:
        """The last calls, the oldest first."""
        return history.rows(self.content[flight.CALLS :])

    @property
    def is_dead(self) -> bool:
        """Return whether it ended without a word."""
        return self.is_alive is False and not self.ended

    @cached_property
    def silence(self) -> str:
        """Why a process that lives does not write its record; empty if it does, or is on another host."""
        if not self.is_alive or self.ended:
            return ""
        if flight.is_stopped(self.pid):
            return f"process {self.pid} is stopped"
        return f"process {self.pid} has not written for {self.age:.0f} s: {KEEPS_LOCK}" if self.age > FRESH else ""

    @property
    def calls(self) -> dict[str, tuple[int, int]]:
        """Return, by communicator, how many calls it has begun, and how many are in flight."""
        return {name: (answer.calls, len(answer.under_way)) for name, answer in self.answers.items()}

    @property
    def object_calls(self) -> dict[str, int]:
        """Return, by communicator, how many lowercase collectives it has begun."""
        return {name: answer.object_calls for name, answer in self.answers.items()}

    def answer(self, stream: Stream) -> Answer | None:
        """Return the status in a stream of calls; None if the process does not know the communicator."""
        answer = self.answers.get(stream.name)
        if answer is None or self.silence or self.is_dead:
            answer = self._recorded(stream.name, answer)
        return answer.of_objects() if answer is not None and stream.is_of_objects else answer

    def _recorded(self, name: str, written: Answer | None) -> Answer | None:
        """Return the status on a communicator with the calls of the history, which is newer than the text."""
        rows = [row for row in self.history if row.communicator == name]
        if written is None and not rows:
            return None
        active = [row for row in rows if row.state == "in flight"]
        ended = self.ended or (self.doing() if self.is_dead else "")
        return replace(
            written or Answer(0, location=self.location),
            calls=max([written.calls if written is not None else 0, *(row.call for row in rows)]),
            under_way=[CallId(row.call, row.start, row.method) for row in active],
            inside=any(row.form == BLOCKING for row in active),
            ended=ended,
            silence=self.silence,
        )

    def doing(self) -> str:
        """Return what the rank does, in words."""
        if self.is_dead:
            gone = f"is gone: process {self.pid} on {self.host} was killed, or ended without MPI_Finalize"
            return "; ".join(filter(None, (gone, history.last_call(self.history))))
        if self.ended:
            return self.ended
        where = f"at {self.location}" if self.location else "somewhere"
        streams = [Stream(name, pickled) for pickled in (False, True) for name in self.answers]
        calls = [f"{call} on {s.name}" for s in streams if (a := self.answer(s)) for call in a.under_way[:1]]
        calls += [f"{answer.recovery} on {name}" for name, answer in self.answers.items() if answer.recovery]
        words = f"in {', '.join(calls)}, {where}" if calls else where
        return f"{self.silence}; {history.last_call(self.history) or words}" if self.silence else words


class Stream(NamedTuple):
    """The calls of a communicator that are counted together: its lowercase collectives, of objects, or all others."""

    name: str
    is_of_objects: bool


@dataclass
class Report:
    """The state of a run: a verdict, and lines that give reasons."""

    verdict: Verdict
    lines: list[str]
    processes: list[Process]


def runs(bases: Iterable[Path]) -> list[Path]:
    """Return the directories of runs that this user may read, the last one first."""
    written: list[tuple[float, Path]] = []
    for base in bases:
        with suppress(OSError):  # there is none, or it is another user's
            for run in base.iterdir():
                with suppress(OSError):
                    if times := [file.stat().st_mtime for file in run.iterdir()]:
                        written.append((max(times), run))
    return [run for _, run in sorted(written, reverse=True)]


def read(directories: Iterable[Path]) -> list[Process]:
    """Return the processes whose records are there, by rank. Raises ValueError for none, or one of another version."""
    directories = list(directories)
    paths = [path for directory in directories for path in sorted(directory.iterdir()) if path.is_file()]
    processes = [process for process in map(read_one, paths) if process is not None]
    if not processes:
        raise ValueError(f"{', '.join(map(str, directories))} has no records of ranks")
    return sorted(processes, key=lambda process: process.rank)


def read_one(path: Path) -> Process | None:
    """Return what one record says; None if it is just being made.

    Raises ValueError for a file that is none, one of another version, or a text that is damaged.
    """
    for _ in range(TRIES):  # the text may be written meanwhile
        with suppress(json.JSONDecodeError):
            return _read_once(path)
    raise ValueError(f"{path} has a text that is damaged")


def _read_once(path: Path) -> Process | None:
    content = path.read_bytes()
    if not any(content[:8]) and len(content) in (0, flight.BYTES):
        return None
    if len(content) != flight.BYTES:
        raise ValueError(f"{path} is no flight record")
    words = np.frombuffer(content[: 8 * flight.HEADER], np.int64)
    if words[0] != flight.MAGIC:
        raise ValueError(f"{path} is no flight record")
    if words[1] != flight.FORMAT:
        raise ValueError(f"{path} is of format {words[1]}; this mpicoll reads format {flight.FORMAT}")
    which = int(words[flight.VALID])
    begin = flight.TEXTS + which * flight.TEXT
    text = content[begin : begin + int(words[flight.LENGTHS + which])]
    facts: dict[str, Any] = json.loads(text) if text else {}
    pid, host = int(words[flight.PROCESS]), facts.get("host") or path.name.rsplit("-", 2)[0]
    age = max(0.0, time.time() - int(words[flight.WRITTEN]) * 1e-9)
    place = int(words[flight.RANK]), int(words[flight.SIZE]), pid, host
    says = facts.get("program", ""), facts.get("location", ""), facts.get("ended", "")
    is_alive = flight.started(pid) == int(words[flight.STARTED]) if host == socket.gethostname() else None
    process = Process(path, *place, *says, age, is_alive, content=content)
    for communicator in facts.get("communicators", ()):
        answer = Answer.unpack(json.dumps(communicator["answer"]).encode())
        if communicator["slot"] >= 0:  # the number is newer than the text
            at = 8 * (flight.HEADER + communicator["slot"] * NUMBERS + CALLS)
            answer.calls = int(np.frombuffer(content[at : at + 8], np.int64)[0])
        answer.location = process.location
        answer.ended = process.ended or (process.doing() if process.is_dead else "")
        answer.silence = process.silence
        name, ranks = communicator["name"], communicator["ranks"]
        if isinstance(ranks, str):
            (ranks,) = members([ranks])
        process.answers[name] = answer
        process.waited_for[name] = [ranks[member] for member in communicator["waited_for"]]
    return process


def judge(before: Sequence[Process], after: Sequence[Process]) -> Report:
    """Return the state of a run that was read twice, some seconds apart."""
    lines = [*_groups(after), *_absent(after)]
    dead = [process.rank for process in after if process.is_dead]
    streams = _streams(after)
    first = history.differences({process.rank: process.history for process in after})
    differences, mismatch = _differences(after, streams, first)
    if crossed := _crossed(streams):
        differences, mismatch = crossed, True
    differences, mismatch = [*first.values(), *differences], mismatch or bool(first)
    if dead:
        who = "all ranks are" if len(dead) == len(after) > 1 else _who(dead)
        return Report(Verdict.DEAD, [f"{who} gone", *differences, *lines], [*after])
    moved = {p.rank: (p.calls, p.object_calls) for p in before} != {p.rank: (p.calls, p.object_calls) for p in after}
    if moved:
        return Report(Verdict.MOVING, ["calls begin and end", *first.values(), *lines], [*after])
    if mismatch:
        return Report(Verdict.MISMATCH, ["the ranks made different calls", *differences, *lines], [*after])
    if any(answer.under_way for answers in streams.values() for answer in answers.values()):
        return Report(Verdict.STALLED, ["nothing moves, and calls are in flight", *differences, *lines], [*after])
    words = "no collective is in flight: the ranks are in the program's own code"
    return Report(Verdict.MOVING, [words, *lines], [*after])


def _streams(processes: Sequence[Process]) -> dict[Stream, dict[int, Answer]]:
    """Return the status of every rank in every stream of calls."""
    names = {name for process in processes for name in process.answers}
    names |= {row.communicator for process in processes if process.is_dead for row in process.history}
    names.discard(history.UNKNOWN)
    streams = [Stream(name, is_of_objects) for name in sorted(names) for is_of_objects in (False, True)]
    return {
        stream: {process.rank: answer for process in processes if (answer := process.answer(stream)) is not None}
        for stream in streams
    }


def _differences(
    processes: Sequence[Process], streams: Mapping[Stream, Mapping[int, Answer]], explained: Container[str]
) -> tuple[list[str], bool]:
    """Return why the calls in flight do not complete, and whether the ranks made calls that do not fit together.

    explained: the communicators on which histories say in which call ranks first differed. What they do later follows
    from that, and may blame the wrong ranks.
    """
    lines, mismatch = [], False
    ranks = {process.rank: process for process in processes}
    for stream, answers in streams.items():
        waiting = {rank: answer for rank, answer in answers.items() if answer.under_way}
        if not waiting:
            if not stream.is_of_objects:
                lines += _numbers(stream.name, {rank: answer.calls for rank, answer in answers.items()})
            continue
        rank = _reference(waiting)
        call, failures = waiting[rank].under_way[0], waiting[rank].failures
        others = [other for other in answers if other != rank]
        reasons: dict[str, list[int]] = defaultdict(list)
        waited_for = [] if stream.is_of_objects else ranks[rank].waited_for.get(stream.name, [])
        for other, finding in find(call, others, waited_for, answers, failures).items():
            is_another = "another call" in finding.what
            mismatch |= is_another
            if is_another and stream.name in explained and not stream.is_of_objects:
                continue
            reasons[finding.what].append(other)
        lines += [f"{_who(who, 'has', 'have')} {what} ({call} of {stream.name})" for what, who in reasons.items()]
    return lines, mismatch


def _reference(waiting: Mapping[int, Answer]) -> int:
    """Return a rank in the first call that ranks wait in; where these are in different ones, in that of most."""
    first = min(answer.under_way[0][:2] for answer in waiting.values())
    names = {rank: answer.under_way[0].name for rank, answer in waiting.items() if answer.under_way[0][:2] == first}
    (most, _), *_ = Counter(names.values()).most_common(1)
    return next(rank for rank, name in names.items() if name == most)


def _crossed(streams: Mapping[Stream, Mapping[int, Answer]]) -> list[str]:
    """Return a line if ranks wait in different streams for each other, so that none of their calls completes.

    A rank waits if its main thread is in a call, and calls of one stream alone are in flight.
    """
    waits: dict[int, list[tuple[Stream, CallId]]] = defaultdict(list)
    for stream, answers in streams.items():
        for rank, answer in answers.items():
            if answer.under_way and answer.inside and not answer.ended:
                waits[rank].append((stream, answer.under_way[0]))
    left = {rank: calls[0] for rank, calls in waits.items() if len(calls) == 1}
    while free := [rank for rank, wait in left.items() if not any(_waits_for(wait, streams, other) for other in left)]:
        for rank in free:
            del left[rank]
    groups: dict[tuple[Stream, CallId], list[int]] = defaultdict(list)
    for rank, wait in sorted(left.items()):
        groups[wait].append(rank)
    parts = [f"{_who(who, 'waits', 'wait')} in {call} of {stream.name}" for (stream, call), who in groups.items()]
    return [f"{', '.join(parts)}: these ranks make their calls in different order"] if parts else []


def _waits_for(
    wait: tuple[Stream, CallId], streams: Mapping[Stream, Mapping[int, Answer]], other: int
) -> bool:
    """Return whether a call needs another rank, which has not made it."""
    stream, call = wait
    return other in streams[stream] and not streams[stream][other].has_made(call)


def _numbers(name: str, calls: Mapping[int, int]) -> list[str]:
    """Return which ranks have begun fewer calls than others on a communicator, if any have."""
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, number in calls.items():
        ranks[number].append(rank)
    if len(ranks) == 1:
        return []
    (least, behind), *others = sorted(ranks.items())
    rest = ", ".join(f"{_named(members)} {number}" for number, members in others)
    return [f"{_who(behind, 'has', 'have')} begun {least} calls on {name}, and {rest}"]


def _groups(processes: Sequence[Process]) -> list[str]:
    """Return what the ranks do, a line for all that do the same."""
    groups: dict[str, list[int]] = defaultdict(list)
    for process in processes:
        is_old = process.age > FRESH and not process.ended and not process.silence
        old = f" (as of {process.age:.0f} s ago)" if is_old else ""
        groups[process.doing() + old].append(process.rank)
    return [f"{_named(who)}: {words}" for words, who in groups.items()]


def _absent(processes: Sequence[Process]) -> list[str]:
    size = max(process.size for process in processes)
    ranks = set(range(size)) - {process.rank for process in processes}
    return [f"{_named(sorted(ranks))}: no record here"] if ranks else []


def _who(ranks: Sequence[int], singular: str = "is", plural: str = "are") -> str:
    return f"{_named(ranks)} {singular if len(ranks) == 1 else plural}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}"
