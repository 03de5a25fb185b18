"""The report of a call that stands still: who waits, in what, for whom."""

from __future__ import annotations

from collections.abc import Iterable

from mpi4py import MPI

from .flight import Flight
from .select import NATIVE
from .settings import Settings
from .words import last_words, say


def report(flights: Iterable[Flight], rank: int, seconds: float) -> str:
    """The text of one rank's report."""
    lines = []
    for flight in flights:
        choice = flight.choice
        how = choice.why if choice.algorithm == NATIVE else f"{choice.algorithm}, {choice.engine} engine"
        lines.append(
            f"mpicoll: rank {rank}: {choice.collective} (call {flight.sequence}, {how}) "
            f"has not moved for {seconds:.0f} s"
        )
        lines += [f"mpicoll: rank {rank}:   {line}" for line in flight.describe()]
    lines.append(
        f"mpicoll: rank {rank}: a peer that is waited for has not made this call, or waits in another; "
        "MPICOLL_CHECK=1 names the ranks that differ"
    )
    return "\n".join(lines)


def watch(flights: list[Flight], rank: int, settings: Settings, now: float) -> None:
    """Print a report for flights that stand still, once; abort the run where MPICOLL_TIMEOUT asked for it.

    The abort comes a little after the report, so that the other stuck ranks can print theirs.
    """
    still = {flight: flight.stalled(now) for flight in flights}
    late = [f for f, seconds in still.items() if seconds > settings.timeout and not f.reported]
    if late:
        say(report(late, rank, max(still[f] for f in late)))
    for flight in late:
        flight.reported = True
    if settings.abort and max(still.values(), default=0.0) > settings.timeout + grace(settings):
        last_words(f"mpicoll: rank {rank}: MPICOLL_TIMEOUT={settings.timeout:g} is over, aborting")
        MPI.COMM_WORLD.Abort(86)


def grace(settings: Settings) -> float:
    """Seconds from the report to the abort."""
    return max(1.0, settings.timeout / 10)
