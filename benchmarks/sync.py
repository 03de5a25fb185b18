"""How the ranks start a timed call together: after a barrier, or at a time that their clocks agree on.

Ranks leave a barrier one after another, and that skew is part of every time measured after one. Starting at
an agreed time has no such skew, as far as the clocks agree; a rank that comes late to a start spoils that
call, which is counted and left out (Hunold and Carpen-Amarie, Reproducible MPI benchmarking is still not as
easy as you think, 2016).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

Clock = Callable[[], float]
BARRIER, WINDOW = "barrier", "window"
SYNCS = (BARRIER, WINDOW)
PINGS = 32  # exchanges with rank 0 per rank, of which the quickest tells how far its clock is off
SLACK, LEAST_SLACK, MOST_SLACK = 200e-6, 20e-6, 10e-3  # seconds from when a rank should be ready to the start
OFTEN = 1 / 20  # of the calls that may be late before the slack grows
YIELD = 50e-6  # seconds before a start up to which a waiting rank lets others have its core


class Started(NamedTuple):
    """When a call began on this rank's clock, and whether the rank came too late for it."""

    at: float
    late: bool


class Sync(Protocol):
    """Both ways. All methods are collective."""

    def agree(self) -> None:
        """Before a size: whatever the ranks must know of each other."""

    def calls(self, expected: float) -> Callable[[], Started]:
        """Before some calls that take about `expected` seconds: what waits for the start of each."""

    def learn(self, late: int, calls: int) -> None:
        """After some calls: how many were late on any rank."""


class Barrier:
    """A barrier before each call."""

    def __init__(self, barrier: Callable[[], Any], clock: Clock) -> None:
        self.barrier, self.clock = barrier, clock

    def agree(self) -> None:
        """Nothing to agree on."""

    def calls(self, expected: float) -> Callable[[], Started]:
        """A barrier, then the time."""
        barrier, clock = self.barrier, self.clock

        def start() -> Started:
            barrier()
            return Started(clock(), False)

        return start

    def learn(self, late: int, calls: int) -> None:
        """Nobody is late for a barrier."""


class Window:
    """Starts at times of rank 0's clock, far enough apart that few come late.

    How far adapts: the slack grows by half after a round with more late calls than one in twenty, and shrinks
    a little after any other.
    """

    def __init__(self, control: Any, clock: Clock) -> None:
        self.control, self.clock = control, clock
        self.ahead = 0.0  # seconds by which this rank's clock is ahead of rank 0's
        self.slack = SLACK

    def agree(self) -> None:
        """Measure how far this rank's clock is ahead of rank 0's."""
        comm, buffer = self.control, np.zeros(1)
        for peer in range(1, comm.size):
            if comm.rank == 0:
                for _ in range(PINGS):
                    comm.Recv(buffer, peer)
                    buffer[0] = self.clock()
                    comm.Send(buffer, peer)
            elif comm.rank == peer:
                self.ahead = ahead_of([self._ping(buffer) for _ in range(PINGS)])

    def _ping(self, buffer: np.ndarray) -> tuple[float, float, float]:
        """Seconds on this clock, on rank 0's, and on this one again."""
        before = self.clock()
        self.control.Send(buffer, 0)
        self.control.Recv(buffer, 0)
        return before, float(buffer[0]), self.clock()

    def calls(self, expected: float) -> Callable[[], Started]:
        """The first start is soon; the others follow at equal distances."""
        clock, apart = self.clock, expected + self.slack
        following = self.control.bcast(clock() + self.slack) + self.ahead

        def start() -> Started:
            nonlocal following
            at, following = following, following + apart
            late = clock() > at
            while (left := at - clock()) > 0:
                if left > YIELD:
                    time.sleep(0)
            return Started(at, late)

        return start

    def learn(self, late: int, calls: int) -> None:
        """Adapt the slack."""
        wanted = self.slack * (1.5 if late > OFTEN * calls else 0.95)
        self.slack = min(max(wanted, LEAST_SLACK), MOST_SLACK)


def ahead_of(pings: list[tuple[float, float, float]]) -> float:
    """Seconds by which a clock is ahead of a peer's, from (time here, time there, time here again).

    The quickest exchange was disturbed least, and the peer read its clock about midway (Cristian,
    Probabilistic clock synchronization, 1989).

    >>> ahead_of([(10.0, 5.5, 12.0), (13.0, 7.25, 13.5)])
    6.0
    """
    before, there, after = min(pings, key=lambda ping: ping[2] - ping[0])
    return (before + after) / 2 - there


def sync_of(name: str, control: Any, barrier: Callable[[], Any], clock: Clock) -> Sync:
    """The way of that name, "barrier" or "window"."""
    return Barrier(barrier, clock) if name == BARRIER else Window(control, clock)
