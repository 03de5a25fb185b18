"""Record what this rank's collectives do, on all communicators whose ranks are those of a timeline."""

from __future__ import annotations

import weakref
from collections import Counter, deque

import numpy as np
from mpi4py import MPI

from ..diagnostics.groups import world_ranks
from ..diagnostics.record import Record
from ..engines import events
from ..engines.events import COLUMNS, RECORDING, Events
from ..errors import spans as ranges
from ..plans.rolled import RolledPlan
from ..runtime.comm_state import LIVE, OPENED, CommState
from ..schedules.collectives import PERSISTENT
from ..selection.select import NATIVE
from .clock import Correction
from .model import Call, RankTimeline, Span
from .spans import SINKS

MOST_MESSAGES = 2_000_000  # that the ranks of a timeline keep together; the first calls are dropped if there are more
LEAST = 20_000  # that every rank keeps


class Recorder:
    """Records the calls of this process from start() to stop()."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """For communicators whose ranks all belong to this one."""
        self.members = set(world_ranks(comm))
        self.most = max(LEAST, MOST_MESSAGES // comm.size)
        self.calls: deque[tuple[Sink, Record]] = deque()
        self.spans: list[Span] = []
        self.messages = self.dropped = 0
        self.sinks: weakref.WeakKeyDictionary[CommState, Sink] = weakref.WeakKeyDictionary()
        self.made: Counter[tuple[int, ...]] = Counter()

    def start(self) -> None:
        """Record from now on, on the communicators that exist and on those that are made."""
        RECORDING.begin()
        SINKS.append(self.spans)
        for state in list(LIVE.values()):
            self.watch(state)
        OPENED.append(self.watch)

    def stop(self) -> None:
        """Record no more."""
        OPENED.remove(self.watch)
        for state, sink in self.sinks.items():
            state.untrace(sink)
        self.sinks.clear()
        SINKS[:] = [spans for spans in SINKS if spans is not self.spans]
        RECORDING.end()

    def watch(self, state: CommState) -> None:
        """Record the calls on a communicator, if all its ranks are those of the timeline."""
        ranks = world_ranks(state.comm)
        # Ranks make communicators of the same ranks in the same order, so that this names it on all of them.
        self.made[tuple(sorted(ranks))] += 1
        count = self.made[tuple(sorted(ranks))]
        if self.members.issuperset(ranks):
            number = f" ({count})" if count > 1 else ""
            self.sinks[state] = sink = Sink(self, f"ranks {ranges(ranks)}{number}", ranks)
            state.trace(sink)

    def add(self, sink: Sink, record: Record) -> None:
        """Keep a call, and drop the oldest ones if their messages are too many."""
        self.calls.append((sink, record))
        self.messages += _size(record)
        while self.messages > self.most and len(self.calls) > 1:
            self.messages -= _size(self.calls.popleft()[1])
            self.dropped += 1

    def result(self, correction: Correction) -> RankTimeline:
        """Return what was recorded, in times of rank 0's clock."""
        ends = np.array([[span.began, span.ended] for span in self.spans]).reshape(-1, 2)
        spans = [Span(span.name, *pair) for span, pair in zip(self.spans, correction(ends).tolist(), strict=True)]
        host, rank = MPI.Get_processor_name(), MPI.COMM_WORLD.rank
        return RankTimeline(rank, host, self._calls(correction), spans, self.dropped, correction.error)

    def _calls(self, correction: Correction) -> list[Call]:
        starts = {sink: sink.starts.copy() for sink, _ in self.calls}
        calls = []
        for sink, record in reversed(self.calls):  # the last start of each persistent collective is known
            start = starts[sink][record.sequence] if record.form == PERSISTENT else 0
            starts[sink][record.sequence] -= record.form == PERSISTENT
            calls.append(sink.call(record, start, correction))
        return calls[::-1]


class Sink:
    """Takes the records of one communicator."""

    def __init__(self, recorder: Recorder, name: str, ranks: tuple[int, ...]) -> None:
        self.recorder, self.name, self.ranks = recorder, name, ranks
        self.starts: Counter[int] = Counter()  # of persistent collectives, by the number of the call that made them

    def append(self, record: Record) -> None:
        """Keep one record."""
        if record.times is not None:
            if record.form == PERSISTENT:
                self.starts[record.sequence] += 1
            self.recorder.add(self, record)

    def call(self, record: Record, start: int, correction: Correction) -> Call:
        """Return a call with times of rank 0's clock, and its peers as ranks of COMM_WORLD."""
        times = record.times
        assert times is not None
        began, waited, ended = correction(np.array([times.began, times.waited, times.ended])).tolist()
        messages, lost = np.empty((0, COLUMNS), np.int64), 0
        if times.events is not None:
            messages, lost = _messages(times.events, correction), times.events.lost
            messages[:, events.PEER] = np.append(self.ranks, -1)[messages[:, events.PEER]]  # -1: no message, no peer
        facts = _facts(record, self.ranks)
        return Call(self.name, record.sequence, start, record.name, facts, began, waited, ended, messages, lost)


def _size(record: Record) -> int:
    recorded = record.times.events if record.times is not None else None
    return 1 + (0 if recorded is None else len(recorded.rows))


def _facts(record: Record, ranks: tuple[int, ...]) -> dict[str, object]:
    facts: dict[str, object] = {"collective": record.collective, "form": record.form, "bytes": record.nbytes}
    facts |= {"algorithm": record.algorithm, "why": record.why}
    facts |= {"root": ranks[record.root]} if record.root >= 0 else {}
    if record.algorithm != NATIVE:
        facts |= {"engine": record.engine, "chunk_bytes": record.chunk_bytes, "sent": record.bytes}
        facts |= {"received": record.received, "fast_path": record.fast_path}
    return facts | {"ranks": len(ranks)}


def _messages(recorded: Events, correction: Correction) -> np.ndarray:
    rows: np.ndarray = recorded.rows.copy()
    times = rows[:, events.POSTED : events.ENDED + 1]
    corrected = np.round(correction(times * 1e-9) * 1e9).astype(np.int64)
    rows[:, events.POSTED : events.ENDED + 1] = np.where(times > 0, corrected, 0)
    rows[:, events.STEP] = _numbers(recorded.plan, rows[:, [events.STRAND, events.STEP, events.TURN]])
    return rows


def _numbers(plan: RolledPlan, places: np.ndarray) -> np.ndarray:
    """Return the number of each step in its strand, from its strand, step and turn."""
    if not len(places):
        return np.empty(0, np.int64)
    unique, back = np.unique(places, axis=0, return_inverse=True)
    numbers = np.array([plan.number(*place) for place in unique.tolist()], np.int64)
    of_places: np.ndarray = numbers[back.reshape(-1)]
    return of_places
