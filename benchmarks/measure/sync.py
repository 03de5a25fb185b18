"""Start a timed call on all ranks together: after a barrier, or at a time that their clocks agree on.

Ranks leave a barrier one after another, and that skew is part of every time measured after one. Starting at
an agreed time has no such skew, as far as the clocks agree; a rank that is late for a start invalidates that
call, which is counted and left out (Hunold and Carpen-Amarie, Reproducible MPI benchmarking is still not as
easy as you think, 2016).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import numpy as np

from mpicoll.timeline.clock import reading

Clock = Callable[[], float]
BARRIER, WINDOW = "barrier", "window"
SYNCS = (BARRIER, WINDOW)
PINGS = 32  # exchanges with rank 0 per rank, of which the fastest gives the offset of its clock
# Seconds from when a rank should be ready to the start; after a long wait caches are cold.
SLACK, LEAST_SLACK, MOST_SLACK = 200e-6, 20e-6, 2e-3
OFTEN = 1 / 20  # of the calls that ranks may be unready for before the slack grows
YIELD = 50e-6  # seconds before a start up to which a waiting rank lets others have its core
LATE = 5e-6, 0.01  # a rank is late that starts so many seconds after the start, and so much of the call's time
FRESH = 1.0  # seconds for which clocks are taken to keep their distance: at 20 ppm they part by 20 µs


class Started(NamedTuple):
    """When a call began on this rank's clock, and whether the rank came too late for it."""

    at: float
    late: bool


class Sync(Protocol):
    """A way to start calls together. Methods are collective.

    unready: how often this rank came only after a start, so far.
    """

    unready: int

    def agree(self) -> None:
        """Exchange what the ranks must know of each other: before each size, and from time to time."""

    def is_stale(self) -> bool:
        """Return whether it is time to agree again; this rank's opinion."""

    def calls(self, expected: float) -> Callable[[], Started]:
        """Return a function that waits for the start of each of some calls, which take about `expected` seconds."""

    def learn(self, unready: int, calls: int) -> None:
        """Adapt after some calls, for `unready` of which a rank came too late, as the ranks agree."""


class Barrier:
    """A barrier before each call."""

    def __init__(self, barrier: Callable[[], Any], clock: Clock) -> None:
        self.barrier, self.clock, self.unready = barrier, clock, 0

    def agree(self) -> None:
        """Agree on nothing."""

    def is_stale(self) -> bool:
        """Return False: barriers depend on no clocks."""
        return False

    def calls(self, expected: float) -> Callable[[], Started]:
        """Return a function that waits in a barrier, then says the time."""
        barrier, clock = self.barrier, self.clock

        def start() -> Started:
            barrier()
            return Started(clock(), False)

        return start

    def learn(self, unready: int, calls: int) -> None:
        """Ignore the counts: no rank is late for a barrier."""


class Window:
    """Starts at times of rank 0's clock, far enough apart that few come late.

    Before the first start the ranks meet, so that none is still in an earlier call when it is named.
    How far adapts: the slack grows by half after a round in which ranks were unready for more calls than one in
    twenty, and shrinks a little after any other.
    """

    def __init__(self, control: Any, barrier: Callable[[], Any], clock: Clock) -> None:
        self.control, self.barrier, self.clock = control, barrier, clock
        self.ahead = 0.0  # seconds by which this rank's clock is ahead of rank 0's
        self.slack, self.agreed, self.unready = SLACK, -FRESH, 0

    def agree(self) -> None:
        """Measure how far this rank's clock is ahead of rank 0's, and how long news of a start takes at least."""
        comm, buffer, slowest = self.control, np.zeros(1), 0.0
        for peer in range(1, comm.size):
            if comm.rank == 0:
                times = []
                for _ in range(PINGS):
                    times.append(self.clock())
                    comm.Recv(buffer, peer)
                    buffer[0] = self.clock()
                    comm.Send(buffer, peer)
                slowest = max(slowest, min(later - sooner for sooner, later in pairwise(times)))
            elif comm.rank == peer:
                self.ahead = reading([self._ping(buffer) for _ in range(PINGS)]).ahead
        self.slack = min(max(self.slack, 2 * comm.bcast(slowest)), MOST_SLACK)
        self.agreed = self.clock()

    def is_stale(self) -> bool:
        """Return whether clocks may have drifted."""
        return self.clock() - self.agreed > FRESH

    def _ping(self, buffer: np.ndarray) -> tuple[float, float, float]:
        """Return the seconds on this clock, on rank 0's, and on this one again."""
        before = self.clock()
        self.control.Send(buffer, 0)
        self.control.Recv(buffer, 0)
        return before, float(buffer[0]), self.clock()

    def calls(self, expected: float) -> Callable[[], Started]:
        """Return when each call starts: the first soon, the others at equal distances."""
        clock, apart, tolerance = self.clock, expected + self.slack, max(LATE[0], LATE[1] * expected)
        self.barrier()
        following = self.control.bcast(clock() + self.slack) + self.ahead

        def start() -> Started:
            nonlocal following
            at, following = following, following + apart
            self.unready += clock() > at
            while (left := at - clock()) > 0:
                if left > YIELD:
                    os.sched_yield()  # time.sleep(0) may take 100 µs
            return Started(at, -left > tolerance)

        return start

    def learn(self, unready: int, calls: int) -> None:
        """Adapt the slack."""
        wanted = self.slack * (1.5 if unready > OFTEN * calls else 0.95)
        self.slack = min(max(wanted, LEAST_SLACK), MOST_SLACK)


def sync_of(name: str, control: Any, meeting: Barrier) -> Sync:
    """Return the way of that name, "barrier" or "window"; either needs a barrier."""
    return meeting if name == BARRIER else Window(control, meeting.barrier, meeting.clock)
