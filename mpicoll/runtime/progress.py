"""The progress thread: advances nonblocking collectives while the program computes or waits elsewhere.

MPI promises that a nonblocking collective goes on while its caller is inside another MPI call. Plans are
advanced by Python, so somebody has to: one thread per process, asleep while nothing is in flight, and out of the way
while somebody waits, who advances everything. Without
MPI_THREAD_MULTIPLE, or with MPICOLL_PROGRESS=0, plans go on in Wait, Test and mpicoll's other calls only.
"""

from __future__ import annotations

import threading
import time
from typing import Any, Protocol

from mpi4py import MPI

PAUSE = 50e-6  # seconds between passes
REST = 500e-6  # while somebody waits, who advances everything, and while nothing is in flight but was just now
LINGER = 20e-3  # how long ago that may be: to wake the thread for every call would take longer than a short call


class Polled(Protocol):
    """What the thread looks after: a channel."""

    in_flight: list[Any]

    def poll(self) -> bool:
        """Advance what is in flight; whether anything is left."""


class ProgressThread:
    """Polls the channels that have something in flight."""

    def __init__(self) -> None:
        self.channels: set[Polled] = set()
        self.waiters: set[int] = set()  # threads that wait for something
        self.wake, self.lock = threading.Event(), threading.Lock()
        self.stopping = self.asleep = False
        self.thread: threading.Thread | None = None

    @staticmethod
    def possible() -> bool:
        """Return whether this MPI may be called from several threads at once."""
        return MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def watch(self, channel: Polled) -> None:
        """Poll this channel until nothing is in flight on it."""
        with self.lock:
            self.channels.add(channel)
            if self.thread is None and not self.stopping:
                self.thread = threading.Thread(target=self._run, name="mpicoll-progress", daemon=True)
                self.thread.start()
        if self.asleep:
            self.wake.set()

    def _run(self) -> None:
        active = time.monotonic()
        while not self.stopping:
            with self.lock:
                channels = list(self.channels)
            if channels:
                active = time.monotonic()
            if channels and not self.waiters:
                self._pass(channels)
                time.sleep(PAUSE)
            elif time.monotonic() - active < LINGER:
                time.sleep(REST)
            else:
                self.asleep = True
                if not self.channels:  # whoever adds one looks at `asleep` after that
                    self.wake.wait()
                self.asleep = False
                self.wake.clear()

    def _pass(self, channels: list[Polled]) -> None:
        for channel in channels:
            if not channel.poll():
                with self.lock:
                    if not channel.in_flight:
                        self.channels.discard(channel)

    def stop(self) -> None:
        """End the thread; before MPI_Finalize."""
        self.stopping = True
        self.wake.set()
        if self.thread is not None:
            self.thread.join(timeout=10)
            self.thread = None


THREAD = ProgressThread()
