"""Limit the time that a nonblocking call spins for completion before it returns its request."""

from __future__ import annotations

from ..kernels.deferred import njit

SPIN_MAX_BYTES = 512 << 10  # of a call; a longer one does not spin
SPIN_MIN_NS, BYTES_PER_NS = 20_000, 2
IDLE_NS = 100_000  # in which nothing moves, so that a call returns


def spin_budget_ns(nbytes: int) -> int:
    """Return how many nanoseconds a nonblocking call of nbytes spins before it returns.

    Two ranks of one machine that call at the same time complete within it. A wasted spin costs little compared with
    the call itself, since returning early takes time in Python too.
    """
    return SPIN_MIN_NS + nbytes // BYTES_PER_NS if nbytes <= SPIN_MAX_BYTES else 0


spin_budget = njit(spin_budget_ns)  # for compiled code
