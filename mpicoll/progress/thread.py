"""Progress nonblocking collectives in two threads while the program computes or waits elsewhere.

MPI promises that a nonblocking collective progresses while its caller is inside another MPI call, so mpicoll needs
threads to advance its plans. The driver (driver.py) is compiled code: it advances the plans in the table without the
GIL, also while the program holds the GIL inside MPI. It wakes the Python thread when a plan has ended or a call has
stalled. The Python thread completes requests, and polls what compiled code cannot advance: plans of the mpi4py engine,
and MPI's own collectives.

A thread that waits advances everything, so both threads leave the work to it. If every core has a rank, the driver
takes a core from a rank for microseconds whenever it wakes up. So it wakes up rarely while nothing moves. It predicts
from what the program did last: if the program computed after a start, the next start wakes the driver. If the program
waited at once, the driver keeps sleeping and polls now and then. Without MPI_THREAD_MULTIPLE, or with
MPICOLL_PROGRESS=0, plans progress only in Wait, Test and mpicoll's other calls.
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
from .driver import MAX_PAUSE
from .faults import contained, log_once
from .table import ASLEEP, BEGUN, COMPUTES, CONTENDED, DELAYS, DOZING, IDLE_SINCE, SLEEP, STOP, WAITERS, Row, Table
from .turns import NO_CALL, CallNumbers

POLL_PAUSE = 50e-6  # seconds between two polls of what compiled code cannot advance
WAITING_PAUSE = 500e-6  # seconds between two polls of the same while another thread waits
MIN_COMPUTE = 200e-6  # seconds outside of mpicoll that count as computing
START_TIMEOUT = 1.0  # seconds to wait until the driver runs


class Signal:
    """An event that compiled code can set too, by a byte in a pipe."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        for end in (self.reader, self.writer):
            os.set_blocking(end, False)
        self._poll = select.poll()
        self._poll.register(self.reader, select.POLLIN)

    def set(self) -> None:
        """Set the event: end a wait(), or the next one."""
        with suppress(BlockingIOError):  # the pipe is full
            os.write(self.writer, b"\0")

    def clear(self) -> None:
        """Reset the event."""
        with suppress(BlockingIOError):
            os.read(self.reader, select.PIPE_BUF)

    def is_set(self) -> bool:
        """Return whether the event is set."""
        return bool(self._poll.poll(0))

    def wait(self, seconds: float | None = None) -> None:
        """Wait until the event is set, at most so many seconds."""
        self._poll.poll(None if seconds is None else seconds * 1e3)


class Pollable(Protocol):
    """A queue of operations, as the Python thread polls it."""

    in_flight: list[Any]

    def poll(self) -> bool:
        """Advance the operations in flight. Return whether any is left."""

    def needs_python(self) -> bool:
        """Return whether Python must advance or complete an operation."""


