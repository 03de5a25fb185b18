"""Record what this rank's collectives do, on all communicators whose ranks are those of a timeline."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..diagnostics import ring
from ..diagnostics.groups import world_ranks
from ..diagnostics.record import Record
from ..diagnostics.ring import RING, CallKind, Recorded
from ..engines import events
from ..engines.events import RECORDING
from ..progress import turns
from ..progress.thread import THREAD
from ..progress.turns import Mark, RecordedTurns
from ..runtime.comm_state import LIVE, OPENED, CommState
from ..selection.select import NATIVE
from .clock import Correction, identity
from .match import TIMES
from .model import NO_TURNS, Call, RankTimeline, Span, on_clock
from .spans import SINKS

MOST_MESSAGES = 2_000_000  # that the ranks of a timeline keep together; later ones replace the first
LEAST = 20_000  # that every rank keeps


class _Communicator(NamedTuple):
    """A communicator in a timeline: its name, the same on all its ranks, and those as ranks of COMM_WORLD."""

    name: str
    ranks: tuple[int, ...]


class Recorder:
    """Records the calls of this process from start() to stop()."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Prepare to record the communicators whose ranks all belong to this one."""
        self.members = set(world_ranks(comm))
        self.most = max(LEAST, MOST_MESSAGES // comm.size)
        self.spans: list[Span] = []
        self.watched: weakref.WeakSet[CommState] = weakref.WeakSet()
        self.communicators: dict[int, _Communicator] = {}  # by their numbers in the ring
        self.first = 0  # the number of the first call in the ring
        self.recorded: Recorded | None = None
        self.first_turn = Mark(0, 0)
        self.turns = RecordedTurns()

    def start(self) -> None:
        """Record from now on, on the communicators that exist and on those that are made."""
        self.first = RING.begin(self.most)
        self.first_turn = THREAD.table.turns.begin()
        RECORDING.begin()
        SINKS.append(self.spans)
        for state in list(LIVE.values()):
            self.watch(state)
        OPENED.append(self.watch)

    def stop(self) -> None:
        """Record no more."""
        OPENED.remove(self.watch)
        for state in list(self.watched):
            state.sinks.remove_ring()
        self.watched.clear()
        SINKS[:] = [spans for spans in SINKS if spans is not self.spans]
        RECORDING.end()
        self.recorded = RING.since(self.first)
        RING.end()
        self.turns = THREAD.table.turns.since(self.first_turn)
        THREAD.table.turns.end()

    def watch(self, state: CommState) -> None:
        """Record the calls on a communicator, if all its ranks are those of the timeline."""
        ranks = world_ranks(state.comm)
        if self.members.issuperset(ranks):
            self.communicators[state.sinks.add_ring()] = _Communicator(state.place.name, ranks)
            self.watched.add(state)

    def result(self, correction: Correction) -> RankTimeline:
        """Return what was recorded, in times of rank 0's clock."""
        ends = np.array([[span.began, span.ended] for span in self.spans]).reshape(-1, 2)
        spans = [Span(span.name, *pair) for span, pair in zip(self.spans, correction(ends).tolist(), strict=True)]
        host, rank = MPI.Get_processor_name(), MPI.COMM_WORLD.rank
        assert self.recorded is not None
        rows = self.recorded.calls[np.isin(self.recorded.calls[:, ring.COMM], list(self.communicators))]
        calls = _calls(rows, self.recorded, self.communicators, correction)
        facts = self.recorded.dropped, correction.error, identity()
        return RankTimeline(rank, host, calls, spans, *facts, _turns(rows, self.turns, correction), self.turns.dropped)


def _turns(calls: np.ndarray, recorded: RecordedTurns, correction: Correction) -> np.ndarray:
    """Return the turns in which threads advanced these calls, as rows of model.py with times of rank 0's clock."""
    rows = np.concatenate([recorded.driver, recorded.python])
    if not len(rows):
        return NO_TURNS
    numbers = {key: i for i, key in enumerate(map(tuple, calls[:, [ring.COMM, ring.SEQUENCE, ring.START]].tolist()))}
    keys = rows[:, [turns.COMM, turns.SEQUENCE, turns.START]].tolist()
    call = np.array([numbers.get(tuple(key), -1) for key in keys])
    thread = np.repeat([0, 1], [len(recorded.driver), len(recorded.python)])
    times = on_clock(rows[:, [turns.BEGAN, turns.ENDED]], correction.__call__)
    counts = rows[:, [turns.POSTED, turns.SENT, turns.STEPS]]
    of_calls: np.ndarray = np.column_stack([thread, call, times, counts])[call >= 0]
    return of_calls


def _calls(
    rows: np.ndarray, recorded: Recorded, communicators: dict[int, _Communicator], correction: Correction
) -> list[Call]:
    """Return calls of some communicators, with times of rank 0's clock and peers as ranks of COMM_WORLD."""
    messages, bounds = _messages(rows, recorded, communicators, correction)
    times = correction(rows[:, [ring.BEGAN, ring.WAITED, ring.ENDED]] * 1e-9).tolist()
    calls = []
    for row, (began, waited, ended), first, end in zip(rows.tolist(), times, bounds[:-1], bounds[1:], strict=True):
        record, communicator = recorded.kinds[row[ring.KIND]].record, communicators[row[ring.COMM]]
        key = communicator.name, row[ring.SEQUENCE], row[ring.START]
        facts = _facts(record, communicator.ranks, row)
        calls.append(Call(*key, record.name, facts, began, waited, ended, messages[first:end], row[ring.LOST]))
    return calls


def _messages(
    calls: np.ndarray, recorded: Recorded, communicators: dict[int, _Communicator], correction: Correction
) -> tuple[np.ndarray, list[int]]:
    """Return the messages of calls, one call after the other, and where those of each begin, and the last end."""
    counts = calls[:, ring.ROWS]
    bounds = np.append(0, np.cumsum(counts))
    of_call = np.repeat(np.arange(len(calls)), counts)
    rows: np.ndarray = recorded.messages[np.arange(bounds[-1]) + (calls[:, ring.FIRST] - bounds[:-1])[of_call]]
    rows[:, TIMES] = on_clock(rows[:, TIMES], correction.__call__)
    for number, communicator in communicators.items():
        peers = np.append(communicator.ranks, -1)  # -1: no message, no peer
        at = calls[of_call, ring.COMM] == number
        rows[at, events.PEER] = peers[rows[at, events.PEER]]
    rows[:, events.STEP] = _numbers(recorded.kinds, calls[of_call, ring.KIND], rows)
    return rows, bounds.tolist()


def _numbers(kinds: dict[int, CallKind], kind_of_row: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return the number of each row's step in its strand, from the kind of its call, its strand, step and turn."""
    code = kind_of_row
    for column in (events.STRAND, events.STEP, events.TURN):
        values = rows[:, column]
        _, first, code = np.unique(code * (values.max(initial=0) + 1) + values, return_index=True, return_inverse=True)
    numbers = np.empty(len(first), np.int64)
    for i, (kind, place) in enumerate(zip(kind_of_row[first].tolist(), rows[first].tolist(), strict=True)):
        plan = kinds[kind].plan
        assert plan is not None
        numbers[i] = plan.number(place[events.STRAND], place[events.STEP], place[events.TURN])
    of_rows: np.ndarray = numbers[code]
    return of_rows


def _facts(record: Record, ranks: tuple[int, ...], row: list[int]) -> dict[str, Any]:
    """Return what a call was and what ran; row is that of the call in the ring."""
    nbytes = record.nbytes if row[ring.NBYTES] == ring.AS_KIND else row[ring.NBYTES]
    facts: dict[str, Any] = {"collective": record.collective, "form": record.form, "bytes": nbytes}
    facts |= {"algorithm": record.algorithm, "why": record.why}
    facts |= {"root": ranks[record.root]} if record.root >= 0 else {}
    if record.algorithm != NATIVE:
        facts |= {"engine": record.engine, "chunk_bytes": record.chunk_bytes, "sent": row[ring.SENT]}
        facts |= {"received": row[ring.RECEIVED], "fast_path": record.fast_path}
    return facts | {"ranks": len(ranks)}
