"""The plans in flight in this process: rows of a table that compiled code advances, in any thread, without the GIL.

A row holds the address of a C function, its argument, and where it counts what moves. Every thread that advances a row
holds its lock meanwhile, which is a word that is set by one atomic instruction: a thread that finds it set takes
the next row, or yields. A row is free once its plan has ended and `advance` has returned how.
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

ROWS = 256  # plans that may be in the table at once; Python advances those beyond
# words of a row; CODE is what the function returned last: 0 until the plan has ended
LOCK, ARGUMENT, CODE, FUNCTION, COUNTERS = range(5)
ROW = 8
FREE, ADVANCED, HELD = range(3)  # what LOCK says: no thread has the row, one advances it, Python looks at it
# Words that Python and the driver share: whether the driver is to end, whether it has begun, how it sleeps; how many
# threads wait, whether the program works while something is in flight, whether threads wait for processors; since when
# nothing has moved for a thread that waits, how many passes the driver has made, how many rows were ever used.
STOP, BEGUN, SLEEP, WAITERS, WORKS_ON, CONTENDED, IDLE_SINCE, PASSES, USED = range(9)
# The driver's own: when it last looked how long the main thread waited for a processor, how long that was in all, until
# when processors count as taken; then addresses and descriptors.
LOOKED, DELAYED, TAKEN_UNTIL, TABLE, WAKE, ENDED, DELAYS, POLL_ARGUMENT, TIME, BYTES = range(9, 19)
POLL, READ, PREAD, WRITE, YIELD, USLEEP, CLOCK = range(19, 26)
CONTROL = 26
AWAKE, RESTS, SLEEPS = range(3)  # how the thread sleeps: not for long, until some time is over, until it is woken
UNDER_WAY = 0
_TURNS = 100  # times that a thread offers the processor before it returns to its caller, which has waited for a row
DRAIN = 64  # bytes that are read from a pipe at once


@njit
def moves(address):  # type: ignore[no-untyped-def]
    """Return the sum of what a plan has counted; it grows whenever anything has moved."""
    counters = line(address, 3)
    return counters[0] + counters[1] + counters[2]


@jit("void(int64, int64, int64, int64)", also=(memory.__file__,), in_python=False)
def put(at, function, argument, counters):  # type: ignore[no-untyped-def]
    """Put a plan into the row at an address, unless it is there, or has ended."""
    row = line(at, ROW)
    if row[ARGUMENT] == 0 and row[CODE] == UNDER_WAY:
        row[FUNCTION], row[COUNTERS] = function, counters
        compare_and_set(at + 8 * ARGUMENT, 0, argument)


@jit("int64(int64, int64, int64)", also=(memory.__file__,), in_python=False)
def advance(control_at, at, nanoseconds):  # type: ignore[no-untyped-def]
    """Advance the plan in the row at an address; return its code: 0 until it has ended.

    If another thread advances it, wait for that one for some microseconds.
    """
    control, row, turns = line(control_at, CONTROL), line(at, ROW), 0
    while not compare_and_set(at, FREE, ADVANCED):
        turns += 1
        if nanoseconds <= 0 or turns > _TURNS:
            return UNDER_WAY
        call_int(control[YIELD], (0,))
    if row[CODE] == UNDER_WAY and row[ARGUMENT] != 0:
        row[CODE] = call_long(row[FUNCTION], (row[ARGUMENT], nanoseconds))
    code = row[CODE]
    if code != UNDER_WAY:
        row[ARGUMENT] = 0
    compare_and_set(at, ADVANCED, FREE)
    return code


@jit("void(int64, int64)", also=(memory.__file__,), in_python=False)
def hold(control_at, at):  # type: ignore[no-untyped-def]
    """Lock the row at an address, once no thread advances it. A second call of one holder does nothing."""
    while line(at, ROW)[LOCK] != HELD and not compare_and_set(at, FREE, HELD):
        call_int(line(control_at, CONTROL)[YIELD], (0,))


@jit("void(int64)", also=(memory.__file__,), in_python=False)
def release(at):  # type: ignore[no-untyped-def]
    """Unlock a row that is held; do nothing if it is not."""
    compare_and_set(at, HELD, FREE)


@jit("void(int64, int64)", also=(memory.__file__,), in_python=False)
def remove(control_at, at):  # type: ignore[no-untyped-def]
    """Empty the row at an address, once no thread advances its plan."""
    while not compare_and_set(at, FREE, ADVANCED):
        call_int(line(control_at, CONTROL)[YIELD], (0,))
    row = line(at, ROW)
    row[ARGUMENT], row[CODE] = 0, UNDER_WAY
    compare_and_set(at, ADVANCED, FREE)


@njit
def pass_over(control, advances):  # type: ignore[no-untyped-def]
    """Advance every plan once, or none. Return how many have not ended, whether any moved, and whether any ended."""
    alive, moved, ended = 0, False, False
    for i in range(control[USED]):
        at = control[TABLE] + 8 * ROW * i
        row = line(at, ROW)
        if row[ARGUMENT] == 0 or row[CODE] != UNDER_WAY:
            continue
        alive += 1
        if not advances or not compare_and_set(at, FREE, ADVANCED):
            continue
        if row[ARGUMENT] != 0 and row[CODE] == UNDER_WAY:
            before = moves(row[COUNTERS])
            row[CODE] = call_long(row[FUNCTION], (row[ARGUMENT], 0))
            ended |= row[CODE] != UNDER_WAY
            moved |= moves(row[COUNTERS]) != before
        compare_and_set(at, ADVANCED, FREE)
    return alive, moved, ended


class Table:
    """The table of this process, with the words that the thread shares with Python."""

    def __init__(self, wake: int, ended: int) -> None:
        """Wake: the end of a pipe from which the thread reads when it is woken; ended: one to which it writes."""
        self.rows = np.zeros((ROWS, ROW), np.int64)
        self.control = np.zeros(CONTROL, np.int64)
        self.free = list(range(ROWS))[::-1]
        self._lock = threading.Lock()
        poll_argument = np.array([wake, 1], np.int32)  # struct pollfd: the descriptor, POLLIN
        self._memory = poll_argument, np.zeros(2, np.int64), np.zeros(DRAIN, np.uint8)
        c, mpi = ctypes.CDLL(None), ctypes.CDLL(MPI.__file__)
        functions = c.ppoll, c.read, c.pread, c.write, c.sched_yield, c.usleep, mpi.MPI_Wtime
        self.control[TABLE] = address_of(self.rows)
        self.control[[WAKE, ENDED, DELAYS]] = wake, ended, -1
        self.control[[POLL_ARGUMENT, TIME, BYTES]] = [address_of(array) for array in self._memory]
        self.control[POLL:] = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions]
        self.at = address_of(self.control)

    def row(self) -> Row | None:
        """Return an empty row, None if there is none."""
        with self._lock:  # else a thread could set USED to less than another thread has just done
            if not self.free:
                return None
            number = self.free.pop()
            self.control[USED] = max(self.control[USED], number + 1)
        return Row(self, number)


class Row:
    """A plan's row. It must be given up when its plan has ended, or is no longer to be advanced."""

    def __init__(self, table: Table, number: int) -> None:
        self._table, self._number = table, number
        self.at = table.control.item(TABLE) + 8 * ROW * number

    def put(self, step: CompiledStep) -> None:
        """Put a plan into it, once: a second call, after an interrupt, does nothing.

        The caller wakes the thread if SLEEP says so, which it reads after this.
        """
        put.entry(self.at, step.function, step.argument, step.counters)

    @property
    def has_ended(self) -> bool:
        """True once a thread has advanced the plan to its end."""
        return bool(self._table.rows.item(self._number, CODE) != UNDER_WAY)

    def advance(self, seconds: float) -> int:
        """Advance the plan for at most so many seconds; return its code: 0 until it has ended."""
        code: int = advance.entry(self._table.at, self.at, int(seconds * 1e9))
        return code

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep all threads from advancing the plan within the block. One thread at a time may call this."""
        try:
            hold.entry(self._table.at, self.at)
            yield
        finally:
            release.entry(self.at)  # no call in Python, at which a signal handler could raise

    def give_up(self) -> None:
        """Remove the plan, if it is still there, and free the row. A second call does nothing."""
        if self._number >= 0:
            remove.entry(self._table.at, self.at)
            number, self._number = self._number, -1
            self._table.free.append(number)
