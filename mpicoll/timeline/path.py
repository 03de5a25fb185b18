"""The critical path of a call: the chain of waiting and working, from rank to rank, that ended last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from .match import UNMATCHED
from .read import Part

BEGIN, BEFORE, MESSAGE, WORK = "late", "before the first message", "message", "reduce or copy"
BETWEEN = "between steps"  # the engine was not polled, or served other chunks


class Link(NamedTuple):
    """A part of a critical path: what took time on which rank, and the rank from which the message came, if any."""

    what: str
    rank: int
    source: int | None
    began: float
    ended: float


class _Step(NamedTuple):
    """A step of a plan: its wait for messages."""

    part: Part
    position: int  # among those of its track
    ended: float  # of the local work after it


def critical_path(call: Sequence[Part], steps: Sequence[Part]) -> list[Link]:
    """Return the chain that ended last, the first link first; empty if no messages of the call were recorded.

    It is followed backwards: a step ends when its last message has come, which its sender posted when it was ready, so
    the chain continues there if that was later than the receiver was ready, else in the step before.
    """
    tracks = _tracks(steps)
    if not tracks:
        return []
    all_steps = [step for of_track in tracks.values() for step in of_track]
    senders = {number: step for step in all_steps for _, _, number in step.part.facts["sends"] if number != UNMATCHED}
    last = max(all_steps, key=lambda step: step.ended)
    step: _Step | None = last
    links, cursor = list[Link](), last.ended
    while step is not None:
        wait, rank = step.part, step.part.rank
        if cursor > step.ended:
            links.append(Link(BETWEEN, rank, None, step.ended, cursor))
        if step.ended > wait.ended:
            links.append(Link(WORK, rank, None, wait.ended, step.ended))
        source = _last_to_be_ready(step, senders)
        peers = [peer for peer, _, _ in wait.facts["receives"]]
        peer = source.part.rank if source is not step else next(iter(peers), None)
        links.append(Link(MESSAGE, rank, peer, source.part.began, wait.ended))
        goes_back, cursor = source.part.began < cursor, source.part.began
        rank, track = source.part.rank, tracks[source.part.rank, source.part.track]
        step = track[source.position - 1] if source.position and goes_back else None
    return [*_beginning(call, rank, cursor), *links[::-1]]


def _last_to_be_ready(step: _Step, senders: Mapping[int, _Step]) -> _Step:
    """Return the step whose beginning a step's messages waited for last: a sender's, or its own."""
    sources = [senders[number] for _, _, number in step.part.facts["receives"] if number in senders]
    ready = [source for source in sources if step.part.began < source.part.began < step.part.ended]
    return max(ready, key=lambda source: source.part.began, default=step)


def _beginning(call: Sequence[Part], rank: int, posted: float) -> Iterator[Link]:
    """Yield what came before the first message of a path: the rank was late, and then got ready."""
    began = {part.rank: part.began for part in call}
    first = min(began.values())
    if began.get(rank, first) > first:
        yield Link(BEGIN, rank, None, first, began[rank])
    if posted > began.get(rank, posted):
        yield Link(BEFORE, rank, None, began[rank], posted)


def _tracks(steps: Sequence[Part]) -> dict[tuple[int, int], list[_Step]]:
    """Return the steps with messages of each rank's tracks, in order."""
    parts: dict[tuple[int, int], list[Part]] = defaultdict(list)
    for part in steps:
        parts[part.rank, part.track].append(part)
    tracks: dict[tuple[int, int], list[_Step]] = {}
    for place, of_track in parts.items():
        of_track.sort(key=lambda part: part.began)
        ended = list[_Step]()
        for part in of_track:
            if "receives" in part.facts:
                ended.append(_Step(part, len(ended), part.ended))
            elif ended:  # the local work after it
                ended[-1] = ended[-1]._replace(ended=part.ended)
        if ended:
            tracks[place] = ended
    return tracks
