"""The lines of the program that call the fast path, which compiled code knows by the addresses of instructions.

Python would take 100 ns to say the line; compiled code takes a few to follow the interpreter's own pointers from the
thread to the frame of the method's caller, and to the instruction there. A call from an instruction that is not known
yet goes through Python, which notes the line. Where the pointers are not known (Python 3.10), rows have the line that
was noted when the fast path began to serve the call.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType

import numpy as np

from ..diagnostics.flight import RECORD
from ..kernels.deferred import njit
from ..kernels.memory import call_long, line, load
from . import context as field
from .context import SITE_COLUMNS, SITES
from .frames import is_within

WAYS = 4  # places that an instruction may be in, one behind the other
INSTRUCTION, LOCATION = range(SITE_COLUMNS)


@njit
def location(context, calls):  # type: ignore[no-untyped-def]
    """Return the bits of a row for the line that made the call, so many frames outside; 0 if it is not known.

    UNKNOWN has the instruction if Python is to note it.
    """
    context[field.UNKNOWN] = 0
    if context[field.THREAD_STATE] == 0:
        return 0
    frame = load(call_long(context[field.THREAD_STATE], ()) + context[field.STATE_FRAME])
    if context[field.THROUGH] >= 0:
        frame = load(frame + context[field.THROUGH])
    for _ in range(calls):
        if frame != 0:
            frame = load(frame + context[field.PREVIOUS_FRAME])
    if frame == 0:
        return 0
    instruction = load(frame + context[field.FRAME_INSTRUCTION])
    for way in range(WAYS):
        at = ((instruction >> 1) + way) & (SITES - 1)
        site = line(context[field.KNOWN_SITES] + 8 * SITE_COLUMNS * at, SITE_COLUMNS)
        if site[INSTRUCTION] == instruction:
            return site[LOCATION]
        if site[INSTRUCTION] == 0:
            context[field.UNKNOWN] = instruction
            return 0
    return 0


class Sites:
    """The lines that made calls, by instruction. It keeps their code, since another may get the same addresses."""

    def __init__(self) -> None:
        self.table = field.SITE_TABLE
        self.codes: list[CodeType] = []

    def note(self, context: np.ndarray) -> None:
        """Note the line of the call that the function of a context began, if it is not known, in its row too."""
        instruction = context.item(field.UNKNOWN)
        if not instruction:
            return
        context[field.UNKNOWN] = 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_within(frame.f_code, instruction):
            frame = frame.f_back
        bits = 0
        if frame is not None:
            self.codes.append(frame.f_code)
            bits = RECORD.history.intern_caller()
            RECORD.history.set_location(context.item(field.LAST_ROW), bits)
        del frame
        for way in range(WAYS):
            site = self.table[((instruction >> 1) + way) & (SITES - 1)]
            if site[INSTRUCTION] == 0:
                site[:] = instruction, bits
                return


KNOWN = Sites()
