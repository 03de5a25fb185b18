"""The ring buffers of timelines: what is kept of more calls than fit, and of whom."""

from __future__ import annotations

import numpy as np

from mpicoll.diagnostics import ring
from mpicoll.diagnostics.record import Record
from mpicoll.diagnostics.ring import Ring
from mpicoll.engines.events import COLUMNS, PEER, Events
from mpicoll.progress.times import Times


def record(sequence, messages=0, lost=0):
    """Return the record of a call that begins at `sequence` seconds; its messages go to ranks 0, 1 …"""
    rows = np.zeros((messages, COLUMNS), np.int64)
    rows[:, PEER] = range(messages)
    times = Times(float(sequence), sequence + 0.25, sequence + 0.5, Events(None, rows, lost, 0))
    return Record("allreduce", "blocking", "ring", "mpi4py", 8, None, 1, messages, 16, sequence, "why", times=times)


def recorded(ring_, first=0):
    """Return the calls that a ring has, as (sequence, peers of messages)."""
    kept = ring_.since(first)
    ends = [(row[ring.SEQUENCE], row[ring.FIRST], row[ring.FIRST] + row[ring.ROWS]) for row in kept.calls.tolist()]
    return [(sequence, kept.messages[begin:end, PEER].tolist()) for sequence, begin, end in ends], kept.dropped


def test_a_call_keeps_its_times_counts_and_messages():
    some = Ring()
    first = some.begin(8)
    some.write(5, record(3, messages=2, lost=1))
    kept = some.since(first)
    (row,) = kept.calls.tolist()
    assert kept.kinds[row[ring.KIND]].record == record(3, messages=2) and row[ring.COMM] == 5
    assert [row[i] for i in (ring.BEGAN, ring.WAITED, ring.ENDED)] == [3_000_000_000, 3_250_000_000, 3_500_000_000]
    assert [row[i] for i in (ring.NBYTES, ring.SENT, ring.ROWS, ring.LOST)] == [8, 16, 2, 1]
    assert recorded(some) == ([(3, [0, 1])], 0)


def test_new_calls_replace_the_oldest():
    some = Ring()
    first = some.begin(4)
    for sequence in range(1, 8):
        some.write(1, record(sequence))
    assert recorded(some, first) == ([(4, []), (5, []), (6, []), (7, [])], 3)


def test_a_call_whose_messages_were_replaced_goes_too():
    some = Ring()
    first = some.begin(5)
    for sequence, messages in ((1, 2), (2, 2), (3, 3)):
        some.write(1, record(sequence, messages))
    assert recorded(some, first) == ([(2, [0, 1]), (3, [0, 1, 2])], 1)


def test_a_call_with_more_messages_than_fit_keeps_the_first():
    some = Ring()
    some.begin(3)
    some.write(1, record(1, messages=5, lost=1))
    assert recorded(some) == ([(1, [0, 1, 2])], 0) and some.since(0).calls[0, ring.LOST] == 3


def test_a_second_user_has_what_came_later():
    some = Ring()
    first = some.begin(8)
    some.write(1, record(1, 1))
    second = some.begin(100)
    some.write(1, record(2, 2))
    assert recorded(some, second) == ([(2, [0, 1])], 0)
    some.end()
    some.write(1, record(3))
    assert [sequence for sequence, _ in recorded(some, first)[0]] == [1, 2, 3]
    some.end()
    some.write(1, record(4))  # no user is left
    assert not some.words[ring.CALLS] and not some.kinds


def test_kinds_of_no_row_are_removed(monkeypatch):
    monkeypatch.setattr(ring, "MIN_KINDS", 8)
    some = Ring()
    number, kinds = some.add(None, record(0), record(0))  # of a call that may come again
    some.begin(4)
    for sequence in range(1, 100):
        some.write(1, record(sequence))
    assert len(some.kinds) <= 18 and some.kinds[number + 1] is kinds[1]
    kept = some.since(0)
    assert {kept.kinds[kind].record.sequence for kind in kept.calls[:, ring.KIND].tolist()} == {96, 97, 98, 99}


def test_a_record_without_times_is_left_out():
    some = Ring()
    some.begin(4)
    some.write(1, record(1).with_values(times=None))
    assert recorded(some) == ([], 0)
