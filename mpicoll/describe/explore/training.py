"""Put training steps on the page of `mpicoll explore`: which collective when, and what each rank holds.

The rows of a step are moments in the order of the program, not of the clock: a rank that got its processor late would
tear the picture apart. A moment is a cut of the run, each rank right after its own part of the event, so messages
never point upwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...errors import MpicollError
from ...schedules.collectives import base_collective
from ...schedules.registry import parse_spec
from ...schedules.schedule import Schedule
from . import page
from .choose import Key, spec_of
from .presets import Preset
from .record import Record

PREFIX = "training/"  # of the keys of steps in links
TITLE = "Training, step by step"
TOUR = (
    "Play the step, and watch what each rank holds. Dashed bands post a call, solid ones end it, and the lines between "
    "them are calls in flight. Click a band for its algorithm."
)
KINDS = "parameters", "gradients", "optimizer state", "activations"  # those of mpicoll.training.memory, in its order
STEP, PHASE, CALL = "step", "phase", "call"
BEGINS, POSTS, ENDS = "begins", "posts", "ends"  # the edges of events: a call that blocks has only an end


class Communication(NamedTuple):
    """A collective, or a message between two ranks, on one rank; times in seconds of one clock.

    key names it on all its ranks. collective is "" for a message, root the sender; both roots are ranks of COMM_WORLD,
    -1 without one. moves is the kind of memory of its buffer, "" for any other.
    """

    key: tuple[str, int, int]
    name: str
    collective: str
    algorithm: str
    root: int
    nbytes: int
    moves: str
    is_blocking: bool
    began: float
    ended: float


class RankStep(NamedTuple):
    """One rank's step: its calls; phases as (name, began, ended); bytes held, by KINDS, from a time on; its times."""

    rank: int
    host: str
    calls: list[Communication]
    phases: list[tuple[str, float, float]]
    held: list[tuple[float, tuple[int, ...]]]
    began: float
    ended: float


class Training(NamedTuple):
    """One step of a pattern, by rank, and the bytes of each kind of memory that one rank alone would hold."""

    name: str
    about: str
    ranks: Sequence[RankStep]
    whole: Sequence[int]


class Event(NamedTuple):
    """An edge of something that several ranks do: its category, edge, and the name or key of it."""

    category: str
    edge: str
    key: Any


class Moment(NamedTuple):
    """An event, and when each rank that takes part in it had done so, in seconds."""

    event: Event
    at: dict[int, float]


def build(trainings: Sequence[Training], title: str = TITLE) -> str:
    """Return the page as HTML: the steps, and the schedules of the algorithms that ran in them."""
    schedules: dict[str, tuple[Key, Schedule]] = {}
    entries = {PREFIX + training.name: step(training, schedules) for training in trainings}
    content = page.data(schedules.values())
    tours = [Preset(f"A step of {training.name}", TOUR, PREFIX + training.name)._asdict() for training in trainings]
    return page.render({**content, "presets": tours + content["presets"], "trainings": entries}, title)


def step(training: Training, schedules: dict[str, tuple[Key, Schedule]]) -> Record:
    """Return a step as the page shows it, times in ms. Adds the schedules of its collectives, by key."""
    ranks = training.ranks
    origin = min(own.began for own in ranks)

    def ms(seconds: float) -> float:
        return round(1e3 * (seconds - origin), 3)

    moments = order(ranks)
    members: dict[Any, list[int]] = defaultdict(list)
    calls: dict[Any, Record] = {}
    for own in ranks:
        for call in own.calls:
            members[call.key].append(own.rank)
            entry = calls.setdefault(call.key, {"call": call, "parts": []})
            if call.root == own.rank:
                entry["call"] = call
            entry["parts"].append([own.rank, ms(call.began), ms(call.ended)])
    first_seen = dict.fromkeys(event.key for event, _ in moments if event.category == CALL)
    hosts = {own.rank: own.host for own in ranks}
    numbers = {key: number for number, key in enumerate(first_seen)}
    return {
        "name": training.name,
        "about": training.about,
        "p": len(ranks),
        "kinds": KINDS,
        "whole": list(training.whole),
        "calls": [_call(calls[key], members[key], hosts, schedules) for key in numbers],
        "phases": [[name, rank, first, last] for name, rank, first, last in _phases(moments)],
        "moments": [
            [category, edge, numbers[key] if category == CALL else key, max(map(ms, at.values())), sorted(at)]
            for (category, edge, key), at in moments
        ],
        "held": list(_held(ranks, moments)),
    }


