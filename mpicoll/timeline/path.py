"""The critical path of a call: the chain of waiting and working, from rank to rank, that ended last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from .read import Part

BEGIN, BEFORE, MESSAGE, WORK = "late", "before the first message", "message", "reduce or copy"


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
    the chain goes on there if that was later than the receiver was ready, else in the step before.
    """
    tracks = _tracks(steps)
    senders = {
        number: (rank, track, step.position)
        for (rank, track), of_track in tracks.items()
        for step in of_track
        for _, _, number in step.part.facts["sends"]
    }
    if not tracks:
        return []
    rank, track = max(tracks, key=lambda place: tracks[place][-1].ended)
    position, links = len(tracks[rank, track]) - 1, list[Link]()
    cursor = tracks[rank, track][position].ended
    while True:
        step = tracks[rank, track][position]
        wait = step.part
        if cursor > wait.ended:
            links.append(Link(WORK, rank, None, wait.ended, cursor))
        source, ready, place = rank, wait.began, (rank, track, position)
        for peer, _, number in wait.facts["receives"]:
            sender = senders.get(number)
            if sender is not None:
                posted = tracks[sender[:2]][sender[2]].part.began
                if ready < posted < wait.ended:
                    source, ready, place = peer, posted, sender
        peers = [peer for peer, _, _ in wait.facts["receives"]]
        arrived_from = source if source != rank else (peers[0] if peers else None)
        links.append(Link(MESSAGE, rank, arrived_from, ready, wait.ended))
        (rank, track, position), cursor = place, ready
        if position == 0:
            break
        position -= 1
        cursor = max(cursor, tracks[rank, track][position].ended)
    began = {part.rank: part.began for part in call}
    first = min(began.values())
    if cursor > began.get(rank, cursor):
        links.append(Link(BEFORE, rank, None, began[rank], cursor))
    if began.get(rank, first) > first:
        links.append(Link(BEGIN, rank, None, first, began[rank]))
    return links[::-1]


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
