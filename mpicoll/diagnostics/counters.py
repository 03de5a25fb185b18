"""The counters of a communicator: the words that Python and the fast path share."""

from __future__ import annotations

from ..plans.plan import SEQUENCES

# of the last call, of who traces, of the calls whose tags may not be used again, and whether those of one are in flight
CALLS, TRACES, BROKEN = range(3)
IN_FLIGHT = BROKEN + SEQUENCES
NUMBERS = IN_FLIGHT + SEQUENCES
