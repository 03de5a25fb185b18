"""A thread that waits in compiled code spins, then offers its processor to others, then sleeps between passes.

A rank that never sleeps can keep other ranks off its processor for seconds, even ranks that yield (Linux 6.18).
"""

from __future__ import annotations

PASSES = 50  # empty passes before the processor is offered to others
CLOCK_PASSES = 16  # passes between looks at the clock
# nanoseconds
CONTENDED = 20_000  # a longer yield gave the processor to another thread
SPIN, SPIN_CONTENDED = 1_000_000, 100_000  # without a move before a thread sleeps, and the same if contended
SLEEP = 20  # microseconds
