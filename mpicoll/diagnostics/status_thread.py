"""The status thread answers other ranks while this rank's program runs outside mpicoll, and at its exit.

A rank whose call stalls learns from it where this rank is (status.py). The thread needs MPI_THREAD_MULTIPLE, and is not
started with MPICOLL_PROGRESS=0. At exit a program waits for the others' exits, as MPI_Finalize would, for a short time.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from mpi4py import MPI

from ..progress.faults import attempt, contained, log_once
from ..progress.queue import Queue
from .fault_tolerance import RankFailure
from .peer_status import EXIT_TAG
from .status import last_error

POLL_INTERVAL = 0.25  # seconds between two polls of the thread
# Seconds that a program waits at exit. Then it notifies the other ranks, and stays longer only while a collective in
# flight may still be reported or abort the run. A program that failed notifies them at once.
EXIT_WAIT = 2.0
MAX_SLEEP = 0.01  # seconds between two polls at exit


class Responder(Protocol):
    """A communicator that the thread polls."""

    def respond(self) -> None:
        """Answer ranks that ask where this one is, and report calls that only the thread can report."""


class Peer(Responder, Protocol):
    """A communicator whose ranks get answers."""

    comm: MPI.Intracomm
    queue: Queue
    rank_failure: RankFailure

    def notify_exit(self) -> None:
        """Tell every rank that this one has ended."""

    def is_watched(self) -> bool:
        """Return whether something in flight may still be reported, or the run aborted for it."""


class ExitBarrier:
    """A dissemination barrier of empty messages. It completes when every rank's program has ended."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.distances = [1 << k for k in range((comm.size - 1).bit_length())]
        self.requests: list[MPI.Request] = []

    def advance(self) -> bool:
        """Progress without blocking; return whether it is complete."""
        while True:
            if not all(request.Test() for request in self.requests):
                return False
            if not self.distances:
                return True
            distance = self.distances.pop(0)
            to, by = ((self.comm.rank + sign * distance) % self.comm.size for sign in (1, -1))
            nothing = [bytearray(), MPI.BYTE]
            self.requests = [self.comm.Isend(nothing, to, EXIT_TAG), self.comm.Irecv(nothing, by, EXIT_TAG)]


def _has_passed(state: Peer, barrier: ExitBarrier) -> bool:
    """Return whether a barrier is complete, or never will be, since a rank has failed."""
    with state.rank_failure.noticed():
        return barrier.advance()
    return True


class StatusThread:
    """It answers for every communicator of the process: in a thread, and in wait_for_peers() at exit."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.stopping = threading.Event()
        self.is_exiting = False  # whether the program of this rank has ended
        self.fatal: BaseException | None = None  # the error that ended it and is to end the run

    def start(self, states: Callable[[], Iterable[Responder]]) -> None:
        """Start the thread, unless it runs or was stopped."""
        if (self.thread is None or not self.thread.is_alive()) and not self.stopping.is_set():
            thread = threading.Thread(target=self._run, args=(states,), name="mpicoll-status", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the system has no more threads: only ranks in calls of mpicoll answer then
                log_once("starting the thread that answers other ranks", error)
            else:
                self.thread = thread

    def _run(self, states: Callable[[], Iterable[Responder]]) -> None:
        while not self.stopping.wait(POLL_INTERVAL):
            with contained("answering other ranks"):
                for state in states():
                    with contained("answering other ranks"):
                        state.respond()

    def stop(self) -> None:
        """Stop the thread; before MPI_Finalize."""
        self.stopping.set()
        if self.thread is not None:
            self.thread.join(timeout=10)

    @property
    def error(self) -> BaseException | None:
        """Return the error that the program of this rank ended with, if any."""
        return self.fatal or last_error()

    def _ends_the_run(self) -> bool:
        """Return whether MPI_Abort comes next, from `mpicoll run` or `python -m mpi4py`."""
        main = getattr(sys.modules.get("__main__"), "__spec__", None)
        by_mpi4py = main is not None and main.name in ("mpi4py.__main__", "mpi4py.run")
        return self.fatal is not None or (by_mpi4py and self.error is not None)

    def wait_for_peers(self, states: Iterable[Peer]) -> bool:
        """Wait until the programs of each communicator's ranks have ended, for EXIT_WAIT seconds or a little more.

        Return whether they have.

        Some may never come: MPI may have freed a communicator there and not here, where a request of its own kept it.
        """
        self.is_exiting, began, notified = True, time.monotonic(), False
        left = {state: ExitBarrier(state.comm) for state in states if not state.rank_failure.is_known}
        # a communicator whose barrier fails is left out: its ranks wait no longer than EXIT_WAIT
        while left := {
            state: barrier
            for state, barrier in left.items()
            if not attempt("a barrier", partial(_has_passed, state, barrier), True)
        }:
            for state in left:
                with contained("advancing operations in flight"):
                    state.queue.poll()
                state.respond()
            seconds = time.monotonic() - began
            if not notified and (seconds > EXIT_WAIT or self.error is not None):
                notified = True
                for state in left:
                    with contained("notifying other ranks of the end"):
                        state.notify_exit()
            if seconds > EXIT_WAIT and (self._ends_the_run() or not any(state.is_watched() for state in left)):
                break
            os.sched_yield()
            time.sleep(min(MAX_SLEEP, seconds / 10))
        return not left


STATUS_THREAD = StatusThread()
