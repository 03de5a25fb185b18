"""Iallreduce: many in flight, completed in any order, with and without the progress thread.

Requests of every collective, in lists and misused, are in test_requests.py.
"""

from __future__ import annotations

import gc
import signal
import time

import numpy as np
import pytest
from mpi4py import MPI
from support import cases, collectives, ops
from support.calls import is_ended
from support.cases import Checks

import mpicoll
from mpicoll.errors import CountMismatch, PreconditionError
from mpicoll.progress import driver, table
from mpicoll.progress import thread as progress

ALGORITHMS = [name for collective, name in collectives.specs() if collective == "allreduce"]
THREADED = MPI.Query_thread() == MPI.THREAD_MULTIPLE
parametrize = pytest.mark.parametrize


@pytest.fixture(params=[True, False] if THREADED else [False], ids=lambda on: "thread" if on else "no-thread")
def ours(comm, engine, request, monkeypatch):
    """Yield a Comm on one engine, with the progress thread or without."""
    monkeypatch.setenv("MPICOLL_PROGRESS", str(int(request.param)))
    wrapped = mpicoll.Comm(comm)
    with wrapped.using(engine=engine):
        yield wrapped


@pytest.fixture
def threaded(comm, engine):
    """Yield a Comm on one engine, with the progress thread."""
    wrapped = mpicoll.Comm(comm)
    with wrapped.using(engine=engine):
        yield wrapped


class Operation:
    """An Iallreduce under way, of which the result is known."""

    def __init__(self, comm, n=5, factor=1):
        self.rank, self.p, self.n, self.factor = comm.rank, comm.size, n, factor
        self.send, self.got = cases.data(n, comm.rank) * factor, np.full(n, -1.0)
        self.request = comm.Iallreduce(self.send, self.got)

    def right(self):
        want = sum(cases.data(self.n, rank) for rank in range(self.p)) * self.factor
        return np.array_equal(self.got, want) and self.request == MPI.REQUEST_NULL


def several(comm, number):
    """Return operations of many sizes, in flight."""
    return [Operation(comm, n=1 + 37 * (i % 5) + 9_000 * (i % 4 == 3), factor=i + 1) for i in range(number)]


@pytest.mark.unsampled(max_size=4)
@parametrize("spec", ALGORITHMS)
def test_every_algorithm(ours, engine, spec):
    with Checks() as checks, ours.using(allreduce=spec), ours.trace() as records:
        for n in (0, 1, 2 * ours.size + 1, 3_000):
            operation = Operation(ours, n)
            operation.request.Wait()
            checks.that(operation.right(), n, operation.got)
    assert [(r.algorithm, r.engine) for r in records] == [(spec, engine)] * 4
    assert all(r.messages > 0 for r in records[1:]) or ours.size == 1


ORDERS = {      # of a rank's requests
    "forwards": lambda number, rank: range(number),
    "backwards": lambda number, rank: range(number)[::-1],
    "another on every rank": lambda number, rank: np.random.default_rng(rank).permutation(number),
}


def complete(request, how):
    """Complete the request by Wait, or by Test until that returns true."""
    if how == "Wait":
        request.Wait()
    else:
        while not request.Test():
            pass


@parametrize("how", ["Wait", "Test"])
@parametrize("order", ORDERS)
def test_completing_in_any_order(ours, order, how):
    operations = several(ours, 12)
    for i in ORDERS[order](12, ours.rank):
        complete(operations[i].request, how)
    assert all(operation.right() for operation in operations)


def test_blocking_collectives_in_between(ours):
    operations = several(ours, 3)
    total = np.zeros(4)
    ours.Allreduce(np.full(4, 1.0), total)
    ours.Barrier()
    operations += several(ours, 2)
    ours.Bcast(total, ours.size - 1)
    for operation in operations:
        operation.request.Wait()
    assert all(operation.right() for operation in operations) and (total == ours.size).all()


