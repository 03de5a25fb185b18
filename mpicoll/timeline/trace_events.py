"""Timelines as files of the Trace Event Format, which Perfetto and Chrome's about:tracing open.

A rank is a process. Its tracks are the program, with blocking calls, waits and spans; the calls in flight; and the
messages of plans, a track for each chunk in flight. Messages are flow arrows. Times are microseconds since the first.

The format: Nat Duca, Dean Michael Berris, Trace Event Format, 2016.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from .._version import __version__
from ..engines.events import ARRIVED, CHUNK, ENDED, KIND, NBYTES, NO_MESSAGE, PEER, POSTED, SLOT, STEP, STRAND
from ..plans.plan import SEND
from .match import UNMATCHED, pair
from .model import Call, RankTimeline
from .tracks import place

COLLECTIVE, WAIT, MESSAGE, SPAN = "collective", "wait", "message", "span"  # categories
PROGRAM, IN_FLIGHT, MESSAGES = 0, 1000, 2000  # the first tracks of each group
GROUPS = {PROGRAM: "program", IN_FLIGHT: "in flight", MESSAGES: "messages"}
SHORTEST = 1e-3  # microseconds of a slice: viewers round to nanoseconds, and arrows end inside slices
Event = dict[str, Any]


def trace(timelines: Sequence[RankTimeline]) -> dict[str, Any]:
    """Return the object that the file holds."""
    began = [call.began for t in timelines for call in t.calls] + [span.began for t in timelines for span in t.spans]
    origin = min(began, default=0.0)
    numbers, pairs = pair(timelines)
    events: list[Event] = []
    for timeline, numbers_of_calls in zip(timelines, numbers, strict=True):
        events += _Rank(timeline, origin, numbers_of_calls).events()
    receives = sum(int(_is_receive(call.messages).sum()) for t in timelines for call in t.calls)
    facts = {
        "mpicoll": __version__,
        "ranks": len(timelines),
        "clock_error_us": round(1e6 * max((t.error for t in timelines), default=0.0), 3),
        "dropped_calls": max((t.dropped for t in timelines), default=0),
        "lost_messages": sum(call.lost for t in timelines for call in t.calls),
        "messages": receives,
        "unmatched_messages": receives - pairs,
    }
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": facts}


def write(content: dict[str, Any], path: str | Path) -> None:
    """Write a trace, compressed if the name ends in .gz. Raises OSError."""
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "wt", encoding="utf-8") as file:
        file.write(json.dumps(content, separators=(",", ":")) + "\n")  # ten times as fast as json.dump


def _is_receive(messages: np.ndarray) -> np.ndarray:
    kinds = messages[:, KIND]
    is_receive: np.ndarray = (kinds != SEND) & (kinds != NO_MESSAGE)
    return is_receive


class _Rank:
    """Makes the events of one rank."""

    def __init__(self, timeline: RankTimeline, origin: float, numbers: Sequence[np.ndarray]) -> None:
        self.timeline, self.origin, self.numbers = timeline, origin, numbers
        self.tracks: set[int] = set()

    def events(self) -> list[Event]:
        """Return all of them, those that name the tracks first."""
        events = [*self._program(), *self._in_flight(), *self._messages()]
        title = f"rank {self.timeline.rank} on {self.timeline.host}"
        names = [self._name("process_name", title), self._name("process_sort_index", self.timeline.rank)]
        for track in sorted(self.tracks):
            group = max(first for first in GROUPS if first <= track)
            number = f" {track - group + 1}" if track > group else ""
            names.append(self._name("thread_name", GROUPS[group] + number, track))
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

    def _in_flight(self) -> Iterator[Event]:
        """Yield nonblocking and persistent calls, from their start until they are complete."""
        calls = [call for call in self.timeline.calls if not _is_blocking(call)]
        return self._placed([(c.name, COLLECTIVE, c.began, c.ended, _facts(c)) for c in calls], IN_FLIGHT)

    def _placed(self, slices: Sequence[tuple[str, str, float, float, Event]], first: int) -> Iterator[Event]:
        tracks = place([(began, ended) for _, _, began, ended, _ in slices])
        for track, (name, category, began, ended, args) in zip(tracks, slices, strict=True):
            yield self._slice(name, category, began, ended, first + track, args)

    def _messages(self) -> Iterator[Event]:
        """Yield the steps of plans: how long each waits for its messages, and its local work after them."""
        units = list(self._units())
        spans = [(rows[0][POSTED] * 1e-9, max(rows[-1][POSTED], rows[-1][ENDED]) * 1e-9) for _, rows in units]
        for track, (call, rows) in zip(place(spans, nested=False), units, strict=True):
            for _, step in groupby(rows, key=itemgetter(CHUNK, STEP)):
                yield from self._step(call, list(step), MESSAGES + track)

    def _units(self) -> Iterator[tuple[Call, list[list[int]]]]:
        """Yield the rows of each chunk slot of each call, in which step follows step, each with its number behind."""
        for call, numbers in zip(self.timeline.calls, self.numbers, strict=True):
            units: dict[tuple[int, int], list[list[int]]] = defaultdict(list)
            for row, number in zip(call.messages.tolist(), numbers.tolist(), strict=True):
                units[row[STRAND], row[SLOT]].append([*row, number])
            for rows in units.values():
                yield call, rows

    def _step(self, call: Call, rows: list[list[int]], track: int) -> Iterator[Event]:
        posted, arrived, ended = (rows[0][column] * 1e-9 for column in (POSTED, ARRIVED, ENDED))
        arrived = max(arrived, posted)  # 0 if the call broke off
        place = {"step": rows[0][STEP], "chunk": rows[0][CHUNK], "strand": rows[0][STRAND]}
        ends: dict[str, list[list[int]]] = {"sends": [], "receives": []}
        for *row, number in rows:
            if row[KIND] != NO_MESSAGE:
                ends["sends" if row[KIND] == SEND else "receives"].append([row[PEER], row[NBYTES], number])
        peers = sorted({peer for peer, _, _ in ends["receives"]})
        if ends["sends"] or peers:
            name = f"wait for {_ranks(peers)}" if peers else f"send to {_ranks([peer for peer, _, _ in ends['sends']])}"
            event = self._slice(name, MESSAGE, posted, arrived, track, _key(call) | place | ends)
            yield event
            yield from self._arrows(event, ends)
        if ended > arrived:
            yield self._slice("reduce or copy", MESSAGE, arrived, ended, track, _key(call) | place)

    def _arrows(self, event: Event, ends: dict[str, list[list[int]]]) -> Iterator[Event]:
        for _, _, number in ends["sends"]:
            if number != UNMATCHED:
                yield self._arrow("s", event, event["ts"], number)
        for _, _, number in ends["receives"]:
            if number != UNMATCHED:
                yield self._arrow("f", event, event["ts"] + event["dur"] - SHORTEST / 2, number) | {"bp": "e"}

    def _arrow(self, phase: str, event: Event, ts: float, number: int) -> Event:
        place = {"pid": event["pid"], "tid": event["tid"], "ts": round(ts, 4)}
        return {"ph": phase, "name": MESSAGE, "cat": MESSAGE, "id": number, **place}

    def _slice(self, name: str, category: str, began: float, ended: float, track: int, args: Event) -> Event:
        self.tracks.add(track)
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


def _ranks(peers: Sequence[int]) -> str:
    return f"rank {peers[0]}" if len(peers) == 1 else f"ranks {', '.join(map(str, peers))}"
