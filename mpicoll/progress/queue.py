"""The operations in flight on one communicator, in the order in which they began, and how a thread waits for one.

A thread that waits advances everything in flight in the process, on every communicator.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

import numpy as np
from mpi4py import MPI

from ..plans.plan import SEQUENCES
from ..schedules.collectives import PERSISTENT
from ..selection.select import NATIVE
from .operation import Explaining, Operation
from .thread import THREAD, ProgressThread

SPIN = 0.01  # seconds an engine may run before signals, the watchdog and other operations are served

_busy: set[Queue] = set()  # queues with something in flight
_in_python: set[Queue] = set()  # those with something in flight that only Python advances
needing_python = np.zeros(1, np.int64)  # the number of the latter, which fastpath/entry.py reads
_busy_lock = threading.RLock()


def anything_in_flight() -> bool:
    """Return whether a collective is in flight on any communicator of this process."""
    return bool(_busy)


def advance_all(but: Queue | None = None) -> None:
    """Advance what is in flight on every communicator, except where another thread is doing so."""
    for queue in list(_busy):
        if queue is not but:
            queue.poll(blocking=False)


class Owner(Explaining, Protocol):
    """The communicator's side of a queue."""

    def operation_begins(self, operation: Operation) -> None:
        """Record that an operation is put in flight, in the thread that called it."""

    def operation_ended(self, operation: Operation) -> None:
        """Record how an operation ended; it leaves the queue then."""

    def operation_interrupted(self, operation: Operation, error: BaseException) -> None:
        """Record that an interrupt made this rank leave a call that is still in flight."""

    def check_stalls(self) -> None:
        """Check, after a pass in which nothing ended, whether an operation has stalled."""

    def call_errhandler(self, error: MPI.Exception) -> None:
        """Call the error handler of the user's communicator."""


class Queue:
    """Operations in flight. Each thread that advances them holds the lock."""

    def __init__(self, owner: Owner, tags_in_flight: np.ndarray, in_background: bool) -> None:
        """For an owner, which keeps this queue; in_background: threads advance it while the program computes.

        tags_in_flight has a word for every sequence number modulo SEQUENCES: whether its tags are in use.
        """
        self.owner: Owner = weakref.proxy(owner)  # no cycle: what the owner has goes when it does
        self.tags_in_flight, self.in_background = tags_in_flight, in_background
        self.in_flight: list[Operation] = []
        self.slots: dict[int, Operation] = {}  # the last operation with the tags of each slot
        self.started: dict[int, np.ndarray] = {}  # how often each persistent collective was, by the call that made it
        self.lock = threading.RLock()
        self.closed = False  # whether its communicator is freed: nothing is advanced any more

    def launch(self, operation: Operation) -> None:
        """Put an operation in flight. If it has the tags of an earlier one, it begins when that one is done."""
        operation.owner = self.owner
        with self.lock:
            if operation.form == PERSISTENT:  # these have tags of their own
                operation.start = self._next_start(operation)
            elif operation.choice.algorithm != NATIVE:  # and these use none
                slot = operation.sequence % SEQUENCES
                operation.after = operation.after or self.slots.get(slot)
                self.slots[slot] = operation
                self.tags_in_flight[slot] = True
            self.owner.operation_begins(operation)
            self.in_flight.append(operation)
            self.is_busy(True)

    def begin(self, operation: Operation) -> float:
        """Launch an operation for which the caller waits later, and return when that was."""
        since = THREAD.enter()
        in_background = self.in_background and ProgressThread.possible()
        if in_background:
            THREAD.start()
        with self.lock:
            self.launch(operation)
            if operation.is_begun and operation.after is None:
                operation.take_up()
                self.is_busy(True)
            else:
                self.step(0.0)
        if in_background and self.in_flight:
            THREAD.watch(self)
        THREAD.leave()
        return since

    def _next_start(self, operation: Operation) -> int:
        """Return which start of a persistent collective this is. One that was begun elsewhere is counted already."""
        started = self.started[operation.sequence]
        started += not operation.is_begun
        return int(started[0])

    def run(self, operation: Operation) -> None:
        """Launch an operation and wait for it, advancing all others too. Raises the operation's error."""
        self.launch(operation)
        try:
            self.wait(operation)
        except BaseException as error:
            if not operation.done:  # a signal handler raised: the call is still in flight, without a waiter
                self.owner.operation_interrupted(operation, error)
            raise

    def wait(self, operation: Operation) -> None:
        """Advance everything in this process until this operation is done. Raises the operation's error."""
        self.advance_until_done(operation)
        self.tell(operation)

    def tell(self, operation: Operation) -> None:
        """Raise the error of an operation that is done, once; the communicator's error handler is called before."""
        try:
            operation.tell()
        except MPI.Exception as error:
            self.owner.call_errhandler(error)
            raise

    def advance_until_done(self, operation: Operation) -> None:
        """Advance everything in this process until this operation is done, without raising its error."""
        operation.clock.wait_begins()
        THREAD.add_waiter()
        try:
            while not operation.done:
                with self.lock:
                    if operation.done:
                        break
                    alone = len(self.in_flight) == len(_busy) == 1
                    self.turn(SPIN if alone else 0.0)
                if not operation.done and not alone:
                    advance_all(but=self)
                    if any(queue.needs_python() for queue in list(_busy)):
                        os.sched_yield()
                    else:
                        THREAD.wait(SPIN)
        finally:
            THREAD.remove_waiter()

    def needs_python(self) -> bool:
        """Return whether anything is left to do that only Python does: something in flight to advance, or its end."""
        return not (self.in_flight and all(operation.is_driven for operation in self.in_flight))

    def turn(self, seconds: float) -> None:
        """Advance every operation once; if none ends, look for stalls."""
        if not self.step(seconds):
            self.owner.check_stalls()

    def step(self, seconds: float) -> bool:
        """Advance every operation once. Return whether any ended."""
        ended = [operation for operation in self.in_flight if operation.step(seconds)]
        for operation in ended:
            slot = operation.sequence % SEQUENCES
            if self.slots.get(slot) is operation:
                del self.slots[slot]
                self.tags_in_flight[slot] = False
            self.in_flight.remove(operation)
            self.owner.operation_ended(operation)
        self.is_busy(bool(self.in_flight))
        return bool(ended)

    def poll(self, blocking: bool = True) -> bool:
        """Make one pass over what is in flight, and return whether anything is left.

        Not blocking: make none if another thread is at it.
        """
        if not self.lock.acquire(blocking):
            return True
        try:
            if self.in_flight and not self.closed:
                self.turn(0.0)
            if not self.in_flight:  # an error or an interrupt in an earlier pass may have left it busy
                self.is_busy(False)
            return bool(self.in_flight)
        finally:
            self.lock.release()

    def drain(self) -> None:
        """Complete what is in flight."""
        while self.in_flight:
            with self.lock:
                self.turn(0.0)
            advance_all(but=self)
            os.sched_yield()

    def is_busy(self, busy: bool) -> None:
        """Note whether anything is in flight."""
        with _busy_lock:
            (_busy.add if busy else _busy.discard)(self)
            (_in_python.add if busy and self.needs_python() else _in_python.discard)(self)
            needing_python[0] = len(_in_python)
        if not busy:
            THREAD.queues.discard(self)