OTHERS = {
    "Barrier": lambda c: c.Barrier(),
    "Bcast": lambda c: c.Bcast(np.zeros(1)),
    "Reduce_scatter": lambda c: c.Reduce_scatter(np.zeros(2 * c.size), np.zeros(2), [2] * c.size),
    "Reduce_scatter without counts": lambda c: c.Reduce_scatter(np.zeros(2 * c.size), np.zeros(2)),
}


@pytest.mark.mpi(min_size=2)
@parametrize("on_another", [False, True], ids=["the same communicator", "another"])
@parametrize("what", OTHERS)
def test_one_rank_waits_first_and_another_calls_first(ours, what, on_another):
    """A call of ours advances all operations in flight, so that no rank waits for a rank that is in another call."""
    called = ours.Dup() if on_another else ours
    operation = Operation(ours, n=20_000)
    if ours.rank == 0:
        OTHERS[what](called)
        operation.request.Wait()
    else:
        operation.request.Wait()
        OTHERS[what](called)
    assert operation.right()
    if on_another:
        called.Free()


def test_more_in_flight_than_there_are_tags(ours):
    """Of different lengths, in several steps each, on ranks that are not in step: a mix-up would show."""
    with ours.using(allreduce="ring", chunk_bytes=64, window=2):
        operations = []
        for i in range(300):
            if i % 100 == 30 * ours.rank:
                time.sleep(0.05)
            operations.append(Operation(ours, n=3 + i % 50, factor=i % 7 + 1))
    for operation in operations[::-1]:
        operation.request.Wait()
    assert all(operation.right() for operation in operations)


def test_buffers_live_as_long_as_they_are_needed(ours):
    """The caller drops send buffer and request; what is left behind must not be reused."""
    kept = []
    for i in range(6):
        got = np.zeros(2_000)
        kept.append((got, ours.Iallreduce(np.full(2_000, float(i + ours.rank)), got)))
        if i % 3 == 0:
            gc.collect()
        kept.append((np.full(2_000, -5.0), None))       # would land in the freed memory
    for i, (got, request) in enumerate(kept[::2]):
        request.Wait()
        assert (got == ours.size * i + ours.size * (ours.size - 1) / 2).all()


def test_lower_case_wait_and_test(ours):
    operation = Operation(ours)
    assert operation.request.wait() is None
    assert operation.right()
    operation = Operation(ours)
    while not (outcome := operation.request.test())[0]:
        pass
    assert outcome == (True, None)
    assert operation.right()


# -- while no thread calls mpicoll

need_thread = pytest.mark.skipif(not THREADED, reason="needs MPI_THREAD_MULTIPLE")


@need_thread
@pytest.mark.mpi(min_size=2)
@parametrize("n", [1, 20_000])
def test_a_program_that_needs_asynchronous_progress(threaded, n):
    """Rank 0 waits for a message that comes when another rank's Iallreduce is complete."""
    operation, word = Operation(threaded, n), np.zeros(1)
    if threaded.rank == 0:
        for source in range(1, threaded.size):
            threaded.Recv(word, source, 9)
        operation.request.Wait()
    else:
        operation.request.Wait()
        threaded.Send(word, 0, 9)
    assert operation.right()


@need_thread
def test_progress_while_the_program_computes(threaded):
    """Operations complete though no rank calls MPI."""
    operations = several(threaded, 4)
    time.sleep(0.5)
    until = time.monotonic() + 10
    while not all(is_ended(f.request) for f in operations) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(is_ended(f.request) for f in operations)
    for operation in operations:
        operation.request.Wait()
    assert all(operation.right() for operation in operations)


@need_thread
@pytest.mark.mpi(min_size=2)
@parametrize("engine", ["compiled"], indirect=True)
@parametrize("other", [lambda comm: comm.allreduce(1), lambda comm: MPI.Intracomm.Split(comm).Free()])
def test_it_goes_on_while_the_program_holds_pythons_lock(threaded, other):
    """mpi4py holds it in calls that make a communicator, the first reduction of objects among them."""
    fresh, x, y = threaded.Dup(), np.full(200_000, threaded.rank + 1.0), np.zeros(200_000)
    if threaded.rank == 0:
        time.sleep(0.1)   # all others are in Wait by then
    request = threaded.Iallreduce(x, y)
    if threaded.rank == 0:
        other(fresh)
        request.Wait()
    else:
        request.Wait()
        other(fresh)
    assert (y == threaded.size * (threaded.size + 1) / 2).all()
    fresh.Free()


