"""Keep the turns of the progress threads in a ring buffer, while timelines are recorded.

A turn is the time in which one thread advanced one operation and something moved: messages were posted, a step was
finished, or the operation ended. Polls in which nothing moved leave no row. The driver writes its rows in compiled code
without the GIL (table.py), the Python thread appends tuples. So the driver's rows are not in the ring buffers of calls
(diagnostics/ring.py), which are written under the GIL and freed when the last timeline ends: the driver may still write
a row then. Its rows are allocated by the first timeline, and never freed.

Row n is at n modulo ROOM, so that new turns replace the oldest. Times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

import numpy as np

from ..kernels.clock import clock_ns
from ..kernels.deferred import njit
from ..kernels.memory import address_of, compare_and_set, line

ROOM = 1 << 17  # rows that each thread keeps
ON, COUNT, AT, CLOCK_GETTIME, TIMESPEC = range(5)  # words of the header
HEADER = 5
# Columns of a row. COMM is the number of the communicator in the ring of calls; with SEQUENCE and START it names the
# call. POSTED, SENT and STEPS are how much the plan's progress counters grew: messages, bytes, and steps.
COMM, SEQUENCE, START, BEGAN, ENDED, POSTED, SENT, STEPS = range(8)
COLUMNS = 8
NO_ROWS = np.empty((0, COLUMNS), np.int64)
_MONOTONIC = int(time.CLOCK_MONOTONIC)


class CallNumbers(NamedTuple):
    """The words that name a call in a row. No communicator has number 0, which stands for what is no call."""

    comm: int
    sequence: int
    start: int


NO_CALL = CallNumbers(0, 0, 0)


@njit
def begin(header, counters):  # type: ignore[no-untyped-def]
    """Begin the driver's next row, with a plan's progress counters; return its address, 0 while nothing is recorded.

    Each call replaces the row that was begun before it, unless end() has kept that.
    """
    if header[ON] == 0:
        return 0
    at = header[AT] + 8 * COLUMNS * (header[COUNT] % ROOM)
    row, before = line(at, COLUMNS), line(counters, 3)
    row[POSTED], row[SENT], row[STEPS] = before[0], before[1], before[2]
    row[BEGAN] = clock_ns(header[CLOCK_GETTIME], _MONOTONIC, header[TIMESPEC])
    return at


@njit
def end(header_at, at, counters, comm, sequence, start):  # type: ignore[no-untyped-def]
    """Keep the row at an address, whose turn ends now."""
    header, row, after = line(header_at, HEADER), line(at, COLUMNS), line(counters, 3)
    row[COMM], row[SEQUENCE], row[START] = comm, sequence, start
    row[POSTED], row[SENT], row[STEPS] = after[0] - row[POSTED], after[1] - row[SENT], after[2] - row[STEPS]
    row[ENDED] = clock_ns(header[CLOCK_GETTIME], _MONOTONIC, header[TIMESPEC])
    compare_and_set(header_at + 8 * COUNT, header[COUNT], header[COUNT] + 1)  # after the words of the row


class Mark(NamedTuple):
    """Counts of the turns that the driver and the Python thread had recorded at some time."""

    driver: int
    python: int


class RecordedTurns(NamedTuple):
    """The rows of the driver and of the Python thread, and how many turns were replaced by later ones."""

    driver: np.ndarray = NO_ROWS
    python: np.ndarray = NO_ROWS
    dropped: int = 0


class Turns:
    """The turns of this process."""

    def __init__(self, clock_gettime: int = 0) -> None:
        """Prepare to record; clock_gettime is the address of the C function, which the driver calls."""
        self.timespec = np.zeros(2, np.int64)
        self.header = np.array([0, 0, 0, clock_gettime, address_of(self.timespec)], np.int64)
        self.address = address_of(self.header)
        self.rows = NO_ROWS
        self.python_rows: deque[tuple[int, ...]] = deque(maxlen=ROOM)
        self.python_count = self.users = 0

    def begin(self) -> Mark:
        """Record until the matching end(); return where its turns begin."""
        if not len(self.rows):
            self.rows = np.zeros((ROOM, COLUMNS), np.int64)  # takes memory as rows are written
            self.header[AT] = address_of(self.rows)
        self.users += 1
        self.header[ON] = 1
        return Mark(self.header.item(COUNT), self.python_count)

    def end(self) -> None:
        """Undo one begin(); after the last, no turns are recorded, and those of the Python thread are freed."""
        self.users -= 1
        if not self.users:
            self.header[ON] = 0
            self.python_rows.clear()

    def add(self, call: CallNumbers, began: int, grew: tuple[int, int, int]) -> None:
        """Record a turn of the Python thread, which ends now; `grew` has POSTED, SENT and STEPS."""
        self.python_rows.append((*call, began, time.monotonic_ns(), *grew))
        self.python_count += 1

    def since(self, mark: Mark) -> RecordedTurns:
        """Return a copy of the turns after a mark."""
        count, rows = self.header.item(COUNT), list(self.python_rows)
        first = max(mark.driver, count - ROOM)
        copy = self.rows[np.arange(first, count) % ROOM]
        oldest = self.header.item(COUNT) + 1 - ROOM  # the driver may have written rows meanwhile, and be in the next
        of_driver = copy[max(0, oldest - first) :]
        of_python = rows[max(0, len(rows) - (self.python_count - mark.python)) :]
        dropped = count - mark.driver - len(of_driver) + self.python_count - mark.python - len(of_python)
        return RecordedTurns(of_driver, np.array(of_python, np.int64).reshape(-1, COLUMNS), dropped)
