"""Find the program's line of a fast call by the address of the calling instruction.

Python would take 100 ns to return the line. Compiled code takes a few to follow the interpreter's pointers from the
thread to the frame of the method's caller and its current instruction. For an instruction that is not in the table,
Python finds the line and adds it. If the pointers are unknown (Python 3.10), rows have the line of the call from which
the fast path's row was made.
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

WAYS = 4  # consecutive slots in which an instruction may be
INSTRUCTION, LOCATION = range(SITE_COLUMNS)


@njit
def locate_call(context, frames):  # type: ignore[no-untyped-def]
    """Return the bits of a history row for the program's line, so many frames further out; 0 if it is unknown.

    If Python can add the line, UNKNOWN_SITE is set to the instruction.
    """
    context[field.UNKNOWN_SITE] = 0
    if context[field.THREAD_STATE] == 0:
        return 0
    frame = load(call_long(context[field.THREAD_STATE], ()) + context[field.STATE_FRAME])
    if context[field.STATE_INDIRECT] >= 0:
        frame = load(frame + context[field.STATE_INDIRECT])
    for _ in range(frames):
        if frame != 0:
            frame = load(frame + context[field.PREVIOUS_FRAME])
    if frame == 0:
        return 0
    instruction = load(frame + context[field.FRAME_INSTRUCTION])
    for offset in range(WAYS):
        at = ((instruction >> 1) + offset) & (SITES - 1)
        site = line(context[field.KNOWN_SITES] + 8 * SITE_COLUMNS * at, SITE_COLUMNS)
        if site[INSTRUCTION] == instruction:
            return site[LOCATION]
        if site[INSTRUCTION] == 0:
            context[field.UNKNOWN_SITE] = instruction
            return 0
    return 0


class Sites:
    """The table of instructions and lines. It keeps code objects alive, so that no other gets their addresses."""

    def __init__(self) -> None:
        self.table = field.SITE_TABLE
        self.codes: list[CodeType] = []

    def note(self, context: np.ndarray) -> None:
        """Add the line of a context's last call to the table and to its row, if UNKNOWN_SITE is set."""
        instruction = context.item(field.UNKNOWN_SITE)
        if not instruction:
            return
        context[field.UNKNOWN_SITE] = 0
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_within(frame.f_code, instruction):
            frame = frame.f_back
        bits = 0
        if frame is not None:
            self.codes.append(frame.f_code)
            bits = RECORD.history.intern_caller()
            RECORD.history.set_location(context.item(field.LAST_ROW), bits)
        del frame
        for offset in range(WAYS):
            site = self.table[((instruction >> 1) + offset) & (SITES - 1)]
            if site[INSTRUCTION] == 0:
                site[:] = instruction, bits
                return


KNOWN = Sites()
