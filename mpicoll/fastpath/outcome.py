"""Define the outcomes of a call in the compiled function of the fast path."""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """The outcome of the last call of the compiled function. Negative numbers are MPI's error codes."""

    NOT_SERVED = 0  # the function did not begin the call, or nothing is left to do
    IN_PROGRESS = 1  # the function posted messages, and Python must complete the call
    COMPLETED = 2  # the call is complete, and Python must record it
    ABANDONED = 3  # the function posted messages, and an interrupt came before Python resumed the call
