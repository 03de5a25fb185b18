"""The report of a call that stands still: who waits, in what, for whom."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from mpi4py import MPI

from .flight import Flight
from .settings import Settings


def report(flights: Iterable[Flight], rank: int, seconds: float) -> str:
    """The text of one rank's report."""
    lines = []
    for flight in flights:
        choice = flight.choice
        lines.append(
            f"mpicoll: rank {rank}: {choice.collective} (call {flight.sequence}, {choice.algorithm}, {choice.engine} engine) "
            f"has not moved for {seconds:.0f} s"
        )
        lines += [f"mpicoll: rank {rank}:   {line}" for line in flight.describe()]
    lines.append(
        f"mpicoll: rank {rank}: a peer that is waited for has not made this call, or waits in another; "
        "MPICOLL_CHECK=1 names the ranks that differ"
    )
    return "\n".join(lines)


def watch(flights: list[Flight], rank: int, settings: Settings, now: float) -> None:
    """Print a report for flights that stand still, once; abort the run where MPICOLL_TIMEOUT asked for it."""
    still = [(f, f.stalled(now)) for f in flights]
    late = [(f, s) for f, s in still if s > settings.timeout and not f.reported]
    if not late:
        return
    print(report([f for f, _ in late], rank, max(s for _, s in late)), file=sys.stderr, flush=True)
    for flight, _ in late:
        flight.reported = True
    if settings.abort:
        print(f"mpicoll: rank {rank}: MPICOLL_TIMEOUT={settings.timeout:g} is over, aborting", file=sys.stderr, flush=True)
        MPI.COMM_WORLD.Abort(86)
