"""Queue the operations in flight on a communicator, and wait for them.

A thread that waits advances everything in flight in the process, on every communicator.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Protocol

import numpy as np
from mpi4py import MPI

from ..plans.plan import SEQUENCES
from ..schedules.collectives import PERSISTENT
from ..selection.select import NATIVE
from .operation import ErrorExplainer, Operation
from .thread import THREAD, ProgressThread

SPIN = 0.01  # seconds that an engine runs before signals, stalls and other operations are handled

_busy: set[Queue] = set()  # queues with operations in flight
_needing_python: set[Queue] = set()  # those with operations that only Python advances
needing_python = np.zeros(1, np.int64)  # their number, which fastpath/entry.py reads
_busy_lock = threading.RLock()


def anything_in_flight() -> bool:
    """Return whether a collective is in flight on any communicator of this process."""
    return bool(_busy)


def advance_all(but: Queue | None = None) -> None:
    """Advance the operations of every communicator whose queue no other thread holds."""
    for queue in list(_busy):
        if queue is not but:
            queue.poll(blocking=False)


def _advance_in_turn(operation: Operation, seconds: float) -> bool:
    """Advance an operation as Operation.step does, and record a turn of the Python thread if anything moved.

    If the driver advances the plan, the plan's counters are not the Python thread's.
    """
    before, began, is_driven = operation.counters, time.monotonic_ns(), operation.is_driven
    done = operation.step(seconds)
    posted, sent, steps = (0 if is_driven else max(0, b - a) for a, b in zip(before, operation.counters))
    if done or posted or steps:
        THREAD.table.turns.add(operation.numbers, began, (posted, sent, steps))
    return done


class QueueOwner(ErrorExplainer, Protocol):
    """The state of a communicator, as its queue uses it."""

    def operation_begins(self, operation: Operation) -> None:
        """Record that an operation is launched, in the thread that made the call."""

    def operation_ended(self, operation: Operation) -> None:
        """Record the end of an operation, which leaves the queue."""

    def operation_interrupted(self, operation: Operation, error: BaseException) -> None:
        """Record that an interrupt made this rank leave a call that is still in flight."""

    def check_stalls(self) -> None:
        """Check for stalled operations, after a pass in which no operation ended."""

    def call_errhandler(self, error: MPI.Exception) -> None:
        """Call the error handler of the user's communicator."""


