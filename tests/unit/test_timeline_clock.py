"""Clocks of ranks that are apart and drift: times in a timeline are right within the error that its file says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from mpicoll.diagnostics import ring
from mpicoll.diagnostics.record import Record
from mpicoll.diagnostics.ring import CallKind, Recorded
from mpicoll.engines.events import COLUMNS, ENDED, KIND, NO_MESSAGE, PEER, POSTED
from mpicoll.plans.lowering import lower
from mpicoll.plans.rolled import rolled
from mpicoll.schedules.schedule import schedule
from mpicoll.timeline import clock, recorder, trace_events
from mpicoll.timeline.model import RankTimeline

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
    """A reading of a rank's clock at a true time, by messages that take as long as given there and back."""
    times = []
    for there, back in exchanges:
        times.append((own(true), reference(true + there), own(true + there + back)))
        true += there + back
    return clock.reading(times)


def record(own, starts):
    """Calls of 100 µs with a step of 50 at true times, as a rank's ring has them."""
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


def test_the_error_is_that_of_two_ranks():
    errors = (0.0, 2e-6, 1e-6, 5e-6)
    trace = trace_events.trace([RankTimeline(rank, "host", [], [], 0, error) for rank, error in enumerate(errors)])
    assert trace["otherData"]["clock_error_us"] == 7
