"""Common starts: offsets of clocks, late starts, and a slack that adapts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mpicoll.benchmarks import sync
from mpicoll.benchmarks.sync import Barrier, Window, ahead_of, sync_of


class Clock:
    """Every look at it takes a microsecond."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


def test_the_quickest_exchange_tells():
    assert ahead_of([(10.0, 0.0, 30.0), (50.0, 43.0, 52.0), (60.0, 0.0, 90.0)]) == 8.0


@pytest.mark.parametrize("behind", [0.0, 5.0, -5.0])
def test_agree_measures_the_offset_from_rank_0(behind):
    """Rank 1's clock is so many seconds ahead of rank 0's; a message takes 3 µs there and 3 back."""
    clock = Clock()
    comm = SimpleNamespace(rank=1, size=2)

    def recv(buffer: np.ndarray, source: int) -> None:
        clock.now += 3e-6
        buffer[0] = clock.now - behind
        clock.now += 3e-6

    comm.Send, comm.Recv = lambda buffer, peer: None, recv
    window = Window(comm, clock)
    window.agree()
    assert window.ahead == pytest.approx(behind, abs=2e-6)


def window_of(clock, bcast=lambda x: x) -> Window:
    return Window(SimpleNamespace(rank=0, size=1, bcast=bcast), clock)


def test_starts_are_at_equal_distances_and_nobody_goes_early():
    clock = Clock()
    window = window_of(clock)
    start = window.calls(1e-3)
    starts = []
    for _ in range(3):
        at, late = start()
        assert not late and clock.now >= at
        starts.append(at)
    assert np.diff(starts) == pytest.approx([1e-3 + window.slack] * 2)


def test_who_comes_after_the_start_is_late_and_starts_there_all_the_same():
    clock = Clock()
    start = window_of(clock).calls(1e-3)
    first, _ = start()
    clock.now += 5e-3
    second, late = start()
    assert late and second < clock.now
    assert second - first == pytest.approx(1e-3 + sync.SLACK)


def test_a_start_is_told_on_this_ranks_clock():
    clock = Clock()
    window = window_of(clock, bcast=lambda _: 7e-4)
    window.ahead = clock.now
    wanted = clock.now + 7e-4
    assert window.calls(0.0)().at == pytest.approx(wanted, abs=1e-9)


def test_slack_grows_while_many_are_late_and_shrinks_while_few_are():
    window = window_of(Clock())
    window.learn(late=10, calls=100)
    assert window.slack == pytest.approx(1.5 * sync.SLACK)
    window.learn(late=2, calls=100)
    assert window.slack < 1.5 * sync.SLACK
    for _ in range(100):
        window.learn(late=100, calls=100)
    assert window.slack == sync.MOST_SLACK
    for _ in range(1000):
        window.learn(late=0, calls=100)
    assert window.slack == sync.LEAST_SLACK


def test_a_barrier_comes_before_the_time_is_taken():
    clock = Clock()

    def barrier() -> None:
        clock.now += 5

    at, late = Barrier(barrier, clock).calls(0.0)()
    assert not late and at == pytest.approx(105, abs=1e-3)


def test_names():
    control = SimpleNamespace(rank=0, size=1)
    made = [sync_of(name, control, lambda: None, Clock()) for name in sync.SYNCS]
    assert [type(each) for each in made] == [Barrier, Window]
