"""Common starts: offsets of clocks, late starts, and a slack that adapts."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from mpicoll.benchmarks.measure import sync
from mpicoll.benchmarks.measure.sync import Barrier, Window


class Clock:
    """Every look at it takes a microsecond."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("behind", [0.0, 5.0, -5.0])
def test_agree_measures_the_offset_from_rank_0(clock, behind):
    """Rank 1's clock is so many seconds ahead of rank 0's; a message takes 3 µs there and 3 back."""
    comm = SimpleNamespace(rank=1, size=2, bcast=lambda _: 0.0)

    def recv(buffer: np.ndarray, source: int) -> None:
        clock.now += 3e-6
        buffer[0] = clock.now - behind
        clock.now += 3e-6

    comm.Send, comm.Recv = lambda buffer, peer: None, recv
    window = Window(comm, lambda: None, clock)
    window.agree()
    assert window.ahead == pytest.approx(behind, abs=2e-6)


def window_of(clock, bcast=lambda x: x, barrier=lambda: None) -> Window:
    return Window(SimpleNamespace(rank=0, size=1, bcast=bcast), barrier, clock)


def test_starts_are_at_equal_distances_and_no_rank_starts_early(clock):
    window = window_of(clock)
    start = window.calls(1e-3)
    starts = []
    for _ in range(3):
        at, late = start()
        assert not late and clock.now >= at
        starts.append(at)
    assert np.diff(starts) == pytest.approx([1e-3 + window.slack] * 2)


def test_a_rank_after_the_start_is_late_and_starts_at_once(clock):
    window = window_of(clock)
    start = window.calls(1e-3)
    first, _ = start()
    clock.now += 5e-3
    second, late = start()
    assert late and second < clock.now and window.unready == 1
    assert second - first == pytest.approx(1e-3 + sync.SLACK)


def test_an_oversleeping_rank_is_late(clock, monkeypatch):
    window = window_of(clock)
    start = window.calls(0.0)
    monkeypatch.setattr(sync, "os", SimpleNamespace(sched_yield=lambda: setattr(clock, "now", clock.now + 1e-3)))
    at, late = start()
    assert late and clock.now > at + sync.LATE[0] and window.unready == 0      # more slack would not help


@pytest.mark.parametrize(("expected", "late"), [(0.01, True), (1.0, False)])
def test_a_little_late_is_in_time_for_a_long_call(clock, expected, late):
    start = window_of(clock).calls(expected)
    clock.now += sync.SLACK + 1e-3
    assert start().late is late


def test_ranks_meet_before_the_first_start_is_named(clock):
    """A rank that is still busy when the start is named would be late for it."""
    def barrier() -> None:
        clock.now += 5.0

    at, late = window_of(clock, barrier=barrier).calls(0.0)()
    assert not late and at > 105


def test_clocks_are_stale_after_a_while(clock):
    window = window_of(clock)
    assert window.is_stale()
    window.agree()
    assert not window.is_stale()
    clock.now += 2 * sync.FRESH
    assert window.is_stale() and not Barrier(lambda: None, clock).is_stale()


def test_a_start_is_told_on_this_ranks_clock(clock):
    window = window_of(clock, bcast=lambda _: 7e-4)
    window.ahead = clock.now
    wanted = clock.now + 7e-4
    assert window.calls(0.0)().at == pytest.approx(wanted, abs=1e-9)


def test_slack_grows_while_many_are_late_and_shrinks_while_few_are():
    window = window_of(Clock())
    window.learn(unready=10, calls=100)
    assert window.slack == pytest.approx(1.5 * sync.SLACK)
    window.learn(unready=2, calls=100)
    assert window.slack < 1.5 * sync.SLACK
    for _ in range(100):
        window.learn(unready=100, calls=100)
    assert window.slack == sync.MOST_SLACK
    for _ in range(1000):
        window.learn(unready=0, calls=100)
    assert window.slack == sync.LEAST_SLACK


def test_a_barrier_comes_before_the_time_is_taken(clock):
    def barrier() -> None:
        clock.now += 5

    at, late = Barrier(barrier, clock).calls(0.0)()
    assert not late and at == pytest.approx(105, abs=1e-3)


def test_slack_is_enough_for_slow_messages(clock):
    def recv(buffer: np.ndarray, source: int) -> None:
        clock.now += 4e-4 if len(received) else 1.0         # the first waits for the peer to come
        received.append(source)

    received = []
    comm = SimpleNamespace(rank=0, size=2, Send=lambda buffer, peer: None, Recv=recv, bcast=lambda x: x)
    window = Window(comm, lambda: None, clock)
    window.agree()
    assert window.slack == pytest.approx(8e-4, rel=0.01)