@need_thread
@pytest.mark.mpi(min_size=2)
def test_the_thread_sleeps_and_is_woken(threaded):
    """Some time after the last call is over, and whenever there is another, at once or a while later."""
    thread = progress.THREAD
    for rest in (0.0, 0.5e-9 * driver.LINGER, 4e-9 * driver.LINGER):
        time.sleep(rest)
        operation = Operation(threaded, 20_000)
        MPI.Request.Waitall([operation.request])   # which advances nothing of ours
        assert operation.right()
    until = time.monotonic() + 10
    while not (thread.asleep and driver_sleeps()) and time.monotonic() < until:
        time.sleep(0.01)
    assert thread.asleep and driver_sleeps() and not thread.queues and not thread.waiters


def driver_sleeps():
    return progress.THREAD.driver is None or progress.THREAD.control[table.SLEEP] == table.ASLEEP


@need_thread
@pytest.mark.mpi(min_size=2)
def test_the_thread_is_out_of_the_way_while_somebody_waits(threaded, monkeypatch):
    """A thread that waits advances everything; without one, the progress threads do."""
    in_python = []
    monkeypatch.setattr(progress.THREAD, "_pass", lambda: in_python.append(1))    # of a thread that does nothing

    def passes():
        return len(in_python) + progress.THREAD.control.item(table.PASSES)

    if threaded.rank:
        time.sleep(0.5)
    before = passes()
    operation = Operation(threaded, 100)
    if threaded.rank == 0:
        time.sleep(0.1)
        assert passes() > before
    before = passes()     # where this rank came late, of what was in flight on other communicators too
    operation.request.Wait()       # rank 0 for 0.4 s, in which there is time for thousands
    assert passes() - before < 80
    monkeypatch.undo()
    assert operation.right() and not progress.THREAD.waiters


# -- errors


def alarm(*arguments):
    raise TimeoutError


@pytest.mark.mpi(min_size=2)
@parametrize(("handler", "error"), [(signal.default_int_handler, KeyboardInterrupt), (alarm, TimeoutError)])
def test_ctrl_c_ends_nothing_but_the_wait(ours, handler, error):
    """Raise the signal handler's error in the caller; the call stays in flight, and Wait works again."""
    if ours.rank:
        time.sleep(0.5)
    operations = several(ours, 6)
    if ours.rank == 0:
        before = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with pytest.raises(error):
                operations[3].request.Wait()
        finally:
            signal.signal(signal.SIGALRM, before)
    for operation in operations:
        operation.request.Wait()
    assert all(operation.right() for operation in operations)


def test_bad_arguments_raise_at_once(ours):
    with pytest.raises(CountMismatch):
        ours.Iallreduce(np.zeros(3), np.zeros(4))
    with ours.using(allreduce="ring"), ops.user_op(ops.AFFINE) as op, pytest.raises(PreconditionError):
        ours.Iallreduce(ops.maps(3, ours.rank), np.zeros(3, np.int64), op)
    operation = Operation(ours)
    operation.request.Wait()
    assert operation.right()


class Broken(Exception):
    pass


def break_off(*arguments):
    raise Broken("on the way")


@parametrize("how", ["Wait", "Test"])
def test_an_error_on_the_way_surfaces_when_it_completes(ours, monkeypatch, how):
    """Raise an error of an operation's last stage in Wait; the next call works."""
    with monkeypatch.context() as patch, ours.trace():
        patch.setattr("mpicoll.diagnostics.sinks.Sinks.append", break_off)
        second = ours.Iallreduce(np.zeros(3), np.zeros(3))
        until = time.monotonic() + 20
        while not second._operation.done and time.monotonic() < until:
            ours._state.queue.poll()
    third = Operation(ours)
    with pytest.raises(Broken, match="on the way"):
        complete(second, how)
    assert second == MPI.REQUEST_NULL
    third.request.Wait()
    assert third.right()
