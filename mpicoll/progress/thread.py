"""Progress of nonblocking collectives while the program computes or waits elsewhere.

MPI promises that a nonblocking collective progresses while its caller is inside another MPI call. mpicoll advances
plans, so a process has two threads for that. The driver (driver.py) is compiled code: it advances the plans in the
table without Python's lock, also while the program holds that lock inside MPI. It wakes the Python thread where a plan
has ended or a call is stalled. That thread also polls what compiled code cannot advance: plans of the mpi4py engine,
and collectives of MPI's own.

A thread that waits advances everything, so both leave that to it. Where every core has a rank, the driver takes a core
from a rank for microseconds whenever it wakes up. So it wakes up rarely while nothing moves, and it predicts from what
the program did last. If the program worked after a start, the next start wakes the driver. If the program waited at
once, the driver sleeps on and looks now and then. Without MPI_THREAD_MULTIPLE, or with MPICOLL_PROGRESS=0, plans
progress in Wait, Test and mpicoll's other calls only.
"""

from __future__ import annotations

import os
import select
import threading
import time
from contextlib import suppress
from typing import Any, Protocol

from mpi4py import MPI

from ..engines.protocol import CompiledStep
from ..kernels import background
from ..kernels.background import NotCompiled
from . import driver
from .driver import MOST
from .faults import contained, log_once
from .table import BEGUN, CONTENDED, DELAYS, IDLE_SINCE, RESTS, SLEEP, SLEEPS, STOP, WAITERS, WORKS_ON, Row, Table

PAUSE = 50e-6  # seconds between two polls of what compiled code cannot advance
REST = 500e-6  # seconds between two looks at what only Python advances, while another thread waits
WORK = 200e-6  # seconds outside of mpicoll that count as work
BEGINNING = 1.0  # the most seconds in which the driver begins


class Signal:
    """An event that compiled code can set, too: by a byte in a pipe."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)
        self._poll = select.poll()
        self._poll.register(self.reader, select.POLLIN)

    def set(self) -> None:
        """Wake the thread that waits, or the next one that will."""
        with suppress(BlockingIOError):  # it is full of such bytes
            os.write(self.writer, b"\0")

    def clear(self) -> None:
        """Take back what set it."""
        with suppress(BlockingIOError):
            os.read(self.reader, select.PIPE_BUF)

    def is_set(self) -> bool:
        """Return whether a wait would end at once."""
        return bool(self._poll.poll(0))

    def wait(self, seconds: float | None = None) -> None:
        """Wait until it is set, or until the seconds are over."""
        self._poll.poll(None if seconds is None else seconds * 1e3)


class Pollable(Protocol):
    """An object that the thread polls: a queue of operations."""

    in_flight: list[Any]

    def poll(self) -> bool:
        """Advance what is in flight. Return whether anything is left."""

    def needs_python(self) -> bool:
        """Return whether anything in flight is none of the table's."""


