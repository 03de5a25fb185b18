"""Clocks of ranks that are apart and drift: times in a timeline are right within the error that its file says."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.diagnostics import ring
from mpicoll.diagnostics.record import Record
from mpicoll.diagnostics.ring import CallKind, Recorded
from mpicoll.engines.events import COLUMNS, ENDED, KIND, NO_MESSAGE, PEER, POSTED
from mpicoll.plans.lowering import lower
from mpicoll.plans.plan import RECV, SEND
from mpicoll.plans.rolled import rolled
from mpicoll.schedules.schedule import schedule
from mpicoll.timeline import clock, drift, recorder, trace_events
from mpicoll.timeline.match import most_before_sent, pair
from mpicoll.timeline.model import BEGAN, Call, RankTimeline, Span
from mpicoll.timeline.model import ENDED as TURN_ENDED

RECORD = Record("allreduce", "blocking", "ring", "compiled", 8, None, 1, 1, 8, 1, "why", "Allreduce")
PLAN = rolled(lower(schedule("allreduce", "recursive_doubling", 2), 0, 1, 8))
ROUNDING = 2e-3  # microseconds: of times in a file


@dataclass
class Clock:
    """A clock that shows `apart` at true time 0, and runs too fast by a share."""

    apart: float
    drift: float

    def __call__(self, true):
        return self.apart + (1 + self.drift) * true


clocks = st.builds(Clock, st.floats(1, 1e6), st.floats(-2e-4, 2e-4))
delays = st.lists(st.tuples(st.floats(1e-7, 1e-3), st.floats(1e-7, 1e-3)), min_size=1, max_size=4)


def reading(own, reference, true, exchanges):
    """Return a reading of a rank's clock at a true time; `exchanges` has the seconds of each message there and back."""
    times = []
    for there, back in exchanges:
        times.append((own(true), reference(true + there), own(true + there + back)))
        true += there + back
    return clock.reading(times)


def record(own, starts):
    """Return calls of 100 µs with a step of 50 at true times, as a rank's ring has them."""
    calls = np.zeros((len(starts), ring.CALL_COLUMNS), np.int64)
    rows = np.zeros((len(starts), COLUMNS), np.int64)
    shown = lambda times: np.round(own(times) * 1e9).astype(np.int64)
    calls[:, ring.BEGAN] = calls[:, ring.WAITED] = shown(starts)
    calls[:, ring.ENDED] = shown(starts + 1e-4)
    calls[:, [ring.COMM, ring.ROWS]] = 1
    calls[:, ring.SEQUENCE] = np.arange(len(starts)) + 1
    calls[:, ring.FIRST] = np.arange(len(starts))
    rows[:, KIND], rows[:, PEER] = NO_MESSAGE, -1
    rows[:, POSTED] = rows[:, POSTED + 1] = shown(starts)
    rows[:, ENDED] = shown(starts + 5e-5)
    return Recorded(calls, rows, {0: CallKind(RECORD, PLAN)}, 0)


@settings(max_examples=50)
@given(st.lists(st.tuples(clocks, delays, delays), min_size=2, max_size=4), st.floats(1e-2, 1e4))
def test_times_are_right_within_the_printed_error(ranks, seconds):
    """Of any two ranks, and of their calls and steps at the beginning, in the middle and at the end."""
    reference, starts = ranks[0][0], np.array([0.01, 0.5 * seconds + 0.01, seconds + 0.01])
    timelines = []
    for rank, (own, first, last) in enumerate(ranks):
        ends = [reading(own, reference, 0.0, first), reading(own, reference, seconds + 0.02, last)]
        correction = clock.Correction(*ends if rank else [clock.Reading(own(true), 0.0, 0.0) for true in (0, seconds)])
        rows = record(own, starts)
        calls = recorder._calls(rows.calls, rows, {1: recorder._Communicator("all", (0, 1))}, correction)
        timelines.append(RankTimeline(rank, "host", calls, [], 0, correction.error))
    trace = trace_events.trace(timelines)
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    true = np.repeat([starts], 2 * len(ranks), axis=0) * (1 + reference.drift) * 1e6  # on rank 0's clock
    times = np.array([event["ts"] for event in slices]).reshape(-1, len(starts))
    apart = (times - true).max(axis=0) - (times - true).min(axis=0)
    assert len(slices) == times.size == true.size
    assert apart.max() <= trace["otherData"]["clock_error_us"] + ROUNDING, (apart, trace["otherData"])


