"""The report of a call that stands still: who waits, in what, for whom, and which ranks are missing.

A call is reported when it has stood still for the time that was set. But it is asked after much earlier, and where the
answers say that a rank raised an error, ended or made another call, so that waiting is in vain, it is reported at once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from ..selection.select import NATIVE
from ..selection.settings import Settings
from ..stderr import last_words, say
from .inquiry import LOOK, Notes
from .operation import Flight
from .responder import ATTENDANT
from .status import MANY, Answer, Failure, Finding, ending, find, place, tell

EARLY = 2.0  # seconds that a call stands still before the others are asked, and again after twice as long
PATIENCE = 0.5  # seconds that a report waits for answers
EARLY_PATIENCE = 1.0  # the same, for one that comes before its time: it leaves out who has not answered
HASTE = 0.5  # seconds that a call stands still at least, whatever is known


class Watched(Protocol):
    """What the watchdog looks at: a channel."""

    rank: int
    settings: Settings
    notes: Notes
    lock: Any
    flying: list[Flight]
    started: dict[int, np.ndarray]
    failures: list[Failure]
    over: bool

    @property
    def sequence(self) -> int:
        """The number of the last call."""


def findings(flight: Flight, channel: Watched, ranks: Iterable[int]) -> dict[int, Finding]:
    """Which of these ranks are not in this call, and why, by what was told."""
    return find(flight.standing, ranks, flight.waited_for(), channel.notes.told, channel.failures)


def report(flight: Flight, channel: Watched, seconds: float, ranks: Iterable[int] | None = None) -> str:
    """The text of one rank's report on one call; of ranks, all others if None, it says who is missing."""
    choice, one = flight.choice, flight.standing
    how = choice.why if choice.algorithm == NATIVE else f"{choice.algorithm}, {choice.engine} engine"
    start = f", start {one.start}" if one.start else ""
    missing = findings(flight, channel, channel.notes.others if ranks is None else ranks)
    lines = [
        f"{one.name} (call {one.call}{start}, {how}) has not moved for {seconds:.0f} s",
        *(f"  {line}" for line in flight.describe()),
        *(f"  {line}" for line in tell(missing)),
    ]
    return "\n".join(f"mpicoll: rank {channel.rank}: {line}" for line in lines)


def answer(channel: Watched) -> Answer:
    """Where this rank is, for another that asks."""
    where, inside = place()
    return Answer(
        channel.sequence,
        [flight.standing for flight in channel.flying[:MANY]],
        {call: int(starts[0]) for call, starts in channel.started.copy().items()},
        channel.failures,
        where,
        inside,
        ending(ATTENDANT.error) if ATTENDANT.parting else "",
    )


def attend(channel: Watched) -> None:
    """Answer who asks where this rank is, unless another thread is at it or MPI is not as it should be."""
    if channel.lock.acquire(blocking=False):
        try:
            with _forgiving():
                if not channel.over:
                    channel.notes.take_in(lambda: answer(channel))
        finally:
            channel.lock.release()


def farewell(channel: Watched) -> None:
    """Tell the others that the program of this rank has ended: nobody will be here to answer."""
    with channel.lock:
        channel.notes.tell(channel.notes.others, answer(channel))


def own_up(channel: Watched) -> None:
    """Tell those that have asked where this rank is: it has raised an error since."""
    with channel.lock, _forgiving():
        if channel.notes.askers and not channel.over:
            channel.notes.tell(channel.notes.askers, answer(channel))
            channel.notes.askers.clear()


@contextmanager
def _forgiving() -> Iterator[None]:
    """What MPI refuses of notes is no error of the program's."""
    try:
        yield
    except MPI.Exception:
        logging.getLogger("mpicoll").debug("notes of other ranks cannot be exchanged", exc_info=True)


def watch(channel: Watched, now: float) -> None:
    """Print a report for flights that stand still, once; abort the run where MPICOLL_TIMEOUT asked for it.

    The ranks ask each other where they are before, and the abort comes a little after, so that the other stuck ranks
    can print theirs.
    """
    settings, notes = channel.settings, channel.notes
    if now - notes.looked < LOOK:
        return
    still = {flight: flight.stalled(now) for flight in channel.flying}
    waiting = {flight: seconds for flight, seconds in still.items() if not flight.reported}
    vain = {flight for flight in waiting if notes.told and is_in_vain(flight, channel)}
    if vain or any(is_due(flight, seconds, settings) for flight, seconds in waiting.items()):
        notes.ask(now)
        for flight, seconds in waiting.items():
            flight.asked = seconds
    notes.look(now, lambda: answer(channel))
    heard = notes.has_heard()
    after = settings.timeout + (0.0 if heard else PATIENCE)
    late = {flight: seconds for flight, seconds in waiting.items() if seconds > after}
    told = [report(flight, channel, seconds) for flight, seconds in late.items()]
    for flight in vain if heard or now - notes.began > EARLY_PATIENCE else ():
        if flight not in late and waiting[flight] > HASTE and is_in_vain(flight, channel):  # still so
            late[flight] = waiting[flight]
            told.append(report(flight, channel, waiting[flight], notes.told))
    if told:
        say("\n".join(told))
    for flight in late:
        flight.reported = True
    if settings.abort and max(still.values(), default=0.0) > settings.timeout + grace(settings):
        last_words(f"mpicoll: rank {channel.rank}: MPICOLL_TIMEOUT={settings.timeout:g} is over, aborting")
        MPI.COMM_WORLD.Abort(86)


def is_in_vain(flight: Flight, channel: Watched) -> bool:
    """Whether what was told before now says that no waiting helps. In check mode ranks that differ come to raise.

    Messages that a rank sent before it told have been looked for since.
    """
    told = channel.notes.told
    return any(
        finding.certain and (not channel.settings.check or told[rank].ended)
        for rank, finding in findings(flight, channel, channel.notes.others).items()
    )


def is_due(flight: Flight, seconds: float, settings: Settings) -> bool:
    """Whether the others are to be asked: early, at growing intervals, and before a report."""
    return seconds > max(EARLY, 2 * flight.asked) or seconds > settings.timeout - lead(settings)


def lead(settings: Settings) -> float:
    """Seconds from the first question to the report."""
    return min(2.0, settings.timeout / 2)


def grace(settings: Settings) -> float:
    """Seconds from the report to the abort."""
    return max(1.0, settings.timeout / 10)