class Queue:
    """The operations in flight on a communicator, in the order of calls. A thread that advances them holds the lock."""

    def __init__(self, owner: QueueOwner, tags_in_flight: np.ndarray, in_background: bool) -> None:
        """Make the queue of an owner.

        in_background: threads advance the operations while the program computes. tags_in_flight has a word for every
        sequence number modulo SEQUENCES: whether its tags are in use.
        """
        self.owner: QueueOwner = weakref.proxy(owner)  # a cycle would delay the release of the owner's memory
        self.tags_in_flight, self.in_background = tags_in_flight, in_background
        self.in_flight: list[Operation] = []
        self.slots: dict[int, Operation] = {}  # by sequence number modulo SEQUENCES: the last operation with those tags
        self.started: dict[int, np.ndarray] = {}  # by the number of a persistent collective: a word with its starts
        self.lock = threading.RLock()
        self.closed = False  # whether the communicator is freed, so that nothing is advanced

    def launch(self, operation: Operation) -> None:
        """Put an operation in flight. If an earlier one has its tags, it begins when that is done."""
        operation.owner = self.owner
        with self.lock:
            if operation.form == PERSISTENT:  # its tags are its own
                operation.start = self._next_start(operation)
            elif operation.choice.algorithm != NATIVE:  # native collectives use no tags
                slot = operation.sequence % SEQUENCES
                operation.predecessor = operation.predecessor or self.slots.get(slot)
                self.slots[slot] = operation
                self.tags_in_flight[slot] = True
            self.owner.operation_begins(operation)
            self.in_flight.append(operation)
            self.mark_busy(True)

    def begin(self, operation: Operation) -> float:
        """Launch an operation for which the caller waits later. Return the time, as ProgressThread.enter() does."""
        since = THREAD.enter()
        in_background = self.in_background and ProgressThread.is_supported()
        if in_background:
            THREAD.start()
        with self.lock:
            self.launch(operation)
            if operation.is_posted and operation.predecessor is None:
                operation.adopt_posted()
                self.mark_busy(True)
            else:
                self.step(0.0)
        if in_background and self.in_flight:
            THREAD.add_queue(self)
        THREAD.leave()
        return since

    def _next_start(self, operation: Operation) -> int:
        """Count a start of a persistent collective, unless the fast path did, and return its number."""
        started = self.started[operation.sequence]
        started += not operation.is_posted
        return int(started[0])

    def run(self, operation: Operation) -> None:
        """Launch an operation and wait until it is done. Raises the operation's error."""
        self.launch(operation)
        try:
            self.wait(operation)
        except BaseException as error:
            if not operation.done:  # a signal handler raised: the call is still in flight, without a waiter
                self.owner.operation_interrupted(operation, error)
            raise

    def wait(self, operation: Operation) -> None:
        """Advance all operations of this process until this one is done. Raises the operation's error."""
        self.advance_until_done(operation)
        self.raise_error(operation)

    def raise_error(self, operation: Operation) -> None:
        """Raise the error of a completed operation, once, after calling the communicator's error handler."""
        try:
            operation.raise_error()
        except MPI.Exception as error:
            self.owner.call_errhandler(error)
            raise

    def advance_until_done(self, operation: Operation) -> None:
        """Advance all operations of this process until this one is done, without raising its error."""
        operation.clock.wait_begins()
        THREAD.add_waiter()
        try:
            while not operation.done:
                with self.lock:
                    if operation.done:
                        break
                    alone = len(self.in_flight) == len(_busy) == 1
                    self.advance_once(SPIN if alone else 0.0)
                if not operation.done and not alone:
                    advance_all(but=self)
                    if any(queue.needs_python() for queue in list(_busy)):
                        os.sched_yield()
                    else:
                        THREAD.wait(SPIN)
        finally:
            THREAD.remove_waiter()

    def needs_python(self) -> bool:
        """Return whether Python must advance or complete an operation in flight, or none is in flight."""
        return not (self.in_flight and all(operation.is_driven for operation in self.in_flight))

    def advance_once(self, seconds: float) -> None:
        """Advance every operation once; if none ends, check for stalls."""
        if not self.step(seconds):
            self.owner.check_stalls()

    def step(self, seconds: float) -> bool:
        """Advance every operation once, and remove those that end. Return whether any ended."""
        advance = _advance_in_turn if THREAD.records_turns() else Operation.step
        ended = [operation for operation in self.in_flight if advance(operation, seconds)]
        for operation in ended:
            slot = operation.sequence % SEQUENCES
            if self.slots.get(slot) is operation:
                del self.slots[slot]
                self.tags_in_flight[slot] = False
            self.in_flight.remove(operation)
            self.owner.operation_ended(operation)
        self.mark_busy(bool(self.in_flight))
        return bool(ended)

    def poll(self, blocking: bool = True) -> bool:
        """Advance every operation once, and return whether any is left.

        blocking=False: do nothing, and return True, if another thread holds the lock.
        """
        if not self.lock.acquire(blocking):
            return True
        try:
            if self.in_flight and not self.closed:
                self.advance_once(0.0)
            if not self.in_flight:  # an interrupt in an earlier pass may have left the queue marked as busy
                self.mark_busy(False)
            return bool(self.in_flight)
        finally:
            self.lock.release()

    def drain(self) -> None:
        """Complete all operations in flight on this communicator."""
        while self.in_flight:
            with self.lock:
                self.advance_once(0.0)
            advance_all(but=self)
            os.sched_yield()

    def mark_busy(self, busy: bool) -> None:
        """Record whether operations are in flight, and whether Python must advance any."""
        with _busy_lock:
            (_busy.add if busy else _busy.discard)(self)
            (_needing_python.add if busy and self.needs_python() else _needing_python.discard)(self)
            needing_python[0] = len(_needing_python)
        if not busy:
            THREAD.queues.discard(self)
