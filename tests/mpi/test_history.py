"""The history of calls that each rank keeps in its flight record."""

from __future__ import annotations

import functools
import sys
import threading
import time

import numpy as np
import pytest
from mpi4py import MPI
from support.calls import takes_fast_path
from support.cases import AGAIN
from support.history import make_room

import mpicoll
from mpicoll.buffers import operators
from mpicoll.diagnostics import flight, history_reader
from mpicoll.diagnostics.flight import RECORD
from mpicoll.diagnostics.history import HANDED_OVER, ROWS
from mpicoll.fastpath import context as field
from mpicoll.fastpath import frames


@pytest.fixture(autouse=True)
def _room():
    make_room()


def last(comm, count):
    """Return the last calls on a communicator."""
    if RECORD.memory is None:
        pytest.skip("no flight record is kept here")
    rows = history_reader.rows(RECORD.memory[flight.CALLS :])
    return [row for row in rows if row.communicator == comm._state.place.name][-count:]


def line():
    """Return the number of the line before the caller's."""
    frame = sys._getframe(1)
    return f"test_history.py, line {frame.f_lineno - 1}, in {frame.f_code.co_name}"


def test_blocking_calls(ours):
    x, y, z = np.ones(10), np.empty(10), np.empty(1)
    for _ in range(5):
        ours.Allreduce(x, y, MPI.MAX)
    where = line()
    ours.Bcast(z, root=ours.size - 1)
    *calls, bcast = last(ours, 6)
    assert takes_fast_path(ours, lambda: ours.Allreduce(x, y, MPI.MAX)) or ours.explain("allreduce").slow
    for number, row in enumerate(calls, 1):
        assert (row.call, row.start, row.method, row.form) == (number, 0, "Allreduce", "blocking")
        assert (row.nbytes, row.root, row.operator, row.state) == (80, -1, "MAX", "done")
        assert row.location == where and row.algorithm == calls[0].algorithm
        assert row.took is None or 0 <= row.took < 60
    assert [row.serial for row in calls] == [calls[0].serial + i for i in range(5)]
    assert all(0 <= later.began - row.began < 60 for row, later in zip(calls, [*calls[1:], bcast]))
    assert (bcast.method, bcast.root, bcast.operator, bcast.nbytes) == ("Bcast", ours.size - 1, "", 8)


def first_line(function):
    """Return the line of a lambda, or the last of a function."""
    return f"line {function.__code__.co_firstlineno}, in {function.__name__}"


def test_calls_without_recvcounts_have_the_programs_line(ours):
    """The ranks gather the counts by an Allgather, on behalf of the program's line."""
    x, y = np.ones(3 * ours.size), np.empty(3)
    first = lambda: ours.Reduce_scatter(x, y)
    other = lambda: ours.Reduce_scatter(x, y)
    calls = [first] * 6 + [other, first]
    for call in calls:
        call()
    rows = last(ours, 4)
    assert [row.method for row in rows] == ["Allgather", "Reduce_scatter"] * 2
    assert [row.location for row in rows] == [f"test_history.py, {first_line(f)}" for f in (other, other, first, first)]


@pytest.mark.parametrize("form", ["blocking", "nonblocking", "late", "persistent", "no arrays"])
def test_every_call_has_its_own_line(ours, comm, form):
    """Calls of one kind come from two lines in turn, and after some calls from a third."""
    x, y = np.ones(10), np.empty(10)
    request = ours.Allreduce_init(x, y)
    line_of_request = f"line {sys._getframe().f_lineno - 1}, in test_every_call_has_its_own_line"
    if form == "no arrays":
        x, y = memoryview(x), memoryview(y)
    if form in ("blocking", "no arrays"):
        first = lambda: ours.Allreduce(x, y)
        other = lambda: ours.Allreduce(y, x)
        third = lambda: ours.Allreduce(x, y)
    elif form == "persistent":
        first = lambda: (request.Start(), request.Wait())
        other = lambda: (request.Start(), request.Wait())
        third = lambda: (request.Start(), request.Wait())
    else:
        first = lambda: ours.Iallreduce(x, y).Wait()
        other = lambda: ours.Iallreduce(y, x).Wait()
        third = lambda: ours.Iallreduce(x, y).Wait()
    calls = [first, other] * 6 + [third, first]
    for call in calls:
        comm.Barrier()
        if form == "late" and ours.rank == 0:
            time.sleep(0.002)  # so that operations complete the calls of others
        call()
    where = [row.location for row in last(ours, len(calls))]
    lines = [f"test_history.py, {first_line(call)}" for call in calls]
    if frames.layout() is None and form == "persistent":
        assert set(where) == {f"test_history.py, {line_of_request}"}
    else:
        assert where == lines or (frames.layout() is None and set(where) < set(lines))
    assert frames.layout() is not None or sys.version_info < (3, 11)


def test_lines_where_the_interpreter_is_not_known(ours):
    """Rows have the line that made the call when the fast path began to serve it."""
    x, y = np.ones(10), np.empty(10)
    closed = ours.explain("allreduce").slow
    if not closed:
        ours._state.fast_path.context[field.THREAD_STATE] = 0
    first, other = lambda: ours.Allreduce(x, y), lambda: ours.Allreduce(x, y)
    for call in [first] * 5 + [other]:
        call()
    lines = [f"test_history.py, {first_line(call)}" for call in [first] * 5 + [first, other][bool(closed) :][:1]]
    assert [row.location for row in last(ours, 6)] == lines


