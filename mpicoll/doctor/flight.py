"""Read the flight records of a run's processes, and say where its ranks are and which of them others wait for.

The records are those of diagnostics/flight.py. A process may run, hang, or be gone; reading takes nothing from it.
"""

from __future__ import annotations

import enum
import json
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..diagnostics import flight
from ..diagnostics.counters import CALLS, NUMBERS
from ..diagnostics.status import Answer, find
from ..errors import spans
from ..selection.tables import members
from . import history
from .history import Row

TRIES = 3  # to read a record
FRESH = 2.0  # seconds after which a status that is not written anew is said to be old


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

    @property
    def calls(self) -> dict[str, tuple[int, int]]:
        """Return, by communicator, how many calls it has begun, and how many are in flight."""
        return {name: (answer.calls, len(answer.under_way)) for name, answer in self.answers.items()}

    def doing(self) -> str:
        """Return what the rank does, in words."""
        if self.is_dead:
            gone = f"is gone: process {self.pid} on {self.host} was killed, or ended without MPI_Finalize"
            return "; ".join(filter(None, (gone, history.last_call(self.history))))
        if self.ended:
            return self.ended
        where = f"at {self.location}" if self.location else "somewhere"
        calls = [f"{call} on {name}" for name, answer in self.answers.items() for call in answer.under_way[:1]]
        calls += [f"{answer.recovery} on {name}" for name, answer in self.answers.items() if answer.recovery]
        return f"in {', '.join(calls)}, {where}" if calls else where


@dataclass
class Report:
    """The state of a run: a verdict, and lines that give reasons."""

    verdict: Verdict
    lines: list[str]
    processes: list[Process]


def runs(base: Path | None) -> list[Path]:
    """Return the directories of runs, the last one first."""
    if base is None or not base.is_dir():
        return []
    with_records = [path for path in base.iterdir() if path.is_dir() and any(path.iterdir())]
    return sorted(with_records, key=lambda path: -max(file.stat().st_mtime for file in path.iterdir()))


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
    age = max(0.0, time.time() - int(words[flight.WRITTEN]) * 1e-9) if words[flight.WRITTEN] else 0.0
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
    differences, mismatch = _differences(after)
    first = history.differences({process.rank: process.history for process in after})
    differences, mismatch = first + differences, mismatch or bool(first)
    if dead:
        who = "all ranks are" if len(dead) == len(after) > 1 else _who(dead)
        return Report(Verdict.DEAD, [f"{who} gone", *differences, *lines], [*after])
    moved = {p.rank: p.calls for p in before} != {p.rank: p.calls for p in after}
    if moved:
        return Report(Verdict.MOVING, ["calls begin and end", *first, *lines], [*after])
    if mismatch:
        return Report(Verdict.MISMATCH, ["the ranks made different calls", *differences, *lines], [*after])
    if any(answer.under_way for process in after for answer in process.answers.values()):
        return Report(Verdict.STALLED, ["nothing moves, and calls are in flight", *differences, *lines], [*after])
    words = "no collective is in flight: the ranks are in the program's own code"
    return Report(Verdict.MOVING, [words, *lines], [*after])


def _differences(processes: Sequence[Process]) -> tuple[list[str], bool]:
    """Return why the calls in flight do not complete, and whether the ranks made calls that do not fit together."""
    lines, mismatch = [], False
    for name in sorted({name for process in processes for name in process.answers}):
        having = {process.rank: process for process in processes if name in process.answers}
        waiting = {rank: process.answers[name] for rank, process in having.items() if process.answers[name].under_way}
        if not waiting:
            lines += _numbers(name, {rank: process.answers[name].calls for rank, process in having.items()})
            continue
        rank = min(waiting, key=lambda rank: waiting[rank].under_way[0][:2])
        call = waiting[rank].under_way[0]
        others = [other for other in having if other != rank]
        answers = {other: having[other].answers[name] for other in others}
        failures = having[rank].answers[name].failures
        reasons: dict[str, list[int]] = defaultdict(list)
        waited_for = having[rank].waited_for[name]
        for other, finding in find(call, others, waited_for, answers, failures).items():
            mismatch |= "another call" in finding.what
            reasons[finding.what].append(other)
        lines += [f"{_who(ranks, 'has', 'have')} {what} ({call} of {name})" for what, ranks in reasons.items()]
    return lines, mismatch


def _numbers(name: str, calls: Mapping[int, int]) -> list[str]:
    """Return which ranks have begun fewer calls than others on a communicator, if any have."""
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, number in calls.items():
        ranks[number].append(rank)
    if len(ranks) == 1:
        return []
    (least, behind), *others = sorted(ranks.items())
    rest = ", ".join(f"rank{'s' * (len(members) > 1)} {spans(members)} {number}" for number, members in others)
    return [f"{_who(behind, 'has', 'have')} begun {least} calls on {name}, and {rest}"]


def _groups(processes: Sequence[Process]) -> list[str]:
    """Return what the ranks do, a line for all that do the same."""
    groups: dict[str, list[int]] = defaultdict(list)
    for process in processes:
        old = f" (as of {process.age:.0f} s ago)" if process.age > FRESH and not process.ended else ""
        groups[process.doing() + old].append(process.rank)
    return [f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}: {words}" for words, ranks in groups.items()]


def _absent(processes: Sequence[Process]) -> list[str]:
    size = max(process.size for process in processes)
    ranks = set(range(size)) - {process.rank for process in processes}
    return [f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}: no record here"] if ranks else []


def _who(ranks: Sequence[int], singular: str = "is", plural: str = "are") -> str:
    return f"rank {ranks[0]} {singular}" if len(ranks) == 1 else f"ranks {spans(ranks)} {plural}"