class ProgressThread:
    """Both threads, and what they share with the program."""

    def __init__(self) -> None:
        self.queues: set[Pollable] = set()
        self.waiters: set[int] = set()  # threads that wait for something
        self.wake, self.lock = Signal(), threading.Lock()
        self.wake_driver = Signal()
        self.table = Table(self.wake_driver.reader, self.wake.writer)
        self.control = self.table.control
        self.stopping = self.asleep = False
        self.left = self.worked = float("-inf")  # when it left mpicoll, and when it came back from work
        self.thread: threading.Thread | None = None
        self.driver: threading.Thread | None = None
        self._asked, self._compiled = -1, False  # the generation of kernels in which it was looked, what was found

    @staticmethod
    def possible() -> bool:
        """Return whether this MPI may be called from several threads at once."""
        return MPI.Query_thread() == MPI.THREAD_MULTIPLE

    @property
    def works_on(self) -> bool:
        """True if the program did something else after it started what it waited for last."""
        return bool(self.control.item(WORKS_ON))

    @works_on.setter
    def works_on(self, works: bool) -> None:
        self.control[WORKS_ON] = works

    # -- the table -----------------------------------------------------------------------------------------

    def row(self) -> Row | None:
        """Return an empty row for a plan; None where no compiled code can advance it, or there is no room."""
        return self.table.row() if self.is_compiled() else None

    def put(self, row: Row, step: CompiledStep) -> None:
        """Put a plan into its row; see Row.put. A thread that waits advances it, else the driver does."""
        row.put(step)
        if not self.waiters:
            self.wake_sleeping_driver()

    def is_compiled(self) -> bool:
        """Return whether compiled code can advance plans here. It looks again when kernels have arrived."""
        if self._asked != background.state.generation:
            self._asked, self._compiled = background.state.generation, _load()
        return self._compiled

    def wait(self, seconds: float) -> None:
        """Advance all plans in the table until one has ended, at most so long."""
        driver.wait.entry(self.table.at, 0, 0, 0, int(seconds * 1e9))

    def add_waiter(self) -> None:
        """Note that this thread waits, and advances everything meanwhile."""
        self.waiters.add(threading.get_ident())
        self.control[WAITERS], self.control[IDLE_SINCE] = len(self.waiters), 0

    def remove_waiter(self) -> None:
        """Note that this thread no longer waits. A second call is harmless."""
        self.waiters.discard(threading.get_ident())
        self.control[WAITERS] = len(self.waiters)
        if self.queues and not self.waiters:  # what is left is the threads' again
            self.wake_sleeping_driver()
            if not self.asleep or self._is_needed():  # what this thread waited in may have ended another plan
                self.wake.set()

    def wake_sleeping_driver(self) -> None:
        """Wake the driver if it sleeps until it is woken."""
        if self.control.item(SLEEP) == SLEEPS:
            self.wake_driver.set()

    # -- the threads ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads that do not run, unless they were stopped."""
        if _is_alive(self.thread) and (_is_alive(self.driver) or not self.is_compiled()):
            return
        with self.lock:
            if self.stopping:
                return
            if not _is_alive(self.driver) and self.is_compiled():
                self.driver = self._start_driver()
            if not _is_alive(self.thread):
                self.thread = _started("mpicoll-progress", self._run)

    def _start_driver(self) -> threading.Thread | None:
        """Return a thread that is in compiled code, and needs Python's lock no more."""
        self.control[[STOP, BEGUN]] = 0
        if self.control[DELAYS] < 0:
            with suppress(OSError):  # where the system has no such file
                main = threading.main_thread().native_id
                self.control[DELAYS] = os.open(f"/proc/self/task/{main}/schedstat", os.O_RDONLY)
        thread = _started("mpicoll-driver", self._drive)
        until = time.monotonic() + BEGINNING
        while _is_alive(thread) and not self.control.item(BEGUN) and time.monotonic() < until:
            time.sleep(PAUSE)
        return thread

    def _drive(self) -> None:
        """Advance the plans of the table until stop()."""
        with contained("the driver"):
            driver.drive.entry(self.table.at)

    def watch(self, queue: Pollable) -> None:
        """Advance what is in flight in this queue until nothing is."""
        with self.lock:
            self.queues.add(queue)
        self.start()
        if not self.waiters:  # a thread that waited while the plan was put may have left before the queue was here
            self.wake_sleeping_driver()
        if self.works_on and self.control.item(SLEEP) == RESTS and not self.control.item(CONTENDED):
            self.wake_driver.set()
        if (self.asleep or self.works_on) and queue.needs_python():
            self.wake.set()

    def hurry(self) -> None:
        """Poll now, and often: the program waits where mpicoll does not see it."""
        self.works_on = True
        self.wake_driver.set()
        self.wake.set()

    # -- what the program does -----------------------------------------------------------------------------

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

    # -- the Python thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        """Advance what is in flight until stop(), and log errors."""
        while not self.stopping:
            with contained("the progress thread"):
                self._advance()
            time.sleep(REST)  # after an error

    def _advance(self) -> None:
        """Advance what is in flight until stop()."""
        passes = 0
        while True:
            self.wake.clear()
            if self.stopping:  # checked after clear(), since stop() sets this and then the event
                break
            if not self.waiters:
                self._pass()
            if not self._is_needed():
                passes, self.asleep = 0, True
                if not self._is_needed():  # watch() adds a queue before it reads `asleep`
                    self.wake.wait()
                self.asleep = False
            elif self.waiters:
                passes = 0
                self.wake.wait(REST if self.works_on else MOST * 1e-9)
            else:
                passes += 1
                if passes > 1:  # the program works, or waits for a list of requests by MPI's own Waitall
                    self.works_on = True
                time.sleep(PAUSE)

    def _is_needed(self) -> bool:
        """Return whether anything in flight is advanced by Python only."""
        return any(queue.needs_python() for queue in list(self.queues))

    def _pass(self) -> None:
        """Advance everything once."""
        with self.lock:
            queues = list(self.queues)
        for queue in queues:
            some = True
            with contained("advancing what is in flight"):
                some = queue.poll()
            with self.lock:
                if not some and not queue.in_flight:
                    self.queues.discard(queue)

    def stop(self) -> None:
        """End the threads; before MPI_Finalize."""
        self.stopping = True
        self.control[STOP] = 1
        self.wake.set()
        self.wake_driver.set()
        for thread in (self.thread, self.driver):
            if thread is not None:
                thread.join(timeout=10)
        self.thread = self.driver = None
        self.control[BEGUN] = 0


def _load() -> bool:
    """Return whether what advances plans in compiled code could be loaded."""
    try:
        driver.prepare()
    except NotCompiled:
        return False
    except Exception as error:  # there is no numba, or its inner parts are others
        log_once("loading what advances plans without Python", error)
        return False
    return True


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()


def _started(name: str, run: Any) -> threading.Thread | None:
    """Return a thread that runs, None if the system has no more: Wait and Test advance everything then."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log_once(f"starting the thread {name}", error)
        return None
    return thread


THREAD = ProgressThread()
