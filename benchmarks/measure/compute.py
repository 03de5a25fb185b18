"""Compute for a requested time while a nonblocking collective is in flight.

As NumPy's loops do, it runs outside the interpreter's lock, so that a progress thread can work meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import lru_cache

CALIBRATION = 5e-3  # seconds that each of three trials should take


def _chain(x, rounds):  # type: ignore[no-untyped-def]
    """Return a dependent chain of multiplications and additions from an x unknown beforehand, so not shortened."""
    for _ in range(rounds):
        x = x * 0.999999 + 1e-6
    return x


@lru_cache(maxsize=1)
def _compiled() -> Callable[[float, int], float]:
    """Return the chain, compiled; numba takes its time to load, and only who measures overlap needs it."""
    from mpicoll.kernels.cache import jit

    chain: Callable[[float, int], float] = jit("float64(float64, int64)")(_chain)
    return chain


@lru_cache(maxsize=1)
def rounds_per_second(clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how fast this processor works, the quickest of three trials; measured once per process."""
    rounds, spent = 1000, 0.0
    while spent < CALIBRATION:
        rounds *= 2
        spent = _timed(rounds, clock)
    return rounds / min(_timed(rounds, clock) for _ in range(3))


def _timed(rounds: int, clock: Callable[[], float]) -> float:
    work, start = _compiled(), clock()
    work(0.5, rounds)
    return clock() - start


def compute(seconds: float) -> None:
    """Compute for about this many seconds on an idle processor."""
    _compiled()(0.5, int(seconds * rounds_per_second()))
