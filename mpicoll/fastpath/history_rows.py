"""Write rows of the history of calls in compiled code; diagnostics/history.py defines their layout.

A call reads the clock twice. The processor's time-stamp counter takes half of the time of clock_gettime (10 and 23 ns,
measured), so rows contain its ticks. Now and then a pair of ticks and nanoseconds is stored, by which a reader converts
ticks. On processors other than x86-64, ticks are nanoseconds.
"""

from __future__ import annotations

import platform
import time
from typing import Any

from ..diagnostics import history
from ..diagnostics.history import (
    BEGAN,
    CHECK,
    COLUMNS,
    ENDED,
    FIRST_NS,
    FIRST_TICKS,
    HEAD,
    HEADER,
    IDS,
    LAST_NS,
    LAST_TICKS,
    LOCATION_SHIFT,
    NBYTES,
    NEXT_TICKS,
    ROWS,
    SEQUENCE,
    SERIAL,
    START,
    TIMESPEC,
)
from ..kernels.clock import clock_ns
from ..kernels.deferred import intrinsic, njit
from ..kernels.memory import line
from . import context as field
from . import sites

HAS_COUNTER = platform.machine() in ("x86_64", "AMD64")
MIN_INTERVAL, MAX_INTERVAL = 1 << 16, 1 << 28  # ticks between two pairs: few at first, for short runs


def _counter(typing: Any) -> Any:
    from llvmlite import ir
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(64), [])
        return builder.call(builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind), [])

    return types.int64(), generate


_REALTIME = int(time.CLOCK_REALTIME)
counter = intrinsic(_counter, time.perf_counter_ns)
checksum = njit(history.checksum)


@njit
def nanoseconds(context):  # type: ignore[no-untyped-def]
    """Return the nanoseconds since 1970."""
    return clock_ns(context[field.CLOCK_GETTIME], _REALTIME, context[field.HISTORY] + 8 * TIMESPEC)


@njit
def ticks(context):  # type: ignore[no-untyped-def]
    """Return the time in ticks."""
    return counter() if HAS_COUNTER else nanoseconds(context)


@njit
def note_pair(words, now, ns):  # type: ignore[no-untyped-def]
    """Store a pair of ticks and nanoseconds, and the ticks at which the next pair is due."""
    if words[FIRST_TICKS] == 0:
        words[FIRST_TICKS], words[FIRST_NS] = now, ns
    words[LAST_TICKS], words[LAST_NS] = now, ns
    words[NEXT_TICKS] = now + min(max(now - words[FIRST_TICKS], MIN_INTERVAL), MAX_INTERVAL)


@njit
def begin(context, ids, sequence, start, nbytes, frames):  # type: ignore[no-untyped-def]
    """Write the row of a call that begins, and store its serial in LAST_ROW; 0 if no history is kept.

    frames: the number of mpicoll's frames between the program's frame and this function.
    """
    if context[field.HISTORY] != 0:
        location = sites.locate_call(context, frames)
        if location != 0:
            ids = (ids & ((1 << LOCATION_SHIFT) - 1)) | location
        words, now = line(context[field.HISTORY], HEADER), ticks(context)
        if now >= words[NEXT_TICKS]:
            ns = nanoseconds(context)
            now = ticks(context)
            note_pair(words, now, ns)
        serial = words[HEAD] + 1
        words[HEAD] = serial
        row = line(context[field.HISTORY] + 8 * (HEADER + ((serial - 1) & (ROWS - 1)) * COLUMNS), COLUMNS)
        row[SERIAL], row[IDS], row[SEQUENCE], row[START], row[NBYTES] = serial, ids, sequence, start, nbytes
        row[BEGAN], row[ENDED] = -now, 0
        row[CHECK] = checksum(serial, ids, sequence, start, nbytes, -now)
        context[field.LAST_ROW] = serial


@njit
def end(context):  # type: ignore[no-untyped-def]
    """Store the end of the call in LAST_ROW, unless another call has overwritten its row."""
    serial = context[field.LAST_ROW]
    if serial != 0:
        row = line(context[field.HISTORY] + 8 * (HEADER + ((serial - 1) & (ROWS - 1)) * COLUMNS), COLUMNS)
        if row[SERIAL] == serial:
            row[ENDED] = -ticks(context)
