"""Medians, intervals, ratios: on samples whose answer is known."""

from __future__ import annotations

import math
import random

import pytest

from mpicoll.benchmarks.measure.stats import FEWEST, estimate, interval_rank, ratio


def coverage(n: int, k: int) -> float:
    """Return the probability that the k-th smallest and k-th largest of n values enclose the median."""
    return 1 - 2 * sum(math.comb(n, j) for j in range(k)) / 2**n if k else 0.0


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 20, 99, 1000])
def test_interval_is_the_narrowest_that_is_sure_enough(n, confidence):
    k = interval_rank(n, confidence)
    assert k == 0 or coverage(n, k) >= confidence
    assert k == (n + 1) // 2 or coverage(n, k + 1) < confidence


def test_fewest_values_for_an_interval():
    assert estimate(range(FEWEST)).spread is not None
    assert estimate(range(FEWEST - 1)).spread is None


def test_interval_holds_the_true_median_as_often_as_it_says():
    draw = random.Random(1).expovariate         # skewed, as run times are; its median is ln 2
    estimates = [estimate([draw(1) for _ in range(20)]) for _ in range(4000)]
    inside = sum(e.low <= math.log(2) <= e.high for e in estimates) / len(estimates)
    assert coverage(20, interval_rank(20)) == pytest.approx(0.9586, abs=1e-4)
    assert inside == pytest.approx(0.9586, abs=0.012)       # nearly four standard deviations of 4,000 draws


def test_more_values_than_a_float_can_count_the_outcomes_of():
    assert interval_rank(1023) < interval_rank(1024) == 481 < interval_rank(5000)


def test_an_outlier_moves_nothing():
    assert estimate([1, 1, 1, 1, 1, 1, 1, 1, 1e9]).spread == (1, 1)


def test_pairs_cancel_what_both_went_through():
    drift = [1 + 0.5 * math.sin(i) for i in range(30)]
    paired = ratio([2 * d for d in drift], drift)
    assert (paired.median, paired.low, paired.high, paired.verdict) == (2, 2, 2, "faster")


@pytest.mark.parametrize(("other", "verdict"), [
    ([0.9] * 10, "faster"),
    ([1.1] * 10, "slower"),
    ([0.5, 2.0] * 5, "no difference"),
    ([1.0] * 10, "no difference"),
    ([0.1] * (FEWEST - 1), "too few"),
])
def test_verdict(other, verdict):
    assert ratio([1.0] * len(other), other).verdict == verdict


def test_no_difference_is_seldom_called_one():
    random_ = random.Random(2)
    draw = lambda: [random_.lognormvariate(0, 0.3) for _ in range(25)]
    verdicts = [ratio(draw(), draw()).verdict for _ in range(1000)]
    assert verdicts.count("no difference") >= 930


def test_only_equal_numbers_pair():
    with pytest.raises(ValueError, match="2 values cannot be paired with 3"):
        ratio([1, 2], [1, 2, 3])
