"""The progress thread: advances nonblocking collectives while the program computes or waits elsewhere.

MPI promises that a nonblocking collective goes on while its caller is inside another MPI call. Plans are
advanced by Python, so somebody has to: one thread per process, asleep while nothing is in flight, and out of the way
while somebody waits, who advances everything. Where every core has a rank, the thread takes one from a rank whenever it
wakes up, for tens of microseconds. So it goes by what the program did last. If it worked on after a start, the next
start wakes the thread; if it waited at once, the thread sleeps on and looks up now and then. Without
MPI_THREAD_MULTIPLE, or with MPICOLL_PROGRESS=0, plans go on in Wait, Test and mpicoll's other calls only.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from mpi4py import MPI

from .faults import contained, log_once

PAUSE = 50e-6  # seconds between passes
REST = 500e-6  # while somebody waits, who advances everything
LONG_REST = 8e-3  # the same, and while nothing is in flight but was just now, where the program waits at once
LINGER = 20e-3  # how long ago "just now" may be: to wake the thread for every call would take longer than a short call
WORK = 200e-6  # seconds outside of mpicoll that count as work


class Pollable(Protocol):
    """What the thread looks after: a channel."""

    in_flight: list[Any]

    def poll(self) -> bool:
        """Advance what is in flight; whether anything is left."""


class ProgressThread:
    """Polls the channels that have something in flight."""

    def __init__(self) -> None:
        self.channels: set[Pollable] = set()
        self.waiters: set[int] = set()  # threads that wait for something
        self.wake, self.lock = threading.Event(), threading.Lock()
        self.stopping = self.asleep = False
        self.works_on = False  # whether the program did something else after it started what it waited for last
        self.left = self.worked = float("-inf")  # when it left mpicoll, and when it came back from work
        self.thread: threading.Thread | None = None

    @staticmethod
    def possible() -> bool:
        """Return whether this MPI may be called from several threads at once."""
        return MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def watch(self, channel: Pollable) -> None:
        """Poll this channel until nothing is in flight on it."""
        with self.lock:
            self.channels.add(channel)
            if (self.thread is None or not self.thread.is_alive()) and not self.stopping:
                self.thread = self._start()
        if self.asleep or self.works_on:
            self.wake.set()

    def _start(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._run, name="mpicoll-progress", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no more threads: Wait and Test advance everything
            log_once("starting the progress thread", error)
            return None
        return thread

    def hurry(self) -> None:
        """Look up at once, and often: somebody waits where mpicoll does not see it."""
        self.works_on = True
        self.wake.set()

    def enter(self) -> float:
        """Return the time; the program comes to start something or to wait."""
        now = time.monotonic()
        if now - self.left > WORK:
            self.worked = now
        return now

    def leave(self) -> None:
        """Let the program go on."""
        self.left = time.monotonic()

    def wait_begins(self, started: float) -> None:
        """Learn from the program, which comes to wait for what it started at that time."""
        self.enter()
        self.works_on = self.worked > started

    def _run(self) -> None:
        """Advance what is in flight until it is to stop, whatever is raised meanwhile."""
        while not self.stopping:
            with contained("the progress thread"):
                self._advance()
            time.sleep(REST)  # after an error

    def _advance(self) -> None:
        """Advance what is in flight until it is to stop."""
        active, passes = time.monotonic(), 0
        while True:
            self.wake.clear()
            if self.stopping:  # after that: whoever stops it sets both
                break
            with self.lock:
                channels = list(self.channels)
            if channels:
                active = time.monotonic()
            if channels and not self.waiters:
                passes = passes + 1 if self._pass(channels) else 0
                if passes > 1:  # the program works, or waits for a list of requests by MPI's own Waitall
                    self.works_on = True
                time.sleep(PAUSE)
            elif channels or (time.monotonic() - active < LINGER and not self.works_on):
                passes = 0
                self.wake.wait(REST if self.works_on else LONG_REST)
            else:
                self.asleep = True
                if not self.channels:  # whoever adds one looks at `asleep` after that
                    self.wake.wait()
                self.asleep = False

    def _pass(self, channels: list[Pollable]) -> bool:
        """Advance everything once; whether anything is left."""
        left = False
        for channel in channels:
            some = True
            with contained("advancing what is in flight"):
                some = channel.poll()
            if some:
                left = True
                continue
            with self.lock:
                if not channel.in_flight:
                    self.channels.discard(channel)
        return left

    def stop(self) -> None:
        """End the thread; before MPI_Finalize."""
        self.stopping = True
        self.wake.set()
        if self.thread is not None:
            self.thread.join(timeout=10)
            self.thread = None


THREAD = ProgressThread()
