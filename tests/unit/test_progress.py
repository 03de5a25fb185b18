"""The progress threads: what they learn from a program, and how they advance plans and communicators."""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import threading
import time

import numpy as np
import pytest

from mpicoll.engines.protocol import CompiledStep
from mpicoll.kernels.memory import address_of
from mpicoll.progress import driver, queue, table, turns
from mpicoll.progress import thread as progress
from mpicoll.progress.thread import ProgressThread
from mpicoll.progress.turns import CallNumbers

LIMIT = 20.0  # seconds that the thread has to do what it does in milliseconds


class CommState:
    """Something in flight that takes a number of passes."""

    def __init__(self, passes, is_driven=False):
        self.in_flight, self.done = [None] * passes, threading.Event()
        self.is_driven = is_driven

    def needs_python(self):
        return bool(self.in_flight) and not self.is_driven

    def poll(self):
        if self.in_flight and not self.is_driven:
            self.in_flight.pop()
        if not self.in_flight:
            self.done.set()
        return bool(self.in_flight)


@pytest.fixture
def thread():
    """Yield a progress thread and driver that nothing else uses."""
    started = ProgressThread()
    yield started
    started.stop()


@pytest.fixture
def clock(monkeypatch):
    """Return the thread's clock, which a test sets."""
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
def test_work_between_a_start_and_its_wait_is_seen(thread, clock, steps, works_on):
    program(thread, clock, steps)
    assert thread.computes == works_on


@pytest.mark.parametrize("works_on", [False, True])
@pytest.mark.parametrize("is_driven", [False, True])
def test_a_start_wakes_who_advances_it_where_the_program_works_on(thread, works_on, is_driven, monkeypatch):
    monkeypatch.setattr(thread, "start", lambda: None)
    thread.computes = works_on
    thread.control[table.SLEEP] = table.DOZING
    thread.add_queue(CommState(1, is_driven))
    assert thread.wake.is_set() == (works_on and not is_driven)
    assert thread.wake_driver.is_set() == works_on


def test_the_thread_advances_a_queue_without_a_waiter_and_learns_that_it_was_needed(thread):
    state = CommState(50)
    thread.add_queue(state)
    assert state.done.wait(LIMIT) and thread.computes
    other = CommState(3)
    thread.add_queue(other)
    assert other.done.wait(LIMIT)
    thread.stop()
    assert thread.thread is None and thread.driver is None


def test_the_thread_leaves_queues_to_a_thread_that_waits(thread):
    state = CommState(1000)
    thread.add_waiter()
    thread.add_queue(state)
    time.sleep(0.1)
    assert len(state.in_flight) == 1000
    state.in_flight = [1]
    thread.remove_waiter()
    assert state.done.wait(LIMIT)


def test_a_waiter_wakes_the_sleeping_thread_for_a_plan_that_it_has_ended(thread):
    """A thread that waits for one plan ends others in compiled code, while the thread sleeps since all were driven."""
    state = CommState(1, is_driven=True)
    thread.add_queue(state)
    until = time.monotonic() + LIMIT
    while not thread.asleep and time.monotonic() < until:
        time.sleep(1e-3)
    thread.add_waiter()
    state.is_driven = False       # it has ended
    thread.remove_waiter()
    assert state.done.wait(LIMIT)


# -- plans that compiled code advances


STEP = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


class Plan:
    """A plan whose steps are a Python function of (argument, nanoseconds)."""

    def __init__(self, function):
        self.counters, self.function = np.zeros(3, np.int64), STEP(function)
        address = ctypes.cast(self.function, ctypes.c_void_p).value
        self.step = CompiledStep(address, 1, address_of(self.counters), ValueError)


def eventually(condition):
    """Wait until a condition holds; return whether it did in time."""
    until = time.monotonic() + LIMIT
    while not condition() and time.monotonic() < until:
        time.sleep(0.001)
    return condition()


def advanced(thread, plan):
    """Return the row of a plan that the driver advances."""
    row = thread.row()
    row.put(plan.step)
    thread.poll_now()
    return row