def test_calls_from_nowhere(ours):
    """The method is the outermost frame of its thread, or what calls it is not Python."""
    for _ in range(4):
        thread = threading.Thread(target=ours.Barrier)
        thread.run = ours.Barrier
        thread.start()
        thread.join()
    for _ in range(4):
        functools.partial(type(ours).Barrier, ours)()
        ours.Barrier(*[])
        next(map(type(ours).Barrier, [ours]))
    assert [row.call for row in last(ours, 12)] == list(range(5, 17))


def test_calls_of_any_counts(ours):
    for n in range(1, 9):
        ours.Allreduce(np.ones(n), np.empty(n))
    assert [row.nbytes for row in last(ours, 8)] == [8 * n for n in range(1, 9)]


@pytest.mark.parametrize("times", [1, 6])
def test_nonblocking_calls(ours, times):
    """They are in flight until they end, on the fast path too."""
    x, y = np.ones(10), np.empty(10)
    for _ in range(times - 1):
        ours.Iallreduce(x, y).Wait()
    for _ in range(ROWS):  # what earlier calls left in a row is not taken for the end of a later one
        RECORD.history.end(RECORD.history.write(0, 0, 0, 0), HANDED_OVER)
    others = MPI.Intracomm.Dup(ours)
    if ours.rank:  # the first rank begins alone
        others.Barrier()
    request = ours.Iallreduce(x, y)
    where = line()
    if not ours.rank:
        (row,) = last(ours, 1)
        assert row.state == ("in flight" if ours.size > 1 else "done")
        others.Barrier()
    request.Wait()
    (row,) = last(ours, 1)
    assert (row.call, row.method, row.form, row.state) == (times, "Iallreduce", "nonblocking", "done")
    assert row.location == (where if times == 1 else row.location)
    others.Free()


def test_persistent_calls(ours):
    x, y = np.ones(10), np.empty(10)
    request = ours.Allreduce_init(x, y)
    for _ in range(5):
        request.Start()
        request.Wait()
    rows = [row for row in last(ours, 20) if row.algorithm != "native"]
    assert {row.call for row in rows} == {1} and {row.method for row in rows} == {"Allreduce_init"}
    assert [row.start for row in rows] == list(range(6)) and {row.state for row in rows} == {"done"}
    others = MPI.Intracomm.Dup(ours)
    if ours.rank:
        others.Barrier()
    request.Start()
    if not ours.rank:
        assert [row.state for row in last(ours, 1)] == ["in flight" if ours.size > 1 else "done"]
        others.Barrier()
    request.Wait()
    assert [(row.start, row.state) for row in last(ours, 1)] == [(6, "done")]
    others.Free()


def test_calls_of_the_mpi(ours):
    x, y = np.ones(10), np.empty(10)
    with ours.using(allreduce="native"):
        ours.Allreduce(x, y)
        ours.Iallreduce(x, y).Wait()
    rows = last(ours, 2)
    assert [row.algorithm for row in rows] == ["native", "native"] and rows[0].state == "done"
    assert rows[1].state in ("left to MPI", "done")  # done where it is watched


@pytest.mark.mpi(min_size=2, max_size=2)  # both fold
@pytest.mark.parametrize("late", [False, True])
def test_calls_that_fail(ours, comm, monkeypatch, late):
    failing = []

    def apply(op):
        def fold(a, b, n, datatype):
            if failing:
                raise ZeroDivisionError("in fold")

        return fold

    monkeypatch.setattr(operators, "_apply_function", apply)
    op = MPI.Op.Create(lambda a, b, datatype: None, commute=True)
    x, y = np.ones(10), np.empty(10)
    for turn in range(AGAIN + 2):
        failing[:] = [True] * (turn in (1, AGAIN))
        if failing:
            if late and comm.rank == 0:
                time.sleep(0.03)  # so that the fast path leaves the call of the other rank to an operation
            with pytest.raises(ZeroDivisionError):
                ours.Allreduce(x, y, op)
        else:
            ours.Allreduce(x, y, op)
        comm.Barrier()
    rows = last(ours, AGAIN + 2)
    assert {row.operator for row in rows} == {"user"}
    assert [turn for turn, row in enumerate(rows) if row.state == "failed"] == [1, AGAIN]
    assert {row.state for row in rows} == {"failed", "done"}
    op.Free()


def test_the_last_calls_stay(ours):
    for _ in range(ROWS + 10):
        ours.Barrier()
    rows = last(ours, 2 * ROWS)
    assert [row.call for row in rows] == list(range(rows[0].call, ROWS + 11)) and len(rows) <= ROWS
    assert len(rows) > ROWS - 64


def test_communicators_have_the_same_names_on_all_ranks(ours):
    copies = [ours.Dup() for _ in range(3)]
    for copy in copies:
        copy.Barrier()
    names = [last(copy, 1)[0].communicator for copy in copies]
    assert len(set(names)) == 3 and ours.allgather(names) == [names] * ours.size
    for copy in copies:
        copy.Free()


def test_a_state_without_a_record(comm, monkeypatch):
    from mpicoll.diagnostics.history import History

    monkeypatch.setattr(RECORD, "history", History())
    ours = mpicoll.Comm(comm.Dup())
    x, y = np.ones(4), np.empty(4)
    for _ in range(5):
        ours.Allreduce(x, y)
        ours.Iallreduce(x, y).Wait()
    assert y[0] == comm.size and not RECORD.history.ids
    ours.Free()
