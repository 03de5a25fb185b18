"""Write the rows of calls into the ring buffers of timelines, in compiled code; diagnostics/ring.py defines them."""

from __future__ import annotations

from ..diagnostics import ring
from ..diagnostics.ring import (
    BEGAN,
    CALL_COLUMNS,
    CALLS,
    CALLS_AT,
    COMM,
    ENDED,
    FIRST,
    HEADER,
    LOST,
    MESSAGES,
    MESSAGES_AT,
    NBYTES,
    RECEIVED,
    ROOM,
    ROWS,
    SENT,
    SEQUENCE,
    START,
    WAITED,
)
from ..engines import events
from ..engines.compiled import CALL, CAPACITY, EVENT_COUNT, EVENTS, LIBRARY, PROGRESS, line_of, nanoseconds
from ..engines.events import COLUMNS, NO_MESSAGE, POSTED
from ..kernels.deferred import njit
from ..kernels.memory import line, table
from ..plans.plan import SEND
from . import context as field


@njit
def write(context, tables, comm, kind, sequence, start, nbytes):  # type: ignore[no-untyped-def]
    """Write the rows of a call that ends now, for which the program waited. Return False if its messages do not fit."""
    header, progress, call = line(context[field.RING], HEADER), line_of(tables, PROGRESS), line_of(tables, CALL)
    room, count = header[ROOM], progress[EVENT_COUNT]
    if room == 0 or count > min(room, call[CAPACITY]):
        return False
    ended = nanoseconds(line_of(tables, LIBRARY), call)
    began, received = ended, 0
    first = header[MESSAGES]
    at, rows, kept = first % room, table(call[EVENTS], count, COLUMNS), table(header[MESSAGES_AT], room, COLUMNS)
    for i in range(count):
        for j in range(COLUMNS):
            kept[at, j] = rows[i, j]
        if rows[i, events.KIND] != SEND and rows[i, events.KIND] != NO_MESSAGE:
            received += rows[i, events.NBYTES]
        at = at + 1 if at + 1 < room else 0
    if count > 0:
        began = rows[0, POSTED]
    number = header[CALLS]
    row = line(header[CALLS_AT] + 8 * CALL_COLUMNS * (number % room), CALL_COLUMNS)
    row[ring.KIND], row[COMM], row[SEQUENCE], row[START], row[NBYTES] = kind, comm, sequence, start, nbytes
    row[SENT], row[RECEIVED], row[BEGAN], row[WAITED], row[ENDED] = progress[1], received, began, began, ended
    row[FIRST], row[ROWS], row[LOST] = first, count, 0
    header[CALLS], header[MESSAGES] = number + 1, first + count
    return True
