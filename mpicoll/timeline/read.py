"""Read timelines of mpicoll's from files."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import TimelineError
from .trace_events import COLLECTIVE, COUNTS, MESSAGE, SPAN, TURN, WAIT

Key = tuple[str, int, int]  # communicator, call and start: what names a call on all its ranks
Types = AbstractSet[type]
NUMBER: Types = {int, float}
DAMAGED = (KeyError, TypeError, ValueError, OverflowError)
_PLACES: dict[str, Types] = {"pid": {int}, "tid": {int}, "name": {str}, "ts": NUMBER, "dur": NUMBER, "args": {dict}}
_PLACE = itemgetter(*_PLACES)
_FACTS: dict[str, Types] = {"communicator": {str}, "call": {int}, "start": {int}}
_KEY = itemgetter(*_FACTS)
_TEXTS: dict[str, Types] = {key: {str} for key in ("collective", "form", "algorithm")}
STEP = "strand", "chunk", "step"  # which name a step of a call on a rank
_OF_CATEGORY = {
    COLLECTIVE: {**_FACTS, **_TEXTS, "bytes": {int}, "exposed_us": NUMBER},
    MESSAGE: {**_FACTS, **{key: {int} for key in STEP}},
    TURN: {**_FACTS, **{key: {int} for key in COUNTS}},
}
_CATEGORIES = (COLLECTIVE, MESSAGE, WAIT, SPAN, TURN)
_OPTIONAL = ("root", "sent", "received")  # numbers that not every call has
MOST = 1e18  # microseconds that a clock may show, and more than any count: beyond it, or NaN, a file is damaged
_OF_FILE = {"clock_error_us", "dropped_calls", "dropped_turns", "lost_messages", "messages", "unmatched_messages"}


class Part(NamedTuple):
    """A part of one rank's time, in microseconds: a call, or a step of one, with what the file says of it."""

    rank: int
    track: int
    name: str
    began: float
    ended: float
    facts: dict[str, Any]

    @property
    def key(self) -> Key:
        """Return what names the call on all its ranks."""
        return self.facts["communicator"], self.facts["call"], self.facts["start"]


class TimelineFile(NamedTuple):
    """The contents of a file: by what names a call, its parts on all ranks, and the steps of its plans; and facts.

    program has the waits and spans of the program, turns those of the progress threads.
    """

    path: str
    calls: dict[Key, list[Part]]
    steps: dict[Key, list[Part]]
    program: list[Part]
    facts: dict[str, Any]
    turns: Sequence[Part] = ()


class Trace(NamedTuple):
    """A file of the Trace Event Format: its events, and what it says beside them."""

    path: str
    events: list[Any]
    content: dict[str, Any]


