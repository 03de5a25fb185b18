"""Keep the plans in flight in this process in a table whose rows any thread advances in compiled code, without the GIL.

A row has the addresses of a C function, its argument, and its progress counters. A thread that advances a row holds the
row's lock, a word that one atomic instruction sets. A thread that finds the lock taken goes to the next row, or yields.
A row may be freed once its plan has ended and `advance` has returned its code.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from mpi4py import MPI

from ..engines.protocol import CompiledStep
from ..kernels import memory
from ..kernels.cache import jit
from ..kernels.deferred import njit
from ..kernels.memory import address_of, call_int, call_long, compare_and_set, line
from . import turns
from .turns import NO_CALL, CallNumbers, Turns

ROWS = 256  # plans in the table at once; Python advances further ones
# words of a row; CODE is the last return value of the function: IN_PROGRESS until the plan has ended
# COMM, SEQUENCE and START name the call for timelines
LOCK, ARGUMENT, CODE, FUNCTION, COUNTERS, COMM, SEQUENCE, START = range(8)
ROW = 8
FREE, ADVANCED, HELD = range(3)  # values of LOCK: no thread has the row, a thread advances it, Python reads its plan
# Words that Python and the driver share: whether the driver must end, whether it has begun, how it sleeps; how many
# threads wait, whether the program computes while calls are in flight, whether processors are contended; when a waiting
# thread became idle, how many passes the driver has made, and 1 + the highest row that was ever used.
STOP, BEGUN, SLEEP, WAITERS, COMPUTES, CONTENDED, IDLE_SINCE, PASSES, USED = range(9)
# Words of the driver: when it last read the main thread's delay, that delay (the time in which the thread was ready to
# run without a processor), until when processors count as contended; then addresses and descriptors.
DELAY_READ_AT, DELAY, CONTENDED_UNTIL, TABLE, WAKE, ENDED, DELAYS, POLL_ARGUMENT, TIME, BYTES = range(9, 19)
POLL, READ, PREAD, WRITE, YIELD, USLEEP, CLOCK, TURNS = range(19, 27)  # TURNS: the header of turns.py
CONTROL = 27
AWAKE, DOZING, ASLEEP = range(3)  # the driver sleeps briefly or not at all; for a longer, limited time; until woken
IN_PROGRESS = 0
_MAX_YIELDS = 100  # of a thread that waits for the lock of a row, before it returns to its caller
DRAIN = 64  # bytes that are read from a pipe at once


@njit
def moves(address):  # type: ignore[no-untyped-def]
    """Return the sum of a plan's progress counters, which grows whenever anything moves."""
    counters = line(address, 3)
    return counters[0] + counters[1] + counters[2]


@jit("void(int64, int64, int64, int64, int64, int64, int64)", also=(memory.__file__,), in_python=False)
def put(at, function, argument, counters, comm, sequence, start):  # type: ignore[no-untyped-def]
    """Put a plan into the row at an address, unless it was put there before."""
    row = line(at, ROW)
    if row[ARGUMENT] == 0 and row[CODE] == IN_PROGRESS:
        row[FUNCTION], row[COUNTERS] = function, counters
        row[COMM], row[SEQUENCE], row[START] = comm, sequence, start
        compare_and_set(at + 8 * ARGUMENT, 0, argument)


@jit("int64(int64, int64, int64)", also=(memory.__file__,), in_python=False)
def advance(control_at, at, nanoseconds):  # type: ignore[no-untyped-def]
    """Advance the plan in the row at an address; return its code, IN_PROGRESS until it has ended.

    If another thread holds the row, yield a few times, then return IN_PROGRESS.
    """
    control, row, yields = line(control_at, CONTROL), line(at, ROW), 0
    while not compare_and_set(at, FREE, ADVANCED):
        yields += 1
        if nanoseconds <= 0 or yields > _MAX_YIELDS:
            return IN_PROGRESS
        call_int(control[YIELD], (0,))
    if row[CODE] == IN_PROGRESS and row[ARGUMENT] != 0:
        row[CODE] = call_long(row[FUNCTION], (row[ARGUMENT], nanoseconds))
    code = row[CODE]
    if code != IN_PROGRESS:
        row[ARGUMENT] = 0
    compare_and_set(at, ADVANCED, FREE)
    return code


@jit("void(int64, int64)", also=(memory.__file__,), in_python=False)
def hold(control_at, at):  # type: ignore[no-untyped-def]
    """Lock the row at an address for reading, once no thread advances it. A second call does nothing."""
    while line(at, ROW)[LOCK] != HELD and not compare_and_set(at, FREE, HELD):
        call_int(line(control_at, CONTROL)[YIELD], (0,))


@jit("void(int64)", also=(memory.__file__,), in_python=False)
def release(at):  # type: ignore[no-untyped-def]
    """Unlock a row that hold() has locked; else do nothing."""
    compare_and_set(at, HELD, FREE)


