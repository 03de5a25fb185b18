"""Works of all ranks timed in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from mpi4py import MPI

from mpicoll.garbage import collection_off


def in_turns(comm: MPI.Intracomm, works: Sequence[Callable[[], float]], seconds: float) -> list[list[float]]:
    """Return the times of each work, one value a turn: that of the slowest rank. Collective.

    A work returns its seconds on this rank, and begins after a barrier. There are turns for so many seconds, at least
    one.
    """
    times: list[list[float]] = [[] for _ in works]
    until = time.perf_counter() + seconds
    with collection_off():
        while comm.bcast(time.perf_counter() < until) or not times[0]:
            for work, spent in zip(works, times):
                comm.Barrier()
                spent.append(comm.allreduce(work(), MPI.MAX))
    return times
