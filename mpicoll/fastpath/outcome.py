"""How far a call came on the fast path."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """What the compiled function left behind; negative numbers are MPI's error codes."""

    MISSED = 0  # it served nothing: the call takes the slow path
    UNDER_WAY = 1  # it posted messages, and somebody goes on with them
    RAN = 2  # the collective is over
    STALE = 3  # it posted messages, and an interrupt kept the caller from going on
