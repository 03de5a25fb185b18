"""The progress thread: advances nonblocking collectives while the program computes or waits elsewhere.

MPI promises that a nonblocking collective progresses while its caller is inside another MPI call. Python advances
plans, so one thread per process does that. It sleeps while nothing is in flight, and polls rarely while another thread
waits, since a waiting thread advances everything. Where every core has a rank, the thread takes a core from a rank for
tens of microseconds whenever it wakes up. So it predicts from what the program did last. If the program worked after a
start, the next start wakes the thread. If the program waited at once, the thread sleeps on and polls now and then.
Without MPI_THREAD_MULTIPLE, or with MPICOLL_PROGRESS=0, plans progress in Wait, Test and mpicoll's other calls only.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from mpi4py import MPI

from .faults import contained, log_once

PAUSE = 50e-6  # seconds between passes
REST = 500e-6  # while another thread waits, which advances everything
LONG_REST = 8e-3  # the same if the program waits at once, and while nothing is in flight but was just now
LINGER = 20e-3  # how long ago "just now" may be: to wake the thread for every call would take longer than a short call
WORK = 200e-6  # seconds outside of mpicoll that count as work


class Pollable(Protocol):
    """An object that the thread polls: a channel."""

    in_flight: list[Any]

    def poll(self) -> bool:
        """Advance what is in flight. Return whether anything is left."""


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
        """Poll now, and often: the program waits where mpicoll does not see it."""
        self.works_on = True
        self.wake.set()

    def enter(self) -> float:
        """Note that the program enters mpicoll, to start something or to wait. Return the time."""
        now = time.monotonic()
        if now - self.left > WORK:
            self.worked = now
        return now

    def leave(self) -> None:
        """Note that the program leaves mpicoll."""
        self.left = time.monotonic()

    def wait_begins(self, started: float) -> None:
        """Note that the program waits for what it started at that time, and whether it worked in between."""
        self.enter()
        self.works_on = self.worked > started

    def _run(self) -> None:
        """Advance what is in flight until stop(), and log errors."""
        while not self.stopping:
            with contained("the progress thread"):
                self._advance()
            time.sleep(REST)  # after an error

    def _advance(self) -> None:
        """Advance what is in flight until stop()."""
        active, passes = time.monotonic(), 0
        while True:
            self.wake.clear()
            if self.stopping:  # checked after clear(), since stop() sets this and then the event
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
                if not self.channels:  # watch() adds a channel before it reads `asleep`
                    self.wake.wait()
                self.asleep = False

    def _pass(self, channels: list[Pollable]) -> bool:
        """Advance everything once. Return whether anything is left."""
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