def countdown(calls, code):
    """Return a plan that ends by a code after so many calls, and the list of its calls."""
    callers = []

    def function(argument, nanoseconds):
        callers.append(threading.current_thread().name)
        return code if len(callers) >= calls else table.IN_PROGRESS

    return Plan(function), callers


@pytest.mark.parametrize("code", [1, -5])
def test_the_driver_advances_a_plan_and_says_how_it_ended(thread, code):
    thread.start()
    plan, callers = countdown(20, code)
    row = advanced(thread, plan)
    assert eventually(lambda: len(callers) == 20)
    assert [row.advance(0.0) for _ in range(3)] == [code] * 3     # an interrupt may have it asked again
    row.put(plan.step)
    assert row.advance(0.0) == code and len(callers) == 20, "a plan that has ended began again"
    assert thread.driver is not None and set(callers) == {callers[0]}
    row.free()
    row.free()
    assert len(thread.table.free) == table.ROWS


@pytest.mark.parametrize("program_works", [False, True])
@pytest.mark.parametrize("until_when", ["never", "the plan is there", "the plan is there, and no queue"])
def test_a_sleeping_driver_is_woken_by_a_plan(thread, until_when, program_works):
    """At once, or when a thread no longer waits that would have advanced it."""
    thread.start()
    thread.computes = True      # so that it sleeps until it is woken
    assert eventually(lambda: thread.asleep and thread.control[table.SLEEP] == table.ASLEEP)
    thread.computes = program_works
    (plan, callers), row, queue = countdown(5, 1), thread.row(), CommState(1, is_driven=True)
    if until_when != "never":
        thread.add_waiter()
    thread.put(row, plan.step)
    if until_when == "the plan is there, and no queue":
        thread.remove_waiter()
    thread.add_queue(queue)
    if until_when == "the plan is there":
        thread.remove_waiter()
    assert eventually(lambda: len(callers) == 5)
    row.free()


def test_a_plan_that_was_given_up_is_not_advanced(thread):
    thread.start()
    plan, callers = countdown(10**9, 1)
    row = advanced(thread, plan)
    assert eventually(lambda: len(callers) >= 5)
    row.free()
    before = len(callers)
    time.sleep(0.1)
    assert 5 <= before == len(callers)


def test_no_thread_advances_a_plan_that_is_held(thread):
    thread.start()
    plan, callers = countdown(10**9, 1)
    row = thread.row()
    row.put(plan.step)
    with row.held():
        before = len(callers)
        thread.poll_now()
        time.sleep(0.05)
        assert row.advance(0.001) == table.IN_PROGRESS and len(callers) == before
    assert eventually(lambda: len(callers) > before)
    row.free()


def test_a_waiting_thread_advances_all_plans(thread):
    plans = [countdown(n, 1) for n in (10**9, 30)]
    rows = [thread.row() for _ in plans]
    for row, (plan, _) in zip(rows, plans):
        row.put(plan.step)
    thread.wait(LIMIT)
    assert len(plans[1][1]) == 30 and len(plans[0][1]) >= 29
    assert [row.advance(0.0) for row in rows] == [table.IN_PROGRESS, 1]
    before, began = len(plans[0][1]), time.monotonic()
    rows[1].free()
    thread.wait(0.02)
    assert time.monotonic() - began > 0.01
    while len(plans[0][1]) <= before + 50 and time.monotonic() - began < LIMIT:
        thread.wait(0.02)
    assert len(plans[0][1]) > before + 50
    rows[0].free()


