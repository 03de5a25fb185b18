"""The limits and bandwidths, against the published formulas and against counting by hand."""

from __future__ import annotations

import pytest

from mpicoll.benchmarks.cases.patterns import PATTERNS, Shape
from mpicoll.benchmarks.results.bandwidth import bandwidths
from mpicoll.benchmarks.results.limits import busiest, limit

RATE = 8e6      # one byte a microsecond
N = 9600


def hosts(h: int, k: int, placement: str) -> list[int]:
    """Return h hosts of k ranks."""
    return [rank // k if placement == "block" else rank % h for rank in range(h * k)]


def microseconds(collective: str, nbytes: int, host_of: list[int], **shape) -> float:
    return limit(Shape(collective, **shape), nbytes, host_of, RATE) * 1e6


# What must cross a host's link for n bytes in all, on h hosts with equally many ranks.
FORMULAS = {
    "bcast": lambda n, h: n,
    "reduce": lambda n, h: n,
    "scan": lambda n, h: n,
    "exscan": lambda n, h: n,
    "allreduce": lambda n, h: 2 * n * (h - 1) / h,
    "reduce_scatter": lambda n, h: n * (h - 1) / h,
    "scatter": lambda n, h: n * (h - 1) / h,
    "gather": lambda n, h: n * (h - 1) / h,
    "allgather": lambda n, h: n * (h - 1) / h,
}
SHARES = ("scatter", "gather", "allgather")


@pytest.mark.parametrize("placement", ["block", "cyclic"])
@pytest.mark.parametrize(("h", "k"), [(8, 1), (6, 1), (4, 2), (2, 3)])
@pytest.mark.parametrize("collective", FORMULAS)
def test_published_limits(collective, h, k, placement):
    size = N // (h * k) if collective in SHARES else N
    assert microseconds(collective, size, hosts(h, k, placement)) == pytest.approx(FORMULAS[collective](N, h))


@pytest.mark.parametrize("placement", ["block", "cyclic"])
@pytest.mark.parametrize(("h", "k"), [(8, 1), (4, 2)])
def test_alltoall(h, k, placement):
    p, block = h * k, 800
    assert microseconds("alltoall", block, hosts(h, k, placement)) == k * (p - k) * block


def test_unequal_hosts():
    host_of = [0, 0, 0, 1]                      # three ranks and one
    assert microseconds("allgather", 800, host_of) == 3 * 800       # into the lonely one
    assert microseconds("gather", 800, host_of) == 800              # to rank 0 from the lonely one
    assert microseconds("gather", 800, host_of, root=3) == 3 * 800
    assert microseconds("reduce_scatter", 3200, host_of) == 3 * 800   # what the lonely one gives away
    assert microseconds("alltoall", 800, host_of) == 3 * 800
    assert microseconds("allreduce", 800, host_of) == 800


def test_uneven_shares():
    host_of = [0, 1]                            # shares of 0 and 1600 bytes
    assert microseconds("allgatherv", 800, host_of, counts="uneven") == 1600
    assert microseconds("gatherv", 800, host_of, counts="uneven") == 1600
    assert limit(Shape("gatherv", counts="uneven", root=1), 800, host_of, RATE) is None


def test_a_rotating_root_has_the_mean_of_the_limits():
    host_of = [0, 0, 0, 1]
    limits = [busiest(Shape("gather"), root, 800, host_of) for root in range(4)]
    assert limits == [800, 800, 800, 2400]
    assert microseconds("gather", 800, host_of, root="rotating") == pytest.approx(sum(limits) / 4)


@pytest.mark.parametrize("collective", [c for c in PATTERNS if c != "barrier"])
def test_one_host_has_none(collective):
    assert limit(Shape(collective), 800, [0, 0, 0], RATE) is None


def test_a_barrier_has_none():
    assert limit(Shape("barrier"), 0, [0, 1], RATE) is None


@pytest.mark.parametrize(("collective", "algorithm", "bus"), [
    ("allreduce", 1.0, 1.5), ("reduce_scatter", 1.0, 0.75), ("bcast", 1.0, 1.0), ("reduce", 1.0, 1.0),
    ("allgather", 4.0, 3.0), ("gather", 4.0, 3.0), ("scatter", 4.0, 3.0), ("alltoall", 4.0, 3.0),
    ("alltoallv", 4.0, 3.0), ("scan", None, None), ("barrier", None, None),
])
def test_bandwidths_of_nccl_tests(collective, algorithm, bus):
    """On 4 ranks, 800 bytes in 800 seconds."""
    assert bandwidths(Shape(collective), 800, 4, 800.0) == (algorithm, bus)
