"""Outcomes of a call in the compiled function of the fast path."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """The outcome of the last call of the compiled function. Negative numbers are MPI's error codes."""

    NOT_SERVED = 0  # the call takes the slow path
    IN_PROGRESS = 1  # the function posted messages, and the slow path completes them
    COMPLETED = 2
    ABANDONED = 3  # the function posted messages, and an interrupt came before anything progressed them
