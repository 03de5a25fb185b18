"""Comparing two runs: on samples whose answer is known."""

from __future__ import annotations

import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import mannwhitneyu
from unit.report_data import result, write

from mpicoll.benchmarks.report.compare import LEVEL, change_of, compare, differing, interval_rank
from mpicoll.benchmarks.report.model import Row, Run, Setting
from mpicoll.benchmarks.report.read import read


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(5)


def skewed(draw: np.random.Generator, n: int, scale: float = 1.0) -> list[float]:
    """Run times as they are: a floor, some spread, a long tail."""
    return list(scale * (10 + draw.lognormal(0, 1, n)))


def row(samples: list[float], size: int = 8, **other: object) -> Row:
    middle = statistics.median(samples) if samples else 1.0
    return Row(Setting("bcast"), size, "ring", None, 4, 1, median_us=middle, samples_us=tuple(samples), **other)


def run_of(*rows: Row) -> Run:
    return Run("run", "mpicoll bench", rows)


@pytest.mark.parametrize(("n", "m"), [(8, 8), (25, 40), (101, 101)])
def test_no_change_is_seen_at_the_nominal_rate(draw, n, m):
    changes = [change_of(skewed(draw, n), skewed(draw, m)) for _ in range(1500)]
    called = sum(p <= LEVEL for _, _, p in changes) / len(changes)
    inside = sum(low <= 1 <= high for _, (low, high), _ in changes) / len(changes)
    assert 0.025 <= called <= 0.068  # three standard deviations of 1,500 draws; small samples have fewer p-values
    assert 0.932 <= inside <= 0.975


def test_interval_holds_the_true_ratio_as_often_as_it_says(draw):
    true = 1.25
    changes = [change_of(skewed(draw, 30, true), skewed(draw, 30)) for _ in range(1000)]
    assert 0.93 <= sum(low <= true <= high for _, (low, high), _ in changes) / len(changes) <= 0.97
    assert statistics.median(ratio for ratio, _, _ in changes) == pytest.approx(true, rel=0.01)


@pytest.mark.parametrize(("n", "m"), [(6, 6), (8, 8), (2, 30), (20, 25), (40, 50)])
def test_test_and_interval_agree(draw, n, m):
    near = 0
    for _ in range(600):
        _, (low, high), p = change_of(skewed(draw, n, draw.uniform(0.8, 1.25)), skewed(draw, m))
        assert (p <= LEVEL) == (not low <= 1 <= high), p
        near += 0.03 < p < 0.07
    assert near > 5
    tied = [round(x) for x in skewed(draw, n)]
    _, (low, high), p = change_of(tied, [*tied[1:], *[max(tied)] * (m - n + 1)])
    assert (p <= LEVEL) == (not low <= 1 <= high)


@pytest.mark.parametrize(("n", "m"), [(4, 4), (6, 6), (8, 8), (5, 20), (31, 32)])
def test_the_p_value_is_the_exact_tests(draw, n, m):
    for scale in (0.7, 1.0, 1.1):
        old, new = skewed(draw, n, scale), skewed(draw, m)
        assert change_of(old, new)[2] == pytest.approx(mannwhitneyu(old, new, method="exact").pvalue)


def test_many_pairs_have_the_normal_approximation(draw):
    old, new = skewed(draw, 60), skewed(draw, 70, 1.05)
    assert change_of(old, new)[2] == pytest.approx(mannwhitneyu(old, new, method="asymptotic").pvalue)


def test_direction_and_size_of_a_change(draw):
    old, new = skewed(draw, 40), skewed(draw, 40, 0.5)
    ratio, (low, high), p = change_of(old, new)
    assert ratio == pytest.approx(2, rel=0.1) and low <= 2 <= high and p < 1e-6
    assert change_of(new, old)[0] == pytest.approx(1 / ratio)


def test_tolerance_swallows_small_changes_only(draw):
    old, new = skewed(draw, 200), skewed(draw, 200, 1.03)
    assert change_of(old, new)[2] < LEVEL
    assert change_of(old, new, tolerance=0.05)[2] > 0.5
    assert change_of(new, old)[2] < LEVEL and change_of(new, old, tolerance=0.05)[2] > 0.5
    assert change_of(old, skewed(draw, 200, 1.2), tolerance=0.05)[2] < LEVEL
    assert change_of(old, skewed(draw, 200, 0.8), tolerance=0.05)[2] < LEVEL