def test_the_driver_records_turns_in_which_something_moved(thread):
    """Polls between them leave no rows, nor do those of a thread that waits, nor any while nothing is recorded."""
    thread.start()
    own = thread.table.turns

    def play():
        """Advance a plan whose 3rd call posts a message of 8 B, whose 5th finishes two steps, and whose 9th ends it."""
        calls = itertools.count(1)

        def function(argument, nanoseconds):
            call = next(calls)
            plan.counters[:] += {3: (1, 8, 0), 5: (0, 0, 2)}.get(call, (0, 0, 0))
            return int(call == 9)

        plan = Plan(function)
        row = thread.row()
        row.put(plan.step, CallNumbers(7, 40, 2))
        thread.poll_now()
        assert eventually(lambda: row.has_ended)
        row.free()

    began, mark = time.monotonic_ns(), own.begin()
    play()
    ended, rows = time.monotonic_ns(), own.since(mark)
    assert [row[:3] + row[5:] for row in rows.driver.tolist()] == [
        [7, 40, 2, 1, 8, 0], [7, 40, 2, 0, 0, 2], [7, 40, 2, 0, 0, 0],
    ]  # fmt: skip
    times = rows.driver[:, [turns.BEGAN, turns.ENDED]].reshape(-1).tolist()
    assert times == sorted(times) and began < times[0] and times[-1] < ended
    assert not len(rows.python) and not rows.dropped
    (plan, callers), row = countdown(1, 1), thread.row()
    thread.add_waiter()
    row.put(plan.step)
    thread.wait(1.0)
    thread.remove_waiter()
    row.free()
    was_the_driver = callers != [threading.current_thread().name]  # in a pass as this thread begins to wait
    kept = 3 + was_the_driver
    assert len(own.since(mark).driver) == kept
    own.end()
    play()
    assert len(own.since(mark).driver) == kept


def test_new_turns_replace_the_oldest():
    """The driver may be writing the row after the last, in place of the oldest."""
    own = turns.Turns()
    mark = own.begin()
    for number in range(turns.ROOM + 5):
        own.rows[number % turns.ROOM, turns.SEQUENCE] = number
    own.header[turns.COUNT] = turns.ROOM + 5
    own.python_rows.extend((1, number, 0, 0, 0, 0, 0, 0) for number in range(3))
    own.python_count = 3
    rows = own.since(mark)
    assert rows.driver[:, turns.SEQUENCE].tolist() == list(range(6, turns.ROOM + 5)) and rows.dropped == 6
    assert rows.python[:, turns.SEQUENCE].tolist() == [0, 1, 2]
    second = own.begin()
    own.add(CallNumbers(1, 9, 0), 0, (1, 2, 3))
    assert own.since(second).python[:, 1:].tolist()[0][:2] == [9, 0] and not len(own.since(second).driver)
    own.end()
    assert len(own.since(mark).python) == 4 and own.users == 1
    own.end()
    assert not own.python_rows and not own.header[turns.ON]


class Steps:
    """An operation of the queue whose calls of step() move what `moves` says."""

    def __init__(self, is_driven, *moves):
        self.is_driven, self.moves, self.counters = is_driven, list(moves), (0, 0, 0)
        self.numbers = CallNumbers(3, 5, 0)

    def step(self, seconds):
        self.counters = tuple(a + b for a, b in zip(self.counters, self.moves.pop(0)))
        return not self.moves


@pytest.mark.parametrize("is_driven", [False, True])
def test_the_python_thread_records_turns_in_which_something_moved(is_driven, monkeypatch):
    """Of a plan that the driver advances, only the end is the Python thread's."""
    own = turns.Turns()
    monkeypatch.setattr(queue.THREAD.table, "turns", own)
    operation = Steps(is_driven, (0, 0, 0), (2, 64, 1), (0, 0, 0), (0, 0, 0))
    mark = own.begin()
    assert [queue._advance_in_turn(operation, 0.0) for _ in range(4)] == [False, False, False, True]
    rows = own.since(mark).python
    moved, ended = [3, 5, 0, 2, 64, 1], [3, 5, 0, 0, 0, 0]
    assert [row[:3] + row[5:] for row in rows.tolist()] == [moved] * (not is_driven) + [ended]
    own.end()