@jit("void(int64, int64)", also=(memory.__file__,), in_python=False)
def remove(control_at, at):  # type: ignore[no-untyped-def]
    """Empty the row at an address, once no thread advances its plan."""
    while not compare_and_set(at, FREE, ADVANCED):
        call_int(line(control_at, CONTROL)[YIELD], (0,))
    row = line(at, ROW)
    row[ARGUMENT], row[CODE] = 0, IN_PROGRESS
    compare_and_set(at, ADVANCED, FREE)


@njit
def pass_over(control, advances, records):  # type: ignore[no-untyped-def]
    """Advance every plan once if `advances`. Return how many were in progress, whether any moved, whether any ended.

    records: record turns for timelines, if any is recorded. Only the driver may.
    """
    alive, moved, ended = 0, False, False
    header = line(control[TURNS], turns.HEADER)
    for i in range(control[USED]):
        at = control[TABLE] + 8 * ROW * i
        row = line(at, ROW)
        if row[ARGUMENT] == 0 or row[CODE] != IN_PROGRESS:
            continue
        alive += 1
        if not advances or not compare_and_set(at, FREE, ADVANCED):
            continue
        if row[ARGUMENT] != 0 and row[CODE] == IN_PROGRESS:
            before = moves(row[COUNTERS])
            turn = turns.begin(header, row[COUNTERS]) if records else 0
            row[CODE] = call_long(row[FUNCTION], (row[ARGUMENT], 0))
            has_ended, has_moved = row[CODE] != IN_PROGRESS, moves(row[COUNTERS]) != before
            if turn != 0 and (has_ended or has_moved):
                turns.end(control[TURNS], turn, row[COUNTERS], row[COMM], row[SEQUENCE], row[START])
            ended |= has_ended
            moved |= has_moved
        compare_and_set(at, ADVANCED, FREE)
    return alive, moved, ended


class Table:
    """The table of this process, and the words that the driver shares with Python."""

    def __init__(self, wake: int, ended: int) -> None:
        """Make an empty table. The driver sleeps on the descriptor `wake`, and writes to `ended` when a plan ends."""
        self.rows = np.zeros((ROWS, ROW), np.int64)
        self.control = np.zeros(CONTROL, np.int64)
        self.free = list(range(ROWS))[::-1]
        self._lock = threading.Lock()
        poll_argument = np.array([wake, 1], np.int32)  # struct pollfd: the descriptor, POLLIN
        self._memory = poll_argument, np.zeros(2, np.int64), np.zeros(DRAIN, np.uint8)
        c, mpi = ctypes.CDLL(None), ctypes.CDLL(MPI.__file__)
        self.turns = Turns(ctypes.cast(c.clock_gettime, ctypes.c_void_p).value or 0)
        functions = c.ppoll, c.read, c.pread, c.write, c.sched_yield, c.usleep, mpi.MPI_Wtime
        self.control[TABLE] = address_of(self.rows)
        self.control[[WAKE, ENDED, DELAYS]] = wake, ended, -1
        self.control[[POLL_ARGUMENT, TIME, BYTES]] = [address_of(array) for array in self._memory]
        self.control[TURNS] = self.turns.address
        self.control[POLL:TURNS] = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
        self.at = address_of(self.control)

    def row(self) -> Row | None:
        """Return an empty row, None if all are in use."""
        with self._lock:  # else two threads could leave USED too small
            if not self.free:
                return None
            number = self.free.pop()
            self.control[USED] = max(self.control[USED], number + 1)
        return Row(self, number)


class Row:
    """A plan's row. Free it when the plan has ended, or must not be advanced any more."""

    def __init__(self, table: Table, number: int) -> None:
        self._table, self._number = table, number
        self.at = table.control.item(TABLE) + 8 * ROW * number

    def put(self, step: CompiledStep, call: CallNumbers = NO_CALL) -> None:
        """Put a plan of a call into the row. A second call, after an interrupt, does nothing.

        After this the caller reads SLEEP, and wakes the driver if that is ASLEEP.
        """
        put.entry(self.at, step.function, step.argument, step.counters, *call)

    @property
    def has_ended(self) -> bool:
        """Return whether a thread has advanced the plan to its end."""
        return bool(self._table.rows.item(self._number, CODE) != IN_PROGRESS)

    def advance(self, seconds: float) -> int:
        """Advance the plan for at most so many seconds; return its code, IN_PROGRESS until it has ended."""
        code: int = advance.entry(self._table.at, self.at, int(seconds * 1e9))
        return code

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every thread from advancing the plan within the block. One thread at a time may call this."""
        try:
            hold.entry(self._table.at, self.at)
            yield
        finally:
            release.entry(self.at)  # no call in Python, at which a signal handler could raise

    def free(self) -> None:
        """Remove the plan, and free the row. A second call does nothing."""
        if self._number >= 0:
            remove.entry(self._table.at, self.at)
            number, self._number = self._number, -1
            self._table.free.append(number)