class ProgressThread:
    """The driver and the Python thread, and the state that they share with the program."""

    def __init__(self) -> None:
        self.queues: set[Pollable] = set()
        self.waiters: set[int] = set()  # ids of threads that wait for a call
        self.wake, self.lock = Signal(), threading.Lock()
        self.wake_driver = Signal()
        self.table = Table(self.wake_driver.reader, self.wake.writer)
        self.control = self.table.control
        self.stopping = self.asleep = False
        self.left_at = self.computed_at = float("-inf")  # when the program left mpicoll, and returned from computing
        self.thread: threading.Thread | None = None
        self.driver: threading.Thread | None = None
        self._generation, self._compiled = -1, False  # for which kernels is_compiled() was evaluated, and its value

    @staticmethod
    def is_supported() -> bool:
        """Return whether several threads may call this MPI at once."""
        return MPI.Query_thread() == MPI.THREAD_MULTIPLE

    @property
    def computes(self) -> bool:
        """Return whether the program computed between starting and waiting for its last call."""
        return bool(self.control.item(COMPUTES))

    @computes.setter
    def computes(self, computes: bool) -> None:
        self.control[COMPUTES] = computes

    # -- the table -----------------------------------------------------------------------------------------

    def row(self) -> Row | None:
        """Return an empty row for a plan; None if compiled code cannot advance plans, or the table is full."""
        return self.table.row() if self.is_compiled() else None

    def put(self, row: Row, step: CompiledStep, call: CallNumbers = NO_CALL) -> None:
        """Put a plan of a call into its row, and wake the driver unless a waiting thread advances the plan."""
        row.put(step, call)
        if not self.waiters:
            self.wake_sleeping_driver()

    def is_compiled(self) -> bool:
        """Return whether compiled code can advance plans; evaluated again when kernels have been compiled."""
        if self._generation != background.state.generation:
            self._generation, self._compiled = background.state.generation, _prepare_driver()
        return self._compiled

    def wait(self, seconds: float) -> None:
        """Advance all plans in the table until one has ended, at most so many seconds."""
        driver.wait.entry(self.table.at, 0, 0, 0, int(seconds * 1e9))

    def add_waiter(self) -> None:
        """Record that this thread waits for a call, and advances everything meanwhile."""
        self.waiters.add(threading.get_ident())
        self.control[WAITERS], self.control[IDLE_SINCE] = len(self.waiters), 0

    def remove_waiter(self) -> None:
        """Record that this thread no longer waits. A second call is harmless."""
        self.waiters.discard(threading.get_ident())
        self.control[WAITERS] = len(self.waiters)
        if self.queues and not self.waiters:  # the threads must advance what is left
            self.wake_sleeping_driver()
            if not self.asleep or self._is_needed():  # this thread may have ended another plan while it waited
                self.wake.set()

    def wake_sleeping_driver(self) -> None:
        """Wake the driver if it is ASLEEP."""
        if self.control.item(SLEEP) == ASLEEP:
            self.wake_driver.set()

    def records_turns(self) -> bool:
        """Return whether this is the Python thread, and a timeline records what it does."""
        return self.table.turns.users > 0 and threading.current_thread() is self.thread

    # -- the threads ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the threads that do not run yet, unless stop() was called."""
        if _is_alive(self.thread) and (_is_alive(self.driver) or not self.is_compiled()):
            return
        with self.lock:
            if self.stopping:
                return
            if not _is_alive(self.driver) and self.is_compiled():
                self.driver = self._start_driver()
            if not _is_alive(self.thread):
                self.thread = _start_thread("mpicoll-progress", self._run)

    def _start_driver(self) -> threading.Thread | None:
        """Start the driver, and return its thread once that is in compiled code and needs no GIL."""
        self.control[[STOP, BEGUN]] = 0
        if self.control[DELAYS] < 0:
            with suppress(OSError):  # the system may have no such file
                main = threading.main_thread().native_id
                self.control[DELAYS] = os.open(f"/proc/self/task/{main}/schedstat", os.O_RDONLY)
        thread = _start_thread("mpicoll-driver", self._drive)
        until = time.monotonic() + START_TIMEOUT
        while _is_alive(thread) and not self.control.item(BEGUN) and time.monotonic() < until:
            time.sleep(POLL_PAUSE)
        return thread

    def _drive(self) -> None:
        """Advance the plans of the table until stop()."""
        with contained("the driver"):
            driver.drive.entry(self.table.at)

    def add_queue(self, queue: Pollable) -> None:
        """Have the threads advance a queue until no operation is in flight on it."""
        with self.lock:
            self.queues.add(queue)
        self.start()
        if not self.waiters:  # a thread may have stopped waiting between put() and the addition of the queue
            self.wake_sleeping_driver()
        if self.computes and self.control.item(SLEEP) == DOZING and not self.control.item(CONTENDED):
            self.wake_driver.set()
        if (self.asleep or self.computes) and queue.needs_python():
            self.wake.set()

    def poll_now(self) -> None:
        """Wake both threads: the program waits for a call by means that mpicoll does not see."""
        self.computes = True
        self.wake_driver.set()
        self.wake.set()

    # -- the program: in mpicoll, computing, or waiting ----------------------------------------------------

    def enter(self) -> float:
        """Record that the program enters mpicoll, to start a call or to wait for it. Return the time."""
        now = time.monotonic()
        if now - self.left_at > MIN_COMPUTE:
            self.computed_at = now
        return now

    def leave(self) -> None:
        """Record that the program leaves mpicoll."""
        self.left_at = time.monotonic()

    def wait_begins(self, started: float) -> None:
        """Record that the program waits for a call started at that time, and whether it computed in between."""
        self.enter()
        self.computes = self.computed_at > started

    # -- the Python thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        """Poll the queues until stop(), and log errors."""
        while not self.stopping:
            with contained("the progress thread"):
                self._advance()
            time.sleep(WAITING_PAUSE)  # after an error

    def _advance(self) -> None:
        """Poll the queues until stop()."""
        passes = 0
        while True:
            self.wake.clear()
            if self.stopping:  # read after clear(), since stop() sets this before the event
                break
            if not self.waiters:
                self._pass()
            if not self._is_needed():
                passes, self.asleep = 0, True
                if not self._is_needed():  # add_queue() adds the queue before it reads `asleep`
                    self.wake.wait()
                self.asleep = False
            elif self.waiters:
                passes = 0
                self.wake.wait(WAITING_PAUSE if self.computes else MAX_PAUSE * 1e-9)
            else:
                passes += 1
                if passes > 1:  # the program computes, or waits in MPI's own Waitall
                    self.computes = True
                time.sleep(POLL_PAUSE)

    def _is_needed(self) -> bool:
        """Return whether Python must advance or complete any operation."""
        return any(queue.needs_python() for queue in list(self.queues))

    def _pass(self) -> None:
        """Poll every queue once, and drop those without operations."""
        with self.lock:
            queues = list(self.queues)
        for queue in queues:
            has_more = True
            with contained("advancing operations in flight"):
                has_more = queue.poll()
            with self.lock:
                if not has_more and not queue.in_flight:
                    self.queues.discard(queue)

    def stop(self) -> None:
        """End the threads, before MPI_Finalize."""
        self.stopping = True
        self.control[STOP] = 1
        self.wake.set()
        self.wake_driver.set()
        for thread in (self.thread, self.driver):
            if thread is not None:
                thread.join(timeout=10)
        self.thread = self.driver = None
        self.control[BEGUN] = 0


def _prepare_driver() -> bool:
    """Return whether the driver's functions are compiled and loaded."""
    try:
        driver.prepare()
    except NotCompiled:
        return False
    except Exception as error:  # without numba, or with an unknown version of it
        log_once("loading the compiled driver", error)
        return False
    return True


def _is_alive(thread: threading.Thread | None) -> bool:
    return thread is not None and thread.is_alive()


def _start_thread(name: str, run: Any) -> threading.Thread | None:
    """Start a thread and return it; None if the system allows no more, and only Wait and Test progress plans."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        log_once(f"starting the thread {name}", error)
        return None
    return thread


THREAD = ProgressThread()
