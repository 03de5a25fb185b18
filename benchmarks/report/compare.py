"""Two runs, row by row: did it get faster or slower, and by how much.

The rounds of two runs are not paired. A row's p-value is of the Mann–Whitney test, which assumes nothing about how
times are distributed; its ratio, old time over new, is the Hodges–Lehmann estimate on logarithms: the median of the
ratios of all pairs of an old and a new round. The interval is the same test's: it holds every factor by which the
old times could be divided without the test telling them from the new (Lehmann, Nonparametrics, 1975, chapter 2).
With many rows some would look changed by chance, so verdicts hold the share of wrong ones among all that are called
faster or slower below 5 % (Benjamini and Hochberg, 1995).

What this cannot see is how much a whole run differs from the next one on the same machine, since there is one of
each; a tolerance leaves room for that.

A row that has percentiles in place of its rounds stands for thousands of them, and takes part with these 101
values: that makes intervals wider than all rounds would, and no verdict bolder.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import stats

from ..measure.stats import FASTER, NO_DIFFERENCE, SLOWER, TOO_FEW
from .model import Row, Run

LEVEL = 0.05  # of wrong verdicts among all; and 1 - the confidence of an interval
EXACT = 1000  # pairs up to which the test's statistic has its exact distribution, and the normal one above


@dataclass(frozen=True)
class Change:
    """A row of the old run and the same of the new one. ratio: old time over new, above 1 is faster."""

    old: Row
    new: Row
    ratio: float | None
    interval: tuple[float, float] | None
    p: float | None  # None: too few rounds to ever tell
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """The changes between two runs. wrong: rows whose answer is wrong in the new run and was not in the old."""

    changes: tuple[Change, ...]
    only_old: tuple[Row, ...]
    only_new: tuple[Row, ...]
    wrong: tuple[Row, ...]
    untimed: int  # rows that either run did not time, or answered wrongly in the old one

    def count(self, verdict: str) -> int:
        """Return how many changes have this verdict."""
        return sum(change.verdict == verdict for change in self.changes)

    @property
    def worse(self) -> bool:
        """Return whether any row got slower or wrong."""
        return bool(self.count(SLOWER) or self.wrong)


def compare(old: Run, new: Run, tolerance: float = 0.0) -> Comparison:
    """Return every row that both runs have. tolerance: changes up to this part of the time are none; 0.05 is 5 %."""
    before, after = _by_key(old.rows), _by_key(new.rows)
    both = [(before[key], after[key]) for key in before if key in after]
    wrong = [b for a, b in both if b.valid is False and a.valid is not False]
    timed = [(a, b) for a, b in both if a.right and b.right and a.median_us and b.median_us]
    return Comparison(
        tuple(_changes(timed, tolerance)),
        tuple(row for key, row in before.items() if key not in after),
        tuple(row for key, row in after.items() if key not in before),
        tuple(wrong),
        len(both) - len(timed) - len(wrong),
    )


def _by_key(rows: Iterable[Row]) -> dict[Hashable, Row]:
    """Return the rows by what was measured on what; of what was measured twice, the last."""
    return {(row.setting, row.size, row.ranks, row.hosts, row.contender): row for row in rows}


def _changes(pairs: Sequence[tuple[Row, Row]], tolerance: float) -> list[Change]:
    estimates = [change_of(old.samples_us, new.samples_us, tolerance) for old, new in pairs]
    tested = [p for _, _, p in estimates if p is not None]
    adjusted = iter(stats.false_discovery_control(tested) if tested else ())
    changes = []
    for (old, new), (ratio, interval, p) in zip(pairs, estimates):
        verdict = verdict_of(ratio, None if p is None else float(next(adjusted)))
        assert old.median_us and new.median_us
        changes.append(Change(old, new, ratio or old.median_us / new.median_us, interval, p, verdict))
    return changes


def verdict_of(ratio: float | None, p: float | None) -> str:
    """Return what a ratio and its p-value say in a word."""
    if p is None or ratio is None:
        return TOO_FEW
    if p > LEVEL:
        return NO_DIFFERENCE
    return FASTER if ratio > 1 else SLOWER


Found = tuple[float | None, tuple[float, float] | None, float | None]


def change_of(old: Sequence[float], new: Sequence[float], tolerance: float = 0.0) -> Found:
    """Return the ratio of old to new, its interval, and the p-value of the ratio being within the tolerance of 1.

    Each is None where there are too few values for it.
    """
    a, b = _logarithms(old), _logarithms(new)
    if not len(a) or not len(b):
        return None, None, None
    ratios = np.sort(np.subtract.outer(a, b), axis=None)
    ratio, k = math.exp(np.median(ratios)), interval_rank(len(a), len(b))
    if not k:
        return ratio, None, None
    interval = math.exp(ratios[k - 1]), math.exp(ratios[-k])
    return ratio, interval, _p_value(ratios, len(a), len(b), math.log1p(tolerance))


def _logarithms(values: Sequence[float]) -> np.ndarray:
    """Return logarithms; a time that the clock could not resolve counts as the shortest that it could."""
    times = np.asarray(values, dtype=float)
    above = times[times > 0]
    return np.log(np.maximum(times, above.min())) if len(above) else np.empty(0)


def _p_value(ratios: np.ndarray, n: int, m: int, margin: float) -> float:
    """Return the p-value of two one-sided tests at the ends of the tolerance.

    Ties speak against a change, as they do in a closed interval; so test and interval always say the same.
    """
    against = min(int(np.sum(ratios <= margin)), int(np.sum(ratios >= -margin)))
    return min(1.0, 2 * tail(against, n, m))


def tail(u: int, n: int, m: int) -> float:
    """Return the probability that at most u of the n m ratios of times that do not differ are on one given side of 1.

    >>> round(tail(0, 4, 4) * 70, 9), round(2 * tail(5, 6, 6), 4), round(2 * tail(13, 8, 8), 4)
    (1.0, 0.0411, 0.0499)
    """
    if n * m <= EXACT:
        return float(_cumulative(min(n, m), max(n, m))[u])
    return float(stats.norm.cdf((u + 0.5 - n * m / 2) / _deviation(n, m)))


@lru_cache
def _cumulative(n: int, m: int) -> np.ndarray:
    """Return the exact distribution: how many ways there are to draw n of n + m ranks, by their sum."""
    least = n * (n + 1) // 2
    ways = np.zeros((n + 1, least + n * m + 1))  # by how many are drawn, and the sum of their ranks
    ways[0, 0] = 1
    for rank in range(1, n + m + 1):
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    return np.cumsum(ways[n, least:]) / math.comb(n + m, n)


def _deviation(n: int, m: int) -> float:
    return math.sqrt(n * m * (n + m + 1) / 12)


def interval_rank(n: int, m: int) -> int:
    """Return the k for which the k-th smallest and largest of the n m ratios enclose the true one, 95 % sure.

    It is 0 if there is none.

    >>> interval_rank(3, 3), interval_rank(6, 6), interval_rank(8, 8), interval_rank(10, 10), interval_rank(20, 30)
    (0, 6, 14, 24, 201)
    """
    if n * m <= EXACT:
        return int(np.searchsorted(_cumulative(min(n, m), max(n, m)), LEVEL / 2, side="right"))
    return max(0, math.floor(n * m / 2 + 0.5 + float(stats.norm.ppf(LEVEL / 2)) * _deviation(n, m)))


def differing(old: Mapping[str, object], new: Mapping[str, object]) -> list[tuple[str, object, object]]:
    """Return the facts of two environments that differ, but for time and command; of a dictionary, its entries."""
    differences = []
    for key in dict.fromkeys([*old, *new]):
        value, other = old.get(key), new.get(key)
        if key in ("time", "command") or value == other:
            continue
        if isinstance(value, dict) and isinstance(other, dict):
            differences += [(f"{key}.{name}", a, b) for name, a, b in differing(value, other)]
        else:
            differences.append((key, value, other))
    return differences
