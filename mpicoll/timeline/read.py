"""Read timelines of mpicoll's from files."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import TimelineError
from .trace_events import COLLECTIVE, MESSAGE

Key = tuple[str, int, int]  # communicator, call and start: what names a call on all its ranks
_FACTS = {"communicator": str, "call": int, "start": int}
_OF_CALLS = {"collective": str, "form": str, "bytes": int, "algorithm": str, "exposed_us": (int, float)}


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
    """The contents of a file: by what names a call, its parts on all ranks, and the steps of its plans; and facts."""

    path: str
    calls: dict[Key, list[Part]]
    steps: dict[Key, list[Part]]
    facts: dict[str, Any]


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
        cut = "" if error.doc.rstrip().endswith(("}", "]")) else ": its end is missing"
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
    return any(_is_part(event) and "communicator" in (event.get("args") or ()) for event in trace.events)


def read(path: str | Path) -> TimelineFile:
    """Return a timeline. Raises TimelineError for a file that is none, OSError for one that cannot be read."""
    return timeline_of(load(path))


def timeline_of(trace: Trace) -> TimelineFile:
    """Return the timeline that a trace is. Raises TimelineError if it is none."""
    path = trace.path
    calls: dict[Key, list[Part]] = {}
    steps: dict[Key, list[Part]] = {}
    for index, event in enumerate(trace.events):
        if _is_part(event):
            try:
                part = _part(event)
            except (KeyError, TypeError, ValueError) as error:
                raise TimelineError(f"{path}: event {index} is no {event['cat']} of mpicoll's: {error}") from None
            (calls if event["cat"] == COLLECTIVE else steps).setdefault(part.key, []).append(part)
    if not calls:
        raise TimelineError(f"{path} has no collectives of mpicoll's among its {len(trace.events)} events")
    for key, parts in calls.items():
        if len({part.rank for part in parts}) < len(parts):
            raise TimelineError(f"{path} has {_named(key)} twice on a rank: it is made of several runs")
    facts = trace.content.get("otherData")
    return TimelineFile(path, calls, steps, facts if isinstance(facts, dict) else {})


def _is_part(event: Any) -> bool:
    return isinstance(event, dict) and event.get("ph") == "X" and event.get("cat") in (COLLECTIVE, MESSAGE)


def _part(event: dict[str, Any]) -> Part:
    facts = event["args"]
    for name, kind in (_FACTS | (_OF_CALLS if event["cat"] == COLLECTIVE else {})).items():
        if not isinstance(facts[name], kind):  # type: ignore[arg-type]
            raise ValueError(f"{name} is {facts[name]!r}")
    if event["cat"] == MESSAGE and facts.keys() & {"sends", "receives"}:
        for peer, nbytes, number in (*facts["sends"], *facts["receives"]):
            if not all(isinstance(value, int) for value in (peer, nbytes, number)):
                raise ValueError(f"a message is {[peer, nbytes, number]!r}")
    began = float(event["ts"])
    return Part(int(event["pid"]), int(event["tid"]), str(event["name"]), began, began + float(event["dur"]), facts)


def _named(key: Key) -> str:
    communicator, call, start = key
    return f"call {call}{f', start {start},' if start else ''} on {communicator}"