TURN, EVERY = 0.25, 0.01  # seconds after which drift changes its sign, and between calls


def triangular(share):
    """Return a clock in nanoseconds that drifts by a share, ahead and back in turns of TURN seconds."""
    ahead = lambda true: share * np.where(true // TURN % 2 == 1, TURN - true % TURN, true % TURN)
    return lambda true: np.round((true + ahead(true)) * 1e9).astype(np.int64)


def exchanges(shares, late):
    """Return timelines of ranks whose clocks are triangular: each sends to all others in a call every EVERY seconds."""
    draw, ranks = np.random.default_rng(1), range(len(shares))
    shown = [triangular(share) for share in shares]
    calls = [[] for _ in ranks]
    for number in range(100):
        start, rows = 1 + EVERY * number, [[] for _ in ranks]
        posted = start + draw.uniform(0, late, len(shares))
        for a, b in permutations(ranks, 2):
            arrived = max(posted[a], posted[b]) + draw.uniform(2e-5, 1e-4)
            rows[a].append([SEND, b, 8, 0, 0, 0, 0, 0, *shown[a](np.array([posted[a], arrived, arrived]))])
            rows[b].append([RECV, a, 8, 0, 0, 0, 0, 0, *shown[b](np.array([posted[b], arrived, arrived]))])
        facts = {"collective": "allreduce", "form": "blocking", "bytes": 8, "algorithm": "naive"}
        for rank in ranks:
            began, ended = shown[rank](np.array([start, start + late + 1e-4])) * 1e-9
            calls[rank].append(Call("all", number, 0, "Allreduce", facts, began, began, ended, np.array(rows[rank]), 0))
    turns, spans = np.array([[0, 10, 1_100_000_000, 1_200_000_000, 0, 0, 1]]), [Span("step", 1.1, 1.2)]
    return [RankTimeline(rank, "host", calls[rank], spans, 0, 1e-5 * (rank > 0), turns=turns) for rank in ranks]


def wrong(timelines):
    """Return the most seconds between the beginnings of a call, which are at one true time."""
    began = np.array([[call.began for call in timeline.calls] for timeline in timelines])
    return np.ptp(began, axis=0).max()


@pytest.mark.parametrize("shares", [(0, 0.1), (0, 0.1, -0.1), (0, 0, 0.01, -0.02)], ids=str)
@pytest.mark.parametrize("late", [0, 5e-4])
def test_clocks_that_drift_unevenly_are_corrected_by_messages(shares, late):
    """Within the error, which is a fraction of what it was. Spans and turns are moved with the calls."""
    ranks = exchanges(shares, late)
    numbers, _ = pair(ranks)
    evened, error = drift.evened(ranks, numbers, 1e-5)
    assert wrong(evened) <= error < wrong(ranks) / 5
    assert most_before_sent(evened, numbers) <= error < most_before_sent(ranks, numbers)
    assert wrong(ranks) == pytest.approx(TURN * np.ptp(shares), rel=0.1)
    (span,) = evened[-1].spans
    turn = [evened[-1].turns.item(0, column) * 1e-9 for column in (BEGAN, TURN_ENDED)]
    assert turn == pytest.approx([span.began, span.ended], abs=1e-8)
    right = 1.1 - shares[-1] * 0.1, 1.2 - shares[-1] * 0.2  # where the clock showed 1.1 and 1.2 s
    assert turn == pytest.approx(right, abs=1.2 * error)
    posted = [call.messages[0, POSTED] for call in evened[-1].calls]
    assert posted == sorted(posted)


def test_clocks_stay_if_messages_are_too_late_to_correct_them():
    ranks = exchanges((0, 1e-3, -1e-3), 4e-3)
    numbers, _ = pair(ranks)
    before = most_before_sent(ranks, numbers)
    assert before > 0 and drift.evened(ranks, numbers, 1e-5) == (ranks, before)
    assert drift.evened(ranks, numbers, 1e-2) == (ranks, 1e-2), "the readings explain it"


def test_the_error_is_that_of_two_ranks():
    errors = (0.0, 2e-6, 1e-6, 5e-6)
    trace = trace_events.trace([RankTimeline(rank, "host", [], [], 0, error) for rank, error in enumerate(errors)])
    assert trace["otherData"]["clock_error_us"] == 7
