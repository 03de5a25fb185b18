"""The report of a call that stands still: who waits, in what, for whom, and which ranks are missing."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from mpi4py import MPI

from .attendant import ATTENDANT
from .flight import Flight
from .select import NATIVE
from .settings import Settings
from .whereabouts import MANY, Answer, ending, place, tell
from .words import last_words, say

if TYPE_CHECKING:
    from .channel import Channel

PATIENCE = 0.5  # seconds that a report waits for answers


def report(flight: Flight, channel: Channel, seconds: float) -> str:
    """The text of one rank's report on one call."""
    choice, one = flight.choice, flight.standing
    how = choice.why if choice.algorithm == NATIVE else f"{choice.algorithm}, {choice.engine} engine"
    start = f", start {one.start}" if one.start else ""
    others = [rank for rank in range(channel.size) if rank != channel.rank]
    lines = [
        f"{one.name} (call {one.call}{start}, {how}) has not moved for {seconds:.0f} s",
        *(f"  {line}" for line in flight.describe()),
        *(f"  {line}" for line in tell(one, others, flight.waited_for(), channel.notes.told)),
    ]
    return "\n".join(f"mpicoll: rank {channel.rank}: {line}" for line in lines)


def answer(channel: Channel, asked: Iterable[int]) -> Answer:
    """Where this rank is, for another that asks how often these persistent collectives were started."""
    calls, error = channel.refused
    where, inside = place()
    return Answer(
        channel.sequence,
        [flight.standing for flight in channel.flying[:MANY]],
        {call: int(channel.started[call][0]) for call in asked if call in channel.started},
        error if calls == channel.sequence else "",
        where,
        inside,
        ending() if ATTENDANT.parting else "",
    )


def attend(channel: Channel) -> None:
    """Answer who asks where this rank is, unless another thread is at it or MPI is not as it should be."""
    if channel.lock.acquire(blocking=False):
        try:
            if not channel.over:
                channel.notes.take_in(lambda calls: answer(channel, calls))
        except MPI.Exception:
            logging.getLogger("mpicoll").debug("notes of other ranks cannot be read", exc_info=True)
        finally:
            channel.lock.release()


def farewell(channel: Channel) -> None:
    """Tell the others that the program of this rank has ended: nobody will be here to answer."""
    with channel.lock:
        channel.notes.tell_all(answer(channel, channel.started))


def watch(channel: Channel, now: float) -> None:
    """Print a report for flights that stand still, once; abort the run where MPICOLL_TIMEOUT asked for it.

    The ranks ask each other where they are a little before, and the abort comes a little after, so that the other
    stuck ranks can print theirs.
    """
    settings = channel.settings
    still = {flight: flight.stalled(now) for flight in channel.flying}
    slow = [f for f, seconds in still.items() if seconds > settings.timeout - lead(settings) and not f.reported]
    if slow:
        channel.notes.ask(now, [flight.sequence for flight in channel.flying if flight.start][:MANY])
    channel.notes.look(now, lambda calls: answer(channel, calls))
    after = settings.timeout + (0.0 if channel.notes.has_heard() else PATIENCE)
    late = [flight for flight in slow if still[flight] > after]
    if late:
        say("\n".join(report(flight, channel, still[flight]) for flight in late))
    for flight in late:
        flight.reported = True
    if settings.abort and max(still.values(), default=0.0) > settings.timeout + grace(settings):
        last_words(f"mpicoll: rank {channel.rank}: MPICOLL_TIMEOUT={settings.timeout:g} is over, aborting")
        MPI.COMM_WORLD.Abort(86)


def lead(settings: Settings) -> float:
    """Seconds from the first question to the report."""
    return min(2.0, settings.timeout / 2)


def grace(settings: Settings) -> float:
    """Seconds from the report to the abort."""
    return max(1.0, settings.timeout / 10)
