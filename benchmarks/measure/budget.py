"""When a size has been measured enough."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .stats import FEWEST

PATIENCE = 3  # times its share that a size may take to get the fewest rounds an interval needs
MOST_ROUNDS = 10_000
GROWTH = 1.2  # between rounds at which the precision is looked at: looking takes time, and looks often flatter


@dataclass
class Budget:
    """So many rounds if given; else as soon as intervals are narrow enough, at the latest after some seconds.

    precision: half the width of the widest interval, relative to what it is the interval of; 0 for never.
    """

    seconds: float
    rounds: int | None = None
    precision: float = 0.0
    _next: float = field(default=4 * FEWEST, init=False)

    def enough(self, rounds: int, elapsed: float, precision: Callable[[], float] = lambda: 1.0) -> bool:
        """Return whether to stop, after so many rounds in so many seconds, with a reached precision."""
        if self.rounds is not None:
            return rounds >= self.rounds
        if self.precision and rounds >= self._next:
            self._next = rounds * GROWTH
            if precision() <= self.precision:
                return True
        limit = self.seconds if rounds >= FEWEST else self.seconds * PATIENCE
        return elapsed >= limit or rounds >= MOST_ROUNDS
