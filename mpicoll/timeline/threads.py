"""Find what the progress threads of each rank did, and how much of the calls in flight they hid behind the program."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter

from .read import STEP, Key, TimelineFile

Place = tuple[int, Key]  # a rank and a call
_STEP = itemgetter(*STEP)


@dataclass
class Progress:
    """The work of a rank's progress threads, and the time that it hid, in microseconds.

    hidden: for how long calls were in flight before the program waited for them; by_threads: of this, until the end of
    the last turn for the call. After that, nothing moved before the program waited. turns, working, their time, and
    steps, which they finished, are those before the program waited; all_steps are the steps of these calls.
    """

    rank: int
    turns: int = 0
    working: float = 0.0
    steps: int = 0
    all_steps: int = 0
    hidden: float = 0.0
    by_threads: float = 0.0


def progress(timeline: TimelineFile) -> list[Progress]:
    """Return what the progress threads of each rank did and hid; empty if none did anything."""
    if not timeline.turns:
        return []
    hidden = _hidden(timeline)
    ranks = {rank: Progress(rank) for rank in sorted({of.rank for parts in timeline.calls.values() for of in parts})}
    for (rank, _), (began, waited) in hidden.items():
        ranks[rank].hidden += waited - began
    last = dict[Place, float]()  # for how long a call was in flight until the end of its last turn
    for turn in timeline.turns:
        place = turn.rank, turn.key
        began, waited = hidden.get(place, (0.0, 0.0))
        if turn.began < waited and turn.ended > began:
            of_rank = ranks[turn.rank]
            of_rank.turns += 1
            of_rank.working += turn.ended - turn.began
            of_rank.steps += turn.facts["steps"]
            last[place] = max(last.get(place, 0.0), min(turn.ended, waited) - began)
    for (rank, _), us in last.items():
        ranks[rank].by_threads += us
    for key, parts in timeline.steps.items():
        steps = {(part.rank, *_STEP(part.facts)) for part in parts if (part.rank, key) in hidden}
        for rank, *_ in steps:
            ranks[rank].all_steps += 1
    return list(ranks.values())


def _hidden(timeline: TimelineFile) -> dict[Place, tuple[float, float]]:
    """Return when calls began, and when the program began to wait for them, if that was later."""
    times = {
        (part.rank, key): (part.began, part.ended - part.facts["exposed_us"])
        for key, parts in timeline.calls.items()
        for part in parts
    }
    return {place: (began, waited) for place, (began, waited) in times.items() if waited > began}
