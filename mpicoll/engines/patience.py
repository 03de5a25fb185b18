"""Limits for a thread that waits in compiled code: it spins, then yields its processor, then sleeps between passes.

A rank that never sleeps can keep other ranks off its processor for seconds, even ranks that yield (Linux 6.18).
"""

from __future__ import annotations

PASSES = 50  # empty passes before the thread yields
CLOCK_PASSES = 16  # passes between reads of the clock
# nanoseconds
CONTENDED = 20_000  # a yield that takes longer gave the processor to another thread
SPIN, SPIN_CONTENDED = 1_000_000, 100_000  # time without a move before the thread sleeps; the same if contended
SLEEP = 20  # microseconds
