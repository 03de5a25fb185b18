"""Looks after ranks that are in no call of mpicoll: while the program computes, and when it has ended.

Both only so that others, whose calls stand still, learn where this rank is (status.py). The thread needs
MPI_THREAD_MULTIPLE, and is not there with MPICOLL_PROGRESS=0. At its end a program waits for what MPI_Finalize would
wait for too, that all ranks come to it, but only for a moment.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from mpi4py import MPI

from .faults import attempt, contained, log_once
from .inquiry import PARTING
from .status import last_error

LOOK = 0.25  # seconds between two looks of the thread
LINGER = 2.0  # seconds that a program that has ended stays for those who have not; then it tells them, and stays
# on only for a collective under way that a report or an abort is still to come for. One that has failed tells at once
REST = 0.01  # the most seconds between two looks of a program that has ended


class Attended(Protocol):
    """What is looked after: a channel."""

    comm: MPI.Intracomm

    def respond(self) -> None:
        """Answer who asks where this rank is."""

    def poll(self) -> bool:
        """Advance what is in flight, and answer."""

    def farewell(self) -> None:
        """Tell every rank that this one has ended."""

    def is_watched(self) -> bool:
        """Return whether something in flight may still come to be reported, or the run aborted for it."""


class Parting:
    """A barrier of empty messages, by dissemination: over when every rank has come to its end."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.distances = [1 << k for k in range((comm.size - 1).bit_length())]
        self.requests: list[MPI.Request] = []

    def advance(self) -> bool:
        """Go on without blocking; True when over."""
        while True:
            if not MPI.Request.Testall(self.requests):
                return False
            if not self.distances:
                return True
            distance = self.distances.pop(0)
            to, by = ((self.comm.rank + sign * distance) % self.comm.size for sign in (1, -1))
            nothing = [bytearray(), MPI.BYTE]
            self.requests = [self.comm.Isend(nothing, to, PARTING), self.comm.Irecv(nothing, by, PARTING)]


class Responder:
    """It answers for every channel there is: by a thread while the program runs, and itself when that has ended."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.stopping = threading.Event()
        self.parting = False  # whether the program of this rank has ended
        self.fatal: BaseException | None = None  # what ended it, and is to end the run

    def start(self, channels: Callable[[], Iterable[Attended]]) -> None:
        """Begin, unless it has begun or is over."""
        if (self.thread is None or not self.thread.is_alive()) and not self.stopping.is_set():
            thread = threading.Thread(target=self._run, args=(channels,), name="mpicoll-attendant", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads: ranks in calls answer, others do not
                log_once("starting the thread that answers other ranks", error)
            else:
                self.thread = thread

    def _run(self, channels: Callable[[], Iterable[Attended]]) -> None:
        while not self.stopping.wait(LOOK):
            with contained("answering other ranks"):
                for channel in channels():
                    with contained("answering other ranks"):
                        channel.respond()

    def stop(self) -> None:
        """End the thread; before MPI_Finalize."""
        self.stopping.set()
        if self.thread is not None:
            self.thread.join(timeout=10)

    @property
    def error(self) -> BaseException | None:
        """What the program of this rank ended with, if with an error."""
        return self.fatal or last_error()

    def _ends_the_run(self) -> bool:
        """Return whether MPI_Abort comes next, from `mpicoll run` or `python -m mpi4py`."""
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        by_mpi4py = main is not None and main.name in ("mpi4py.__main__", "mpi4py.run")
        return self.fatal is not None or (by_mpi4py and self.error is not None)

    def part(self, channels: Iterable[Attended]) -> None:
        """Stay a while, until all ranks of each channel have come to the end of their programs, and answer meanwhile.

        Some may never come: MPI may have freed a communicator there and not here, where a request of its own kept it.
        """
        self.parting, began, told = True, time.monotonic(), False
        left = {channel: Parting(channel.comm) for channel in channels}
        # a channel whose barrier fails is left alone: its ranks wait no longer than LINGER
        while left := {one: each for one, each in left.items() if not attempt("a barrier", each.advance, True)}:
            for channel in left:
                with contained("advancing what is in flight"):
                    channel.poll()
                channel.respond()
            seconds = time.monotonic() - began
            if not told and (seconds > LINGER or self.error is not None):
                told = True
                for channel in left:
                    with contained("telling other ranks of the end"):
                        channel.farewell()
            if seconds > LINGER and (self._ends_the_run() or not any(channel.is_watched() for channel in left)):
                break
            os.sched_yield()
            time.sleep(min(REST, seconds / 10))


RESPONDER = Responder()
