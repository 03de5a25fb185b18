"""The counters of a communicator: the words that Python and the fast path share."""

from __future__ import annotations

from ..plans.plan import SEQUENCES

# The last call; who traces; the calls whose tags may not be used again; and whether those of a call are in flight.
# TRACES: how many sinks take records, which Python makes; above RING_SHIFT the communicator's number in the ring of
# timelines (ring.py), 0 if its calls are not recorded there.
CALLS, TRACES, BROKEN = range(3)
IN_FLIGHT = BROKEN + SEQUENCES
NUMBERS = IN_FLIGHT + SEQUENCES
RING_SHIFT = 32
