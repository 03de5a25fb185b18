"""Read a clock of the system in compiled code."""

from __future__ import annotations

from .deferred import njit
from .memory import call_int, line


@njit
def clock_ns(clock_gettime, clock, timespec):  # type: ignore[no-untyped-def]
    """Return the nanoseconds of a clock.

    clock_gettime is the address of the C function, timespec that of two words which no other thread writes.
    """
    call_int(clock_gettime, (clock, timespec))
    words = line(timespec, 2)
    return words[0] * 1_000_000_000 + words[1]
