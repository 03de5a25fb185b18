"""Medians, intervals and ratios that assume nothing about how run times are distributed.

The interval of a median comes from order statistics: each independent value lies below the true median with
probability 1/2, so how many of n do is binomial, and the k-th smallest and k-th largest value enclose the
median with a probability that depends on n and k alone (Le Boudec, Performance Evaluation, 2010, theorem
2.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from statistics import median

CONFIDENCE = 0.95
FASTER, SLOWER, NO_DIFFERENCE, TOO_FEW = "faster", "slower", "no difference", "too few"
FEWEST = 6  # values from which a 95 % interval exists: 1 - 2/2⁶ = 0.969


@dataclass(frozen=True)
class Estimate:
    """A median, and the interval that holds the true one with the given confidence; None: too few values."""

    median: float
    low: float | None
    high: float | None
    values: int

    @property
    def spread(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)

    @property
    def relative_width(self) -> float:
        """Return half the interval's width over the median; infinite without an interval."""
        return (self.high - self.low) / 2 / self.median if self.spread else math.inf  # type: ignore[operator]


@lru_cache
def interval_rank(n: int, confidence: float = CONFIDENCE) -> int:
    """Return the largest k for which the k-th smallest and k-th largest of n values enclose the median; 0 if none.

    >>> interval_rank(5), interval_rank(6), interval_rank(20), interval_rank(100)
    (0, 1, 6, 40)
    >>> interval_rank(5000)
    2431
    """
    allowed = (1 - Fraction(str(confidence))) * 2**n / 2  # whole numbers: floats end at 1,023 values
    outside, k, ways = 0, 0, 1  # of n coin tosses: outcomes with fewer than k heads, and with k
    while k < (n + 1) // 2:
        outside += ways
        if outside > allowed:
            break
        ways = ways * (n - k) // (k + 1)
        k += 1
    return k


def estimate(values: Iterable[float], confidence: float = CONFIDENCE) -> Estimate:
    """Return the median of some values and its interval; NaN is no value.

    >>> estimate([3, 1, 2, math.nan, 6, 5, 4]), estimate([])
    (Estimate(median=3.5, low=1, high=6, values=6), Estimate(median=nan, low=None, high=None, values=0))
    """
    ordered = sorted(value for value in values if not math.isnan(value))
    if not ordered:
        return Estimate(math.nan, None, None, 0)
    k = interval_rank(len(ordered), confidence)
    low, high = (ordered[k - 1], ordered[-k]) if k else (None, None)
    return Estimate(median(ordered), low, high, len(ordered))


@dataclass(frozen=True)
class Ratio(Estimate):
    """A ratio of times, the baseline's over the other's: above 1 is faster than the baseline."""

    @property
    def verdict(self) -> str:
        """Say "faster" or "slower" where the whole interval is on one side of 1, else "no difference"."""
        if self.low is None or self.high is None:
            return TOO_FEW
        return FASTER if self.low > 1 else SLOWER if self.high < 1 else NO_DIFFERENCE


def ratio(baseline: Sequence[float], other: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """Return baseline time over other time, paired: values at the same place were measured side by side.

    A pair with a NaN is none.

    >>> ratio([2, 2, 4, 4, 6, 6, math.nan], [1, 1, 2, 2, 3, 3, 9])
    Ratio(median=2.0, low=2.0, high=2.0, values=6)
    """
    if len(baseline) != len(other):
        raise ValueError(f"{len(baseline)} values cannot be paired with {len(other)}")
    estimated = estimate([b / o for b, o in zip(baseline, other)], confidence)
    return Ratio(estimated.median, estimated.low, estimated.high, estimated.values)


def geometric_mean(values: Sequence[float]) -> float:
    """Return the mean for ratios.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    return math.exp(sum(map(math.log, values)) / len(values))
