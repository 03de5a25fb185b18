"""Choose the recorded calls that the page lays beside its schedules.

A call stands for its kind: the median by the time from the beginning of its last rank to the end of its last rank, of
which `mpicoll timeline` prints the fastest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ...cost.chunks import check_messages, cut
from ...errors import ArgumentError, ParameterError, TimelineError, UnknownAlgorithm
from ...schedules.collectives import base_collective
from ...schedules.registry import parse_spec
from ...schedules.schedule import Schedule
from ...selection.select import NATIVE
from ...timeline.read import Part, TimelineFile
from .choose import MOST_RANKS, Key, NodesByRanks, orders
from .recording import Kind, Recording
from .timing import short

MOST_MESSAGES = 50_000  # of all ranks and chunks of a call that the page simulates
Present = Sequence[tuple[Key, Schedule]]


class Measured(NamedTuple):
    """The recorded calls of a page, by the keys of their schedules; and a line about each kind that it leaves out."""

    path: str
    clock_error_us: float
    recordings: dict[str, list[Recording]]
    notes: list[str]

    def facts(self) -> dict[str, Any]:
        """Return what the page says of the file."""
        return {"file": self.path, "clock_error": short(self.clock_error_us), "notes": self.notes}


def medians(timeline: TimelineFile, collectives: Sequence[str] = ()) -> tuple[list[Recording], list[str]]:
    """Return the median call of each kind, and a line about each kind whose messages the file does not have.

    collectives: those to take, all if none is named. Raises ValueError if the file has no call of these.
    """
    wanted = {*map(base_collective, collectives)}
    kinds: dict[Kind, list[Recording]] = defaultdict(list)
    for key, call in timeline.calls.items():
        kind = _kind(call)
        if not wanted or kind.collective in wanted:
            kinds[kind].append(Recording(kind, call, timeline.steps.get(key, []), 0))
    recorded = {base_collective(call[0].facts["collective"]) for call in timeline.calls.values()}
    if not kinds:
        raise ValueError(f"{timeline.path} has no {', '.join(sorted(wanted))}; it has {', '.join(sorted(recorded))}")
    notes = [f"The file has no {name}." for name in sorted(wanted - recorded)]
    chosen = []
    for kind, calls in kinds.items():
        complete = [call for call in calls if len(call.call) == kind.p and call.steps and call.is_complete()]
        if not complete:
            notes.append(f"{kind.title}: {_no_messages(kind)}.")
            continue
        complete.sort(key=lambda call: max(part.ended for part in call.call) - max(call.began))
        median = complete[(len(complete) - 1) // 2]
        chosen.append(Recording(kind, median.call, median.steps, len(complete)))
    return chosen, notes


def _no_messages(kind: Kind) -> str:
    """Return why no call of a kind has all its messages in the file."""
    if kind.p == 1:
        return "a single rank sends no messages"
    if kind.spec == NATIVE:
        return "messages of the MPI's own algorithms are not recorded"
    return "no call has all its messages in the file"


def _kind(call: Sequence[Part]) -> Kind:
    """Return the kind of a call. Raises TimelineError if its facts are damaged."""
    facts = call[0].facts
    p, root, chunk_bytes = facts.get("ranks"), facts.get("root"), facts.get("chunk_bytes")
    world = sorted(part.rank for part in call)
    if type(p) is not int or p < 1 or not (chunk_bytes is None or (type(chunk_bytes) is int and chunk_bytes > 0)):
        raise TimelineError(
            f"call {facts['call']} on {facts['communicator']} has ranks {p!r} and chunk_bytes {chunk_bytes!r}, "
            "which no version writes; record the timeline again"
        )
    local_root = world.index(root) if root in world else 0
    collective = base_collective(facts["collective"])
    return Kind(call[0].name, collective, facts["algorithm"], p, local_root, facts["bytes"], chunk_bytes)


def lay_beside(
    timeline: TimelineFile, recordings: Sequence[Recording], notes: Sequence[str], present: Present, nodes: NodesByRanks
) -> tuple[Measured, list[tuple[Key, Schedule]]]:
    """Return the calls by the keys of their schedules, and the schedules that are not present yet.

    Raises ValueError, with the reasons, if no call can be shown.
    """
    by_key: dict[str, list[Recording]] = defaultdict(list)
    new: dict[str, tuple[Key, Schedule]] = {}
    refused = [*notes]
    for recording in recordings:
        try:
            key, schedule = _schedule(recording, [*present, *new.values()], nodes)
        except ValueError as error:
            refused.append(f"{recording.kind.title}: {error}.")
            continue
        if not any(str(key) == str(other) for other, _ in present):
            new[str(key)] = key, schedule
        by_key[str(key)].append(recording)
    if not by_key:
        raise ValueError(f"{timeline.path} has no call to show beside the model. {' '.join(refused)}")
    return Measured(timeline.path, timeline.facts.get("clock_error_us", 0.0), dict(by_key), refused), [*new.values()]


def _schedule(recording: Recording, present: Present, nodes: NodesByRanks) -> tuple[Key, Schedule]:
    """Return the schedule that a call ran, the present one if there is one. Raises ValueError with a reason."""
    kind = recording.kind
    try:
        entry, parameters = parse_spec(kind.collective, kind.spec)
    except (UnknownAlgorithm, ParameterError):
        raise ValueError(f"the registry has no {kind.collective} {kind.spec}; --load FILE adds algorithms") from None
    if kind.p > MOST_RANKS:
        raise ValueError(f"a page has up to {MOST_RANKS} ranks")
    if kind.p not in nodes:
        raise ValueError(f"the options place no {kind.p} ranks on nodes")
    for key, schedule in orders(entry, kind.p, kind.root, nodes[kind.p], dict(parameters)):
        if recording.fits(schedule):
            try:
                check_messages(schedule, cut(schedule, kind.nbytes, kind.chunk_bytes)[1], MOST_MESSAGES)
            except ArgumentError as error:
                raise ValueError(str(error)) from None
            facts = schedule.algorithm, schedule.resolved  # whose parameters may be written otherwise
            alike = ((k, s) for k, s in present if replace(k, spec=key.spec) == key)
            return next(((k, s) for k, s in alike if (s.algorithm, s.resolved) == facts), (key, schedule))
    raise ValueError("its messages are not those on the page's nodes (--ranks-per-node), graph and order of ranks")
