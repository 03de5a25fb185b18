"""Keep the calls of this process and their messages in ring buffers, while timelines are recorded.

Compiled code (fastpath/ring_rows.py) and Python write a row for a call when it ends, and copy the rows of its messages;
a timeline reads them when it ends, and no Python object is made for a call of the fast path before that.

    calls       rows of CALL_COLUMNS words
    messages    rows of engines/events.py, those of a call one after the other
    header      how many rows of both were written, where they are, and for how many there is room in each

Row n is at n modulo the room, so that new calls replace the oldest ones. Times are nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, NamedTuple

import numpy as np

from ..engines.events import COLUMNS
from ..kernels.memory import address_of
from ..plans.rolled import RolledPlan
from .record import Record

CALLS, MESSAGES, CALLS_AT, MESSAGES_AT, ROOM = range(5)  # words of the header
HEADER = 5
# Columns of a call: FIRST is the number of its first message, ROWS how many it has; NBYTES is AS_KIND if all calls of
# its kind have the same.
KIND, COMM, SEQUENCE, START, NBYTES, SENT, RECEIVED, BEGAN, WAITED, ENDED, FIRST, ROWS, LOST = range(13)
CALL_COLUMNS = 13
AS_KIND = -1
MIN_KINDS = 1024  # kinds that are kept before those of no row are removed


class CallKind:
    """Calls that differ in times and counts alone: their record, and the plan that numbers the steps of messages."""

    __slots__ = ("__weakref__", "plan", "record")

    def __init__(self, record: Record, plan: RolledPlan | None) -> None:
        self.record, self.plan = record, plan


class Recorded(NamedTuple):
    """The calls of some time, their messages, and the kinds of calls by their numbers.

    FIRST of a call is an index in messages. dropped: how many calls were replaced by later ones.
    """

    calls: np.ndarray
    messages: np.ndarray
    kinds: dict[int, CallKind]
    dropped: int


class Ring:
    """The ring buffers of this process. They have memory while they have users."""

    def __init__(self) -> None:
        self.header = np.zeros(HEADER, np.int64)
        self.address = address_of(self.header)
        self.words: Any = memoryview(self.header)  # type: ignore[arg-type]
        self.users = 0
        self.numbers = itertools.count(0, 2)
        self.usable: weakref.WeakValueDictionary[int, CallKind] = weakref.WeakValueDictionary()  # may come again
        self.release()

    def release(self) -> None:
        """Free the memory of rows and kinds."""
        self.kinds: dict[int, CallKind] = {}
        self.most_kinds = MIN_KINDS
        self.allocate(0)

    def allocate(self, room: int) -> None:
        """Make room for so many calls and so many messages. A row that no call has written yet has no communicator."""
        self.calls = np.zeros((room, CALL_COLUMNS), np.int64)
        self.messages = np.empty((room, COLUMNS), np.int64)
        self.header[:] = 0, 0, address_of(self.calls), address_of(self.messages), room

    def begin(self, room: int) -> int:
        """Keep rows until the matching end(); return the number of the next call. The first user chooses the room."""
        self.users += 1
        if self.users == 1:
            self.allocate(max(1, room))
            self.kinds = dict(self.usable)
        return int(self.words[CALLS])

    def end(self) -> None:
        """Undo one begin(); after the last, the memory is freed."""
        self.users -= 1
        if not self.users:
            self.release()

    def add(self, plan: RolledPlan | None, *records: Record) -> tuple[int, tuple[CallKind, ...]]:
        """Return the number of the first of one or two kinds of calls, and the kinds; the second has the next number.

        The caller keeps the kinds while it uses their numbers.
        """
        number, kinds = next(self.numbers), tuple(CallKind(record, plan) for record in records)
        numbered = dict(enumerate(kinds, number))
        self.usable.update(numbered)
        if self.users:
            self.kinds |= numbered
            if len(self.kinds) > self.most_kinds:
                self._remove_unused_kinds()
        return number, kinds

    def _remove_unused_kinds(self) -> None:
        rows = self.calls[: min(self.words[CALLS], self.words[ROOM])]
        self.kinds = {n: self.kinds[n] for n in np.unique(rows[:, KIND]).tolist() if n in self.kinds}
        self.kinds |= self.usable  # only callers keep the others
        self.most_kinds = max(MIN_KINDS, 2 * len(self.kinds))

    def write(self, comm: int, record: Record) -> None:
        """Write the rows of a call on the communicator with this number, if it has times."""
        times = record.times
        if times is None or not self.users:
            return
        events = times.events
        rows, lost = (events.rows, events.lost) if events is not None else (np.empty((0, COLUMNS), np.int64), 0)
        kind, _kinds = self.add(events.plan if events is not None else None, record.with_values(times=None))
        words, room = self.words, self.words[ROOM]
        kept = rows[:room]
        lost, count = lost + len(rows) - len(kept), len(kept)
        call = words[CALLS]  # no other thread runs between this and the end of the next line: nothing is called
        words[CALLS], first, words[MESSAGES] = call + 1, words[MESSAGES], words[MESSAGES] + count
        began, waited, ended = (round(seconds * 1e9) for seconds in (times.began, times.waited, times.ended))
        numbers = record.nbytes, record.bytes, record.received, began, waited, ended, first, count, lost
        self.calls[call % room] = kind, comm, record.sequence, record.start, *numbers
        self.messages[np.arange(first, first + count) % room] = kept

    def since(self, first: int) -> Recorded:
        """Return a copy of what was recorded from the call with this number on, without what was replaced since."""
        calls, messages, *_, room = self.header.tolist()
        oldest = max(first, calls - room)
        rows = self.calls[np.arange(oldest, calls) % room]
        intact = rows[:, FIRST] >= messages - room
        rows = rows[int(np.argmax(intact)) if intact.any() else len(rows) :]
        begin = int(rows[0, FIRST]) if len(rows) else messages
        of_calls = self.messages[np.arange(begin, messages) % room]
        rows[:, FIRST] -= begin
        return Recorded(rows, of_calls, dict(self.kinds), calls - first - len(rows))


RING = Ring()


class RingSink:
    """Writes the records of one communicator into the ring; `number` is that of the communicator in its rows."""

    numbers = itertools.count(1)

    def __init__(self) -> None:
        self.number, self.users = next(RingSink.numbers), 0

    def append(self, record: Record) -> None:
        """Write the rows of one call."""
        RING.write(self.number, record)