def test_only_the_python_thread_has_turns_of_its_own(thread):
    """Those of a thread that waits are the program's."""
    seen = []
    state = CommState(1)
    poll = state.poll
    state.poll = lambda: (seen.append(thread.records_turns()), poll())[1]
    thread.table.turns.begin()
    assert not thread.records_turns()
    thread.add_queue(state)
    assert state.done.wait(LIMIT) and seen[0]
    thread.table.turns.end()
    again = CommState(1)
    again.poll = lambda: (seen.append(thread.records_turns()), CommState.poll(again))[1]
    thread.add_queue(again)
    assert again.done.wait(LIMIT) and not seen[-1]


def test_a_plan_beside_those_of_the_table(thread):
    """A call of the fast path waits for its own plan, and advances the others."""
    (others, calls), (own, mine) = countdown(10**9, 1), countdown(40, -3)
    row = thread.row()
    row.put(others.step)
    waiting = driver.wait.entry(thread.table.at, *own.step[:3], 10**9)
    assert waiting == -3 and len(mine) == 40 and 39 <= len(calls) <= 41 and not thread.wake.is_set()
    ending, _ = countdown(5, 1)
    (own, mine), second = countdown(40, 1), thread.row()
    second.put(ending.step)
    driver.wait.entry(thread.table.at, *own.step[:3], 10**9)
    assert thread.wake.is_set(), "no thread would complete the other one"
    (own, mine), began = countdown(10**9, 1), time.monotonic()
    assert driver.wait.entry(thread.table.at, *own.step[:3], 10**7) == table.IN_PROGRESS
    assert 0.01 < time.monotonic() - began < LIMIT and len(mine) > 10
    row.free()
    second.free()


@pytest.mark.parametrize("share", [0.01, 0.5])
def test_the_driver_sees_that_processors_are_taken(thread, tmp_path, share):
    """By how long the main thread has waited for one, in the kernel's words; then passes are rare."""
    file = tmp_path / "schedstat"
    file.write_text(f"1000 {0:012} 7")
    thread.control[table.DELAYS] = descriptor = os.open(file, os.O_RDWR)
    thread.start()
    plan, _ = countdown(10**9, 1)  # kept: the driver calls it
    row = advanced(thread, plan)
    waited, measured = itertools.count(1), set()

    def waits():
        """Add this share of a millisecond; calls are at least one apart, so a late one adds no larger share."""
        os.pwrite(descriptor, f"1000 {int(next(waited) * share * 1e6):012} 7".encode(), 0)
        measured.add(thread.control.item(table.DELAY_READ_AT))
        return thread.control[table.CONTENDED] or (share < 0.1 and len(measured) > 20)

    assert eventually(waits)
    assert thread.control[table.CONTENDED] == (share > 0.1)
    row.free()
    thread.stop()
    os.close(descriptor)


class Slow(np.ndarray):
    """Words that let other threads run between a read and what follows from it."""

    def __getitem__(self, key):
        word = super().__getitem__(key)
        time.sleep(random.choice((0.0, 0.0005)))
        return word


def test_threads_that_take_rows_at_once_leave_none_out(thread):
    """The driver looks at USED rows, so that number never falls behind a row that a thread has."""
    rows = []
    thread.table.control = thread.control.view(Slow)
    takers = [threading.Thread(target=lambda: rows.extend(thread.row() for _ in range(16))) for _ in range(4)]
    for taker in takers:
        taker.start()
    for count in range(1, 64):
        assert eventually(lambda: len(rows) >= count)  # noqa: B023 - called at once
        assert thread.control.item(table.USED) >= count
    for taker in takers:
        taker.join()
    assert thread.control.item(table.USED) == 64


def test_a_full_table_has_no_row(thread):
    rows = [thread.row() for _ in range(table.ROWS)]
    assert all(rows) and thread.row() is None
    rows[7].free()
    assert thread.row() is not None


def test_a_signal_is_taken_back(thread):
    signal = progress.Signal()
    assert not signal.is_set()
    for _ in range(100_000):     # more than a pipe holds
        signal.set()
    assert signal.is_set()
    signal.wait()
    while signal.is_set():
        signal.clear()
    began = time.monotonic()
    signal.wait(0.01)
    assert time.monotonic() - began > 0.005
