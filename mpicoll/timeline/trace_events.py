"""Timelines as files of the Trace Event Format, which Perfetto and Chrome's about:tracing open.

A rank is a process. Its tracks are the program, with blocking calls, waits and spans; the turns of the two progress
threads; the calls in flight; and the messages of plans, a track for each chunk in flight. Messages are flow arrows.
Times are microseconds since the first.

The format: Nat Duca, Dean Michael Berris, Trace Event Format, 2016.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..engines.events import ARRIVED, CHUNK, ENDED, KIND, NBYTES, NO_MESSAGE, PEER, POSTED, STEP, STRAND
from ..plans.plan import SEND
from . import drift
from .match import UNMATCHED, is_receive, pair, rows
from .model import THREADS, Call, Identity, RankTimeline
from .steps import steps
from .tracks import place

COLLECTIVE, WAIT, MESSAGE, SPAN, TURN = "collective", "wait", "message", "span", "turn"  # categories
PROGRAM, DRIVER, PYTHON_THREAD, IN_FLIGHT, MESSAGES = 0, 800, 900, 1000, 2000  # the first tracks of each group
GROUPS = {
    PROGRAM: "program", DRIVER: THREADS[0], PYTHON_THREAD: THREADS[1], IN_FLIGHT: "in flight", MESSAGES: "messages"
}  # fmt: skip
COUNTS = "posted", "sent", "steps"  # of a turn: messages, bytes, and steps finished
SHORTEST = 1e-3  # microseconds of a slice: viewers round to nanoseconds, and arrows end inside slices
Event = dict[str, Any]


def trace(timelines: Sequence[RankTimeline]) -> dict[str, Any]:
    """Return the object that the file holds. The times of all ranks are on the clock of the first one."""
    numbers, pairs = pair(timelines)
    errors = sorted((timeline.error for timeline in timelines), reverse=True)
    timelines, error = drift.evened(timelines, numbers, sum(errors[:2]))  # of two ranks, either of which may be wrong
    began = [call.began for t in timelines for call in t.calls] + [span.began for t in timelines for span in t.spans]
    origin = min(began, default=0.0)
    events: list[Event] = []
    for timeline, of_rank in zip(timelines, numbers, strict=True):
        events += _Rank(timeline, origin, of_rank).events()
    receives = sum(int(is_receive(rows(timeline)).sum()) for timeline in timelines)
    facts = {
        "mpicoll": __version__,
        "ranks": len(timelines),
        "clock_error_us": round(1e6 * error, 3),
        "dropped_calls": max((t.dropped for t in timelines), default=0),
        "dropped_turns": max((t.dropped_turns for t in timelines), default=0),
        "lost_messages": sum(call.lost for t in timelines for call in t.calls),
        "messages": receives,
        "unmatched_messages": receives - pairs,
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": facts | _identity(timelines, origin)}


def _identity(timelines: Sequence[RankTimeline], origin: float) -> dict[str, Any]:
    """Return the facts by which merge.py lays files together: run, clock, when it showed the origin, and processes."""
    run, clock, process = timelines[0].identity if timelines else Identity()
    if not process:
        return {}
    facts = {"run": run, "clock": clock, "host": timelines[0].host, "origin_us": round(origin * 1e6, 3)}
    return facts | {"processes": {str(timeline.rank): timeline.identity.process for timeline in timelines}}


def write(content: dict[str, Any], path: str | Path) -> None:
    """Write a trace, compressed if the name ends in .gz. Raises OSError."""
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(content, separators=(",", ":")) + "\n")  # ten times as fast as json.dump


def track_name(track: int) -> str:
    """Return the name of a track of a rank.

    >>> [track_name(track) for track in (0, 800, 1000, 2002)]
    ['program', 'mpicoll-driver', 'in flight', 'messages 3']
    """
    group = max((first for first in GROUPS if first <= track), default=PROGRAM)
    return GROUPS[group] + (f" {track - group + 1}" if track != group else "")


class _Rank:
    """Makes the events of one rank."""

    def __init__(self, timeline: RankTimeline, origin: float, numbers: np.ndarray) -> None:
        self.timeline, self.origin, self.numbers = timeline, origin, numbers

    def events(self) -> list[Event]:
        """Return all of them, those that name the tracks first."""
        events = [*self._program(), *self._turns(), *self._in_flight(), *self._messages()]
        title = f"rank {self.timeline.rank} on {self.timeline.host}"
        names = [self._name("process_name", title), self._name("process_sort_index", self.timeline.rank)]
        for track in sorted({event["tid"] for event in events}):
            names.append(self._name("thread_name", track_name(track), track))
            names.append(self._name("thread_sort_index", track, track))
        return names + events

    def _name(self, name: str, value: str | int, track: int = PROGRAM) -> Event:
        key = "sort_index" if isinstance(value, int) else "name"
        return {"ph": "M", "name": name, "pid": self.timeline.rank, "tid": track, "args": {key: value}}

    def _program(self) -> Iterator[Event]:
        """Yield spans, blocking calls, and waits for other calls."""
        slices: list[tuple[str, str, float, float, Event]]
        slices = [(span.name, SPAN, span.began, span.ended, {}) for span in self.timeline.spans]
        for call in self.timeline.calls:
            if _is_blocking(call):
                slices.append((call.name, COLLECTIVE, call.began, call.ended, _facts(call)))
            elif call.waited < call.ended:
                slices.append((f"wait for {call.name}", WAIT, call.waited, call.ended, _key(call)))
        return self._placed(slices, PROGRAM)

    def _turns(self) -> Iterator[Event]:
        """Yield what the progress threads did for calls; a thread does one thing after the other."""
        calls = self.timeline.calls
        for thread, call, began, ended, *counts in self.timeline.turns.tolist():
            facts = _key(calls[call]) | dict(zip(COUNTS, counts))
            track = (DRIVER, PYTHON_THREAD)[thread]
            yield self._slice(f"advance {calls[call].name}", TURN, began * 1e-9, ended * 1e-9, track, facts)

    def _in_flight(self) -> Iterator[Event]:
        """Yield nonblocking and persistent calls, from their start until they are complete."""
        calls = [call for call in self.timeline.calls if not _is_blocking(call)]
        return self._placed([(c.name, COLLECTIVE, c.began, c.ended, _facts(c)) for c in calls], IN_FLIGHT)

    def _placed(self, slices: Sequence[tuple[str, str, float, float, Event]], first: int) -> Iterator[Event]:
        tracks = place([(began, ended) for _, _, began, ended, _ in slices])
        for track, (name, category, began, ended, args) in zip(tracks, slices, strict=True):
            yield self._slice(name, category, began, ended, first + track, args)

    def _messages(self) -> list[Event]:
        """Return the steps of plans: how long each waits for its messages, its local work after them, and arrows."""
        of_rank = steps(self.timeline, self.numbers)
        table, keys, events = of_rank.messages, [_key(call) for call in self.timeline.calls], list[Event]()
        rows_of_ends = np.stack([table[:, PEER], table[:, NBYTES], of_rank.numbers], axis=1).tolist()
        ends = list(zip(table[:, KIND].tolist(), rows_of_ends))
        first = table[of_rank.first]
        posted, arrived, ended = ((first[:, column] * 1e-9 - self.origin) * 1e6 for column in (POSTED, ARRIVED, ENDED))
        # A message of a call that broke off arrived at 0, so that its step is as short as can be.
        ts, dur = np.round(posted, 3), np.round(np.maximum(arrived - posted, SHORTEST), 3)
        work = np.where(ended > arrived, np.round(np.maximum(ended - arrived, SHORTEST), 3), 0.0)
        times = np.stack([ts, dur, np.round(ts + dur - SHORTEST / 2, 4), np.round(arrived, 3), work], axis=1).tolist()
        stops = np.append(of_rank.first[1:], len(table))[: len(first)]
        bounds = np.stack([of_rank.first, stops, of_rank.call, MESSAGES + of_rank.track], axis=1).tolist()
        places = first[:, (STEP, CHUNK, STRAND)].tolist()
        for (at, stop, call, track), (step, chunk, strand), values in zip(bounds, places, times):
            ts, dur, end, work_ts, work_dur = values
            sends = [row for kind, row in ends[at:stop] if kind == SEND]
            receives = [row for kind, row in ends[at:stop] if kind not in (SEND, NO_MESSAGE)]
            place = {"pid": self.timeline.rank, "tid": track}
            args = {**keys[call], "step": step, "chunk": chunk, "strand": strand}
            if sends or receives:
                event = {"ph": "X", "name": _waiting(sends, receives), "cat": MESSAGE, **place, "ts": ts, "dur": dur}
                events += [{**event, "args": {**args, "sends": sends, "receives": receives}}]
                arrow = {"name": MESSAGE, "cat": MESSAGE}
                events += [{"ph": "s", **arrow, "id": n, **place, "ts": ts} for *_, n in sends if n != UNMATCHED]
                into = {**place, "ts": end, "bp": "e"}
                events += [{"ph": "f", **arrow, "id": n, **into} for *_, n in receives if n != UNMATCHED]
            if work_dur:
                event = {"ph": "X", "name": "reduce or copy", "cat": MESSAGE, **place, "ts": work_ts, "dur": work_dur}
                events += [{**event, "args": args}]
        return events

    def _slice(self, name: str, category: str, began: float, ended: float, track: int, args: Event) -> Event:
        ts, end = ((time - self.origin) * 1e6 for time in (began, ended))
        times = {"ts": round(ts, 3), "dur": round(max(end - ts, SHORTEST), 3)}
        place = {"pid": self.timeline.rank, "tid": track}
        return {"ph": "X", "name": name, "cat": category, **place, **times, "args": args}


def _is_blocking(call: Call) -> bool:
    return bool(call.facts["form"] == "blocking")


def _key(call: Call) -> Event:
    """Return the arguments that name a call on all its ranks."""
    return {"communicator": call.communicator, "call": call.number, "start": call.start}


def _facts(call: Call) -> Event:
    return _key(call) | call.facts | {"exposed_us": round(1e6 * (call.ended - call.waited), 3)}


def _waiting(sends: Sequence[Sequence[int]], receives: Sequence[Sequence[int]]) -> str:
    """Return the name of a step that sends or receives."""
    if receives:
        return f"wait for {_ranks(sorted({peer for peer, _, _ in receives}))}"
    return f"send to {_ranks([peer for peer, _, _ in sends])}"


def _ranks(peers: Sequence[int]) -> str:
    return f"rank {peers[0]}" if len(peers) == 1 else f"ranks {', '.join(map(str, peers))}"
