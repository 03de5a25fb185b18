"""Limit the time that a nonblocking call spins for completion before it returns its request."""

from __future__ import annotations

from ..kernels.deferred import njit

SPIN_MAX_BYTES = 512 << 10  # of a call; longer ones do not spin
SPIN_MIN_NS, BYTES_PER_NS = 20_000, 2
IDLE_NS = 100_000  # without a move, after which a call returns


def spin_budget_ns(nbytes: int) -> int:
    """Return how many nanoseconds a nonblocking call of nbytes spins before it returns.

    Within that time a call of two ranks on one machine completes, if both call at once. A wasted spin costs little
    compared with the call itself, since returning early takes time in Python too.
    """
    return SPIN_MIN_NS + nbytes // BYTES_PER_NS if nbytes <= SPIN_MAX_BYTES else 0


spin_budget = njit(spin_budget_ns)  # for compiled code