@pytest.mark.parametrize(
    ("n", "m", "tells"), [(0, 9, False), (1, 1, False), (3, 3, False), (4, 4, True), (2, 8, True)]
)
def test_too_few_values_tell_nothing(n, m, tells):
    _, interval, p = change_of([5.0] * n, [9.0 + k / 10 for k in range(m)])
    assert (p is not None) == tells and (interval is not None) == tells
    assert bool(interval_rank(n, m)) == tells


def test_times_below_the_clocks_resolution():
    ratio, interval, p = change_of([0.0] * 10 + [0.1] * 10, [0.1] * 20)
    assert ratio == 1.0 and interval == (1.0, 1.0) and p == pytest.approx(1.0)
    assert change_of([0.0] * 9, [0.0] * 9) == (None, None, None)


def test_many_unchanged_rows_give_few_verdicts(draw):
    old, new = ([row(skewed(draw, 20), size) for size in range(1, 401)] for _ in range(2))
    comparison = compare(run_of(*old), run_of(*new))
    assert comparison.count("no difference") >= 398 and not comparison.count("too few")
    alone = sum(change.p <= LEVEL for change in comparison.changes)
    assert alone > 5  # which is what the correction is for


def test_changed_rows_are_found_among_unchanged_ones(draw):
    scales = [1.5] * 20 + [0.7] * 20 + [1.0] * 160
    old = [row(skewed(draw, 20), size) for size in range(200)]
    new = [row(skewed(draw, 20, scale), size) for size, scale in enumerate(scales)]
    verdicts = [change.verdict for change in compare(run_of(*old), run_of(*new)).changes]
    assert verdicts[:20] == ["slower"] * 20 and verdicts[20:40] == ["faster"] * 20
    assert verdicts[40:].count("no difference") >= 154


def test_percentiles_make_wider_intervals_than_all_rounds(draw):
    old, new = skewed(draw, 1000), skewed(draw, 1000, 1.1)
    sketches = [list(np.percentile(values, range(101))) for values in (old, new)]
    (ratio, every, _), (sketched, wide, p) = change_of(old, new), change_of(*sketches)
    assert sketched == pytest.approx(ratio, rel=0.01) and wide[0] < every[0] < every[1] < wide[1]
    assert p < LEVEL
    assert change_of(sketches[0], sketches[0])[2] == pytest.approx(1, abs=0.01)


def test_rows_without_samples_have_a_ratio_and_no_verdict():
    ours = Run("a", "OSU", (Row(Setting("bcast"), 8, "OSU", median_us=4.0),))
    other = Run("b", "OSU", (Row(Setting("bcast"), 8, "OSU", median_us=2.0),))
    (change,) = compare(ours, other).changes
    assert (change.ratio, change.interval, change.verdict) == (2.0, None, "too few")


def test_rows_that_cannot_be_compared_are_counted():
    samples = [1.0, 2.0, 3.0, 4.0, 5.0]
    old = run_of(row(samples, 1), row(samples, 2), row(samples, 3, valid=False), row(samples, 4), row(samples, 5))
    new = run_of(row(samples, 1), row(samples, 2, valid=False), row(samples, 3), row(samples, 6))
    comparison = compare(old, new)
    assert [change.new.size for change in comparison.changes] == [1]
    assert [r.size for r in comparison.wrong] == [2] and comparison.untimed == 1 and comparison.worse
    assert [r.size for r in comparison.only_old] == [4, 5] and [r.size for r in comparison.only_new] == [6]


def test_rows_match_by_all_that_was_measured(tmp_path: Path):
    base = result("allreduce", "ring", 8, 4, 1)
    others = [base | change for change in (
        {"engine": "compiled"}, {"form": "nonblocking"}, {"size": 16}, {"ranks": 8}, {"hosts": 2}, {"dtype": "int32"},
        {"op": "max"}, {"root": 1}, {"in_place": True}, {"counts": "uneven"}, {"algorithm": "tree"})]  # fmt: skip
    old, new = read(write(tmp_path / "a", [base])), read(write(tmp_path / "b", others))
    comparison = compare(old, new)
    assert not comparison.changes and len(comparison.only_new) == len(others)


def test_environments_that_differ():
    old = {"mpi": "MPICH 5.0.2", "time": "1", "command": "a", "mpi_settings": {"A": "1", "B": "2"}, "commit": "x"}
    new = {"mpi": "MPICH 5.0.3", "time": "2", "command": "b", "mpi_settings": {"A": "1", "C": "3"}, "commit": "x",
           "cores": 2}
    assert differing(old, new) == [
        ("mpi", "MPICH 5.0.2", "MPICH 5.0.3"),
        ("mpi_settings.B", "2", None),
        ("mpi_settings.C", None, "3"),
        ("cores", None, 2),
    ]
