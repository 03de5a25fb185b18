"""Compute how much of a nonblocking collective is hidden behind work, as the OSU benchmarks define it.

A call alone takes `alone`. With work of about that length between its start and its Wait it takes `overall`,
`compute` of which is the work. What the call cost on top of the work is overall - compute, and the share of
the call that was hidden is 1 - (overall - compute) / alone: 100 % where the call cost nothing on top, 0 where
it cost as much as alone, or more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from .stats import Estimate, estimate

PARTS = ("overall", "compute", "init", "wait")


class Overlap(NamedTuple):
    """One round's call alone, and the parts of the one with work in it; seconds, the longest over ranks."""

    alone: float
    overall: float
    compute: float
    init: float
    wait: float

    @property
    def percent(self) -> float:
        """Return how much was hidden, in percent.

        >>> Overlap(10, 12, 10, 0, 0).percent, Overlap(10, 25, 10, 0, 0).percent, Overlap(10, 10, 10, 0, 0).percent
        (80.0, 0.0, 100.0)
        """
        return min(100.0, max(0.0, 100 * (1 - (self.overall - self.compute) / self.alone)))


@dataclass(frozen=True)
class Overlapped:
    """All rounds of one contender at one size."""

    percent: Estimate
    parts: dict[str, Estimate]


def overlapped(rounds: Sequence[Overlap]) -> Overlapped | None:
    """Return the statistics of some rounds, without those that a rank started late; None without any."""
    good = [overlap for overlap in rounds if math.isfinite(overlap.overall)]
    if not good:
        return None
    parts: dict[str, Any] = {part: estimate([getattr(overlap, part) for overlap in good]) for part in PARTS}
    return Overlapped(estimate([overlap.percent for overlap in good]), parts)
