"""Read the flight records of a run's processes, which flight.py writes.

A process may run, hang, or be gone; reading takes nothing from it. `mpicoll status` reads whole records. A rank whose
call stalls reads the texts of the other ranks on its host (peer_records.py).
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..progress.operation import CallId
from ..schedules.collectives import BLOCKING
from . import flight, history_reader
from .counters import CALLS, NUMBERS
from .history_reader import Row
from .status import Answer

TRIES = 3  # to read a record
FRESH = 2.0  # seconds after which a status that is not written anew is said to be old
KEEPS_LOCK = "native code keeps Python's lock, or no status thread runs"


@dataclass
class Process:
    """The contents of one process's record; is_alive is None on another host, or in another container."""

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
    ambiguous: frozenset[str] = frozenset()  # names that may be of another communicator: see FlightRecord.is_ambiguous
    content: bytes = b""  # of the record

    @cached_property
    def history(self) -> list[Row]:
        """Return the last calls, the oldest first."""
        content = self.content
        if len(content) < flight.BYTES:  # only the texts were read
            with suppress(OSError):  # the file is removed by now
                content = self.path.read_bytes()
        return history_reader.rows(content[flight.CALLS :]) if len(content) == flight.BYTES else []

    @property
    def is_dead(self) -> bool:
        """Return whether it ended without a word."""
        return self.is_alive is False and not self.ended

    @cached_property
    def silence(self) -> str:
        """Return why a process that lives does not write its record; empty if it does, or that cannot be known."""
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
        at = rows[-1].location if rows else history_reader.UNKNOWN
        location = self.location or ("" if at == history_reader.UNKNOWN else at)
        return replace(
            written or Answer(0),
            location=location,
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
            return "; ".join(filter(None, (gone, history_reader.last_call(self.history))))
        if self.ended:
            return self.ended
        where = f"at {self.location}" if self.location else "somewhere"
        streams = [Stream(name, pickled) for pickled in (False, True) for name in self.answers]
        calls = [f"{call} on {s.name}" for s in streams if (a := self.answer(s)) for call in a.under_way[:1]]
        calls += [f"{answer.recovery} on {name}" for name, answer in self.answers.items() if answer.recovery]
        words = f"in {', '.join(calls)}, {where}" if calls else where
        return f"{self.silence}; {history_reader.last_call(self.history) or words}" if self.silence else words


class Stream(NamedTuple):
    """The calls of a communicator that are counted together: its lowercase collectives, of objects, or all others."""

    name: str
    is_of_objects: bool


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


def read_one(path: Path, only_text: bool = False) -> Process | None:
    """Return what one record says; None if it is just being made.

    only_text: leave the history to be read when it is needed, and take the numbers of calls from the text, so that the
    whole status is of one moment. The counters in the record are newer.

    Raises ValueError for a file that is none, one of another version, or a text that is damaged, and OSError.
    """
    for _ in range(TRIES):  # the text may be written meanwhile
        with suppress(json.JSONDecodeError):
            return _read_once(path, only_text)
    raise ValueError(f"{path} has a text that is damaged")


def _read_once(path: Path, only_text: bool) -> Process | None:
    size = flight.CALLS if only_text else flight.BYTES
    if only_text:
        with path.open("rb") as file:
            content = file.read(size)
    else:
        content = path.read_bytes()
    if not any(content[:8]) and len(content) in (0, size):
        return None
    if len(content) != size:
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
    is_here = host == socket.gethostname() and words[flight.NAMESPACE] == flight.namespace()
    is_alive = flight.started(pid) == int(words[flight.STARTED]) if is_here else None
    process = Process(path, *place, *says, age, is_alive, content=content)
    process.ambiguous = frozenset(facts.get("ambiguous", ()))
    for communicator in facts.get("communicators", ()):
        answer = Answer.unpack(json.dumps(communicator["answer"]).encode())
        if communicator["slot"] >= 0 and not only_text:
            at = 8 * (flight.HEADER + communicator["slot"] * NUMBERS + CALLS)
            answer.calls = int(np.frombuffer(content[at : at + 8], np.int64)[0])
        answer.location = process.location
        answer.ended = process.ended or (process.doing() if process.is_dead else "")
        answer.silence = process.silence
        of = flight.Place(*(communicator[name] for name in flight.Place._fields))
        process.answers[of.name] = answer
        process.waited_for[of.name] = [of.members[rank] for rank in communicator["waited_for"]]
    return process
