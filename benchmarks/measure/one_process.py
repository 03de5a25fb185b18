"""Works of one process timed side by side: rounds of them all, each round in an order drawn anew."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from mpicoll.garbage import collection_off

ROUND = 2e-3  # seconds that each work takes in a round, at least one call
LEAST = 6  # rounds, from which a median has an interval


def interleaved(works: Sequence[Callable[[], Any]], seconds: float) -> list[list[float]]:
    """Return the seconds per call of each work, one value a round; rounds for so long, LEAST at least."""
    shuffle, order, rounds = random.Random(0).shuffle, list(range(len(works))), list[list[float]]()
    with collection_off():
        calls = [_calls(work) for work in works]
        until = time.perf_counter() + seconds
        while len(rounds) < LEAST or time.perf_counter() < until:
            shuffle(order)
            took = [0.0] * len(works)
            for i in order:
                took[i] = _seconds(works[i], calls[i])
            rounds.append(took)
    return [list(times) for times in zip(*rounds)]


def _calls(work: Callable[[], Any]) -> int:
    work()
    return max(1, int(ROUND / _seconds(work, 3)))


def _seconds(work: Callable[[], Any], calls: int) -> float:
    """Return the seconds a call takes."""
    started = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - started) / calls