def order(ranks: Sequence[RankStep]) -> list[Moment]:
    """Return the moments of a step: events of all ranks, in an order that is every rank's own.

    In each round every rank advances by one event, if all ranks that take part in the event have reached it.
    """
    chains = {own.rank: deque(sorted(_events(own), key=lambda event: event[0])) for own in ranks}
    missing = Counter(event for chain in chains.values() for _, event in chain if event.category == CALL)
    moments = [Moment(Event(STEP, BEGINS, ""), {own.rank: own.began for own in ranks})]
    while any(chains.values()):
        heads: dict[Event, list[int]] = defaultdict(list)
        for rank, chain in chains.items():
            if chain:
                heads[chain[0][1]].append(rank)
        first = {event: min(chains[rank][0][0] for rank in here) for event, here in heads.items()}
        ready = [event for event, here in heads.items() if _is_ready(event, len(here), missing)]
        # None is ready if nonblocking calls ended in different orders on their ranks: then the clock decides.
        for event in sorted(ready, key=first.__getitem__) or [min(first, key=first.__getitem__)]:
            moments.append(Moment(event, {rank: chains[rank].popleft()[0] for rank in heads[event]}))
            missing[event] -= len(heads[event])
    return [*moments, Moment(Event(STEP, ENDS, ""), {own.rank: own.ended for own in ranks})]


def _is_ready(event: Event, here: int, missing: Counter[Event]) -> bool:
    if event.category != CALL:
        return True
    is_posted = event.edge == POSTS or not missing[event._replace(edge=POSTS)]
    return is_posted and here == missing[event]


def _events(own: RankStep) -> Iterator[tuple[float, Event]]:
    """Yield the events of a rank with their times. A message is posted by its sender, and ends at its receiver."""
    for name, began, ended in own.phases:
        yield began, Event(PHASE, BEGINS, name)
        yield ended, Event(PHASE, ENDS, name)
    for call in own.calls:
        is_message = not call.collective
        if not call.is_blocking and (not is_message or call.root == own.rank):
            yield call.began, Event(CALL, POSTS, call.key)
        if not is_message or call.root != own.rank:
            yield call.ended, Event(CALL, ENDS, call.key)


def _phases(moments: Sequence[Moment]) -> Iterator[tuple[str, int, int, int]]:
    """Yield the name and rank of each phase, and the moments at which it begins and ends."""
    began: dict[int, int] = {}
    for number, (event, at) in enumerate(moments):
        for rank in at if event.category == PHASE else ():
            if event.edge == BEGINS:
                began[rank] = number
            else:
                yield event.key, rank, began[rank], number


def _held(ranks: Sequence[RankStep], moments: Sequence[Moment]) -> Iterator[list[list[int]]]:
    """Yield for each moment the bytes of each kind that each rank holds."""
    times = {own.rank: [time for time, _ in own.held] for own in ranks}
    now = dict.fromkeys(times, float("-inf"))
    for _, at in moments:
        now.update(at)
        places = {rank: max(0, bisect_right(times[rank], now[rank]) - 1) for rank in now}
        yield [list(own.held[places[own.rank]][1]) for own in ranks]


def _call(
    entry: Record, members: list[int], hosts: dict[int, str], schedules: dict[str, tuple[Key, Schedule]]
) -> Record:
    call: Communication = entry["call"]
    return {
        "name": call.name,
        "algorithm": call.algorithm,
        "bytes": call.nbytes,
        "moves": call.moves,
        "ranks": sorted(members),
        "from": call.root,
        "parts": entry["parts"],
        "link": _link(call, sorted(members), hosts, schedules) if call.collective else "",
    }


def _link(
    call: Communication, members: list[int], hosts: dict[int, str], schedules: dict[str, tuple[Key, Schedule]]
) -> str:
    """Return the key of the schedule that ran, which it adds; "" for MPI's own collective, which has none."""
    collective = base_collective(call.collective)
    of_members = [hosts[rank] for rank in members]
    nodes = tuple(
        tuple(i for i, other in enumerate(of_members) if other == host) for host in dict.fromkeys(of_members)
    )
    try:
        entry, parameters = parse_spec(collective, call.algorithm)
        root = members.index(call.root) if call.root in members else 0
        key = Key(collective, spec_of(entry, dict(parameters)), len(members), root)
        if str(key) not in schedules:
            schedules[str(key)] = key, Schedule(entry, key.p, root, nodes=nodes, **dict(parameters))
    except MpicollError:
        return ""
    return str(key)
