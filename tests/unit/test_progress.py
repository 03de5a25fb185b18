"""What the progress thread learns from a program: whether to wake up when it starts something."""

from __future__ import annotations

import threading
import time

import pytest

from mpicoll.runtime.progress import ProgressThread

LIMIT = 20.0  # seconds that the thread has to do what it does in milliseconds


class Channel:
    """Something in flight that takes a number of passes."""

    def __init__(self, passes):
        self.in_flight, self.done = [None] * passes, threading.Event()

    def poll(self):
        if self.in_flight:
            self.in_flight.pop()
        if not self.in_flight:
            self.done.set()
        return bool(self.in_flight)


@pytest.fixture
def clock(monkeypatch):
    """The thread's clock, which a test sets."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def program(thread, clock, steps):
    """Run a program: "s" starts something and "w" waits for the oldest, "-" works, "." is the way from call to call."""
    started = []
    for step in steps:
        clock[0] += {"-": 1e-3, ".": 50e-6}.get(step, 1e-6)
        if step == "s":
            started.append(thread.enter())
            thread.leave()
        elif step == "w":
            thread.wait_begins(started.pop(0))
            thread.leave()


@pytest.mark.parametrize(("steps", "works_on"), [
    ("sw", False), ("s-w", True), ("s.w", False), ("ssssssss.w.w.w.w.w.w.w.w", False),
    ("s-s-w", True), ("s-s-ww", True), ("s-w-sw", False), ("-sw", False), ("s-w-s-w", True), ("ss-ww", True),
])
def test_work_between_a_start_and_its_wait_is_seen(clock, steps, works_on):
    thread = ProgressThread()
    program(thread, clock, steps)
    assert thread.works_on == works_on


@pytest.mark.parametrize("works_on", [False, True])
def test_a_start_wakes_the_thread_where_the_program_works_on(works_on):
    thread = ProgressThread()
    thread.thread, thread.works_on = threading.current_thread(), works_on     # one that looks at nothing
    thread.watch(Channel(1))
    assert thread.wake.is_set() == works_on


def test_it_goes_on_with_what_nobody_waits_for_and_sees_that_it_was_needed():
    thread, channel = ProgressThread(), Channel(50)
    thread.watch(channel)
    assert channel.done.wait(LIMIT) and thread.works_on
    other = Channel(3)
    thread.watch(other)
    assert other.done.wait(LIMIT)
    thread.stop()
    assert thread.thread is None


def test_it_leaves_what_somebody_waits_for_alone():
    thread, channel = ProgressThread(), Channel(1000)
    thread.waiters.add(1)
    thread.watch(channel)
    time.sleep(0.1)
    assert len(channel.in_flight) == 1000
    channel.in_flight = [1]
    thread.waiters.clear()
    assert channel.done.wait(LIMIT)
    thread.stop()
