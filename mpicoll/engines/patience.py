"""Limits for a thread that waits in compiled code: it spins, then yields its processor, then sleeps between passes.

Where ranks outnumber processors, passes before the first yield keep other ranks waiting, and sleeps make calls that
follow each other many times slower. But a rank that never sleeps keeps its processor from ranks that compute: on Linux
6.18 a yield does not always pass it on.
"""

from __future__ import annotations

PASSES = 8  # empty passes before the thread yields
CLOCK_PASSES = 16  # passes between reads of the clock
SPIN = 1_000_000  # nanoseconds without a move before the thread sleeps
SLEEP = 20  # microseconds