def load(path: str | Path) -> Trace:
    """Return the events of a file. Raises TimelineError for one without any, OSError for one that cannot be read."""
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            content = json.load(file)
    except json.JSONDecodeError as error:
        begins, ends = error.doc.lstrip()[:1] in ("{", "["), error.doc.rstrip().endswith(("}", "]"))
        cut = ": its end is missing" if begins and not ends else ": it is empty" if not error.doc.strip() else ""
        raise TimelineError(f"{path} is no JSON{cut} ({error})") from None
    except RecursionError:
        raise TimelineError(f"{path} is no trace: its JSON is nested too deeply") from None
    except (ValueError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise TimelineError(f"{path} cannot be decoded: {error}") from None
    events = content.get("traceEvents") if isinstance(content, dict) else content
    if not isinstance(events, list):
        raise TimelineError(f"{path} has no traceEvents; `mpicoll run --timeline FILE program.py` writes a timeline")
    return Trace(str(path), events, content if isinstance(content, dict) else {})


def is_timeline(trace: Trace) -> bool:
    """Return whether mpicoll wrote a trace, not another program."""
    return any("communicator" in facts for event in _own(trace) if isinstance(facts := event.get("args"), dict))


def read(path: str | Path) -> TimelineFile:
    """Return a timeline. Raises TimelineError for a file that is none, OSError for one that cannot be read."""
    return timeline_of(load(path))


def timeline_of(trace: Trace) -> TimelineFile:
    """Return the timeline that a trace is. Raises TimelineError if it is none."""
    path, facts = trace.path, trace.content.get("otherData")
    events = _own(trace)
    calls, steps = (_by_call(_checked(trace, events, category)) for category in (COLLECTIVE, MESSAGE))
    if not calls:
        raise TimelineError(f"{path} has no collectives of mpicoll's among its {len(trace.events)} events")
    for key, parts in calls.items():
        if len({part.rank for part in parts}) < len(parts):
            raise TimelineError(f"{path} has {_named(key)} twice on a rank: it is made of several runs")
    facts = facts if isinstance(facts, dict) else {}
    for name in facts.keys() & _OF_FILE:
        if type(facts[name]) not in NUMBER or not abs(facts[name]) < MOST:
            raise TimelineError(f"{path}: {name} of its otherData is no number")
    program = [part for category in (WAIT, SPAN) for part in _checked(trace, events, category)]
    return TimelineFile(path, calls, steps, program, facts, _checked(trace, events, TURN))


def _own(trace: Trace) -> list[dict[str, Any]]:
    """Return the events that are of a category of mpicoll's parts."""
    events = [event for event in trace.events if type(event) is dict and "cat" in event]
    return [event for event in events if event["cat"] in _CATEGORIES and event.get("ph") == "X"]


def _by_call(parts: Sequence[Part]) -> dict[Key, list[Part]]:
    calls: dict[Key, list[Part]] = defaultdict(list)
    for key, part in zip([_KEY(part.facts) for part in parts], parts):
        calls[key].append(part)
    return dict(calls)


def _checked(trace: Trace, own: Sequence[dict[str, Any]], category: str) -> list[Part]:
    """Return the parts of a category. Raises TimelineError, which names a damaged event."""
    events = [event for event in own if event["cat"] == category]
    try:
        return _parts(events, category)
    except DAMAGED:
        for event in events:
            try:
                _parts([event], category)
            except DAMAGED as error:
                index = trace.events.index(event)
                raise TimelineError(f"{trace.path}: event {index} is no {category} of mpicoll's: {error}") from None
        raise


def _parts(events: Sequence[dict[str, Any]], category: str) -> list[Part]:
    """Return the parts that events of a category are. Raises one of DAMAGED.

    Values are checked a column at a time, since there may be a million of events.
    """
    if not events:
        return []
    ranks, tracks, names, began, took, facts = columns = list(zip(*map(_PLACE, events)))
    for (name, types), values in zip(_PLACES.items(), columns):
        _require(name, values, types)
    for name, types in _OF_CATEGORY.get(category, {}).items():
        _require(name, [values[name] for values in facts], types)
    if category == MESSAGE:
        _check_messages(facts)
    if category == COLLECTIVE:
        for name in _OPTIONAL:
            _require(name, [values[name] for values in facts if name in values], {int})
        texts = [values[name] for values in facts for name in ("communicator", *_TEXTS)]
        if not all(map(str.isprintable, (*names, *texts))):
            raise ValueError("a name has characters that control a terminal")
    times = np.array([began, took], float)
    if not np.isfinite(times).all():
        raise ValueError("its time is not finite")
    return list(map(Part, ranks, tracks, names, times[0].tolist(), (times[0] + times[1]).tolist(), facts))


def _check_messages(facts: Sequence[dict[str, Any]]) -> None:
    """Raise ValueError if the messages of steps are not rows of peer, bytes and number."""
    rows = [
        row
        for values in facts
        if "sends" in values or "receives" in values
        for end in (values["sends"], values["receives"])
        for row in end
    ]
    _require("a message", rows, {list})
    if not {*map(len, rows)} <= {3}:
        raise ValueError("a message has not three numbers")
    _require("a number of a message", list(chain.from_iterable(rows)), {int})


def _require(name: str, values: Sequence[Any], types: Types) -> None:
    """Raise ValueError if a value has none of the types."""
    if not types >= {*map(type, values)}:
        raise ValueError(f"{name} is {next(value for value in values if type(value) not in types)!r}")


def _named(key: Key) -> str:
    communicator, call, start = key
    return f"call {call}{f', start {start},' if start else ''} on {communicator}"
