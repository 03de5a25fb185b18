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
from support import cases, ops
from support.cases import Checks

import mpicoll
from mpicoll.dispatch.methods import METHODS
from mpicoll.errors import CountMismatch, PreconditionError
from mpicoll.runtime import progress
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.collectives import plain as plain_name

ALGORITHMS = [name for collective, name in cases.specs() if collective == "allreduce"]
THREADED = MPI.Query_thread() == MPI.THREAD_MULTIPLE
each = pytest.mark.parametrize


@pytest.fixture(params=cases.ENGINES)
def engine(request):
    return request.param


@pytest.fixture(params=[True, False] if THREADED else [False], ids=lambda on: "thread" if on else "no-thread")
def ours(comm, engine, request, monkeypatch):
    """A Comm on one engine, with the progress thread and without."""
    monkeypatch.setenv("MPICOLL_PROGRESS", str(int(request.param)))
    made = mpicoll.Comm(comm)
    with made.using(engine=engine):
        yield made


@pytest.fixture
def threaded(comm, engine):
    """A Comm on one engine, with the progress thread."""
    made = mpicoll.Comm(comm)
    with made.using(engine=engine):
        yield made


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
    """Operations of many sizes, on their way."""
    return [Operation(comm, n=1 + 37 * (i % 5) + 9_000 * (i % 4 == 3), factor=i + 1) for i in range(number)]


def test_one(ours):
    operation = Operation(ours)
    assert isinstance(operation.request, mpicoll.Request) and isinstance(operation.request, MPI.Request)
    assert operation.request.Wait() is True
    assert operation.right()
    assert operation.request.Wait() is True        # of a null request


@pytest.mark.unsampled(max_size=4)
@each("spec", ALGORITHMS)
def test_every_algorithm(ours, engine, spec):
    with Checks() as checks, ours.using(allreduce=spec), ours.trace() as records:
        for n in (0, 1, 2 * ours.size + 1, 3_000):
            operation = Operation(ours, n)
            operation.request.Wait()
            checks.that(operation.right(), n, operation.got)
    assert [(r.algorithm, r.engine) for r in records] == [(spec, engine)] * 4
    assert all(r.messages > 0 for r in records[1:]) or ours.size == 1


@each("number", [2, 12])
@each("order", [1, -1], ids=["forwards", "backwards"])
def test_waiting_in_either_order(ours, number, order):
    operations = several(ours, number)
    for operation in operations[::order]:
        operation.request.Wait()
    assert all(operation.right() for operation in operations)


@each("order", [1, -1], ids=["forwards", "backwards"])
def test_testing_in_either_order(ours, order):
    operations = several(ours, 12)
    for operation in operations[::order]:
        while not operation.request.Test():
            pass
    assert all(operation.right() for operation in operations)


def test_ranks_complete_in_different_orders(ours):
    operations = several(ours, 8)
    for i in np.random.default_rng(ours.rank).permutation(8):
        operations[i].request.Wait()
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
@each("what", OTHERS)
def test_one_rank_waits_first_and_another_calls_first(ours, what):
    """A call of ours advances what is in flight: nobody waits for a rank that is in it already."""
    operation = Operation(ours, n=20_000)
    if ours.rank == 0:
        OTHERS[what](ours)
        operation.request.Wait()
    else:
        operation.request.Wait()
        OTHERS[what](ours)
    assert operation.right()


@pytest.mark.mpi(min_size=2)
@each("what", OTHERS)
def test_a_call_on_one_communicator_advances_another(ours, what):
    """Rank 0 is in a call on the second while the others wait for what is in flight on the first."""
    second, operation = ours.Dup(), Operation(ours, n=20_000)
    if ours.rank == 0:
        OTHERS[what](second)
        operation.request.Wait()
    else:
        operation.request.Wait()
        OTHERS[what](second)
    assert operation.right()
    second.Free()


STARTED = [method for method in METHODS.values() if method.name not in ("Reduce_scatter", "Alltoallw")]


def test_every_collective_in_flight_at_once(ours):
    """Each twice, waited for in another order on every rank; results as those of the blocking calls."""
    plain, wrong, in_flight = MPI.Intracomm(ours).Dup(), [], []
    for i, method in enumerate(STARTED * 2):
        got, arguments = buffers(method, ours, factor=i + 1)
        in_flight.append((method, got, arguments, getattr(ours, method.spelled("nonblocking"))(*arguments)))
    for i in np.random.default_rng(ours.rank).permutation(len(in_flight)):
        in_flight[i][3].Wait()
    for i, (method, got, _, request) in enumerate(in_flight):
        want, arguments = buffers(method, ours, factor=i + 1)
        getattr(plain, method.name)(*arguments)
        if request != MPI.REQUEST_NULL or not np.array_equal(got, want):
            wrong.append((method.name, got, want))
    plain.Free()
    assert not wrong


def buffers(method, comm, factor, n=300):
    """What is received, and arguments of doubles for a method, with the last rank as its root."""
    p, name = comm.size, method.collective
    meaning = COLLECTIVES[plain_name(name)]
    wide = n * p
    send = cases.data(wide if name in (*cases.WIDE_SEND, "scatterv", "alltoallv") else n, comm.rank) * factor
    got = np.zeros(wide if name in (*cases.WIDE_RECEIVE, "gatherv", "allgatherv", "alltoallv") else n)
    if name == "bcast":
        got = send
    sides = {"barrier": [], "bcast": [got]}.get(name, [send, got])
    return got, [*sides, *[MPI.SUM] * meaning.reduces, *[p - 1] * meaning.rooted]


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


def test_in_place(ours):
    got = cases.data(7, ours.rank)
    ours.Iallreduce(MPI.IN_PLACE, got).Wait()
    assert np.array_equal(got, sum(cases.data(7, rank) for rank in range(ours.size)))


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


def test_a_request_that_is_dropped_completes(ours):
    send, got = cases.data(2_000, ours.rank), np.zeros(2_000)
    ours.Iallreduce(send, got)
    gc.collect()
    until = time.monotonic() + 20
    while ours._channel.poll() and time.monotonic() < until:     # what any later call does
        pass
    want = sum(cases.data(2_000, rank) for rank in range(ours.size))
    assert np.array_equal(got, want)


def test_lower_case_wait_and_test(ours):
    operation = Operation(ours)
    assert operation.request.wait() is None
    assert operation.right()
    operation = Operation(ours)
    while not (found := operation.request.test())[0]:
        pass
    assert found == (True, None)
    assert operation.right()


# -- while nobody calls mpicoll

need_thread = pytest.mark.skipif(not THREADED, reason="needs MPI_THREAD_MULTIPLE")


@need_thread
@pytest.mark.mpi(min_size=2)
@each("n", [1, 20_000])
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
    """Nobody calls MPI, and yet all is there."""
    operations = several(threaded, 4)
    time.sleep(0.5)
    until = time.monotonic() + 10
    while not all(f.request._operation.done for f in operations) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(f.request._operation.done for f in operations)
    for operation in operations:
        operation.request.Wait()
    assert all(operation.right() for operation in operations)


@need_thread
def test_on_two_communicators(threaded, engine):
    other = threaded.Dup()
    with other.using(engine=engine):
        operations = [Operation(c, n=100 * i + 1) for i in range(6) for c in (threaded, other)]
    MPI.Request.Waitall([f.request for f in operations])
    for operation in operations:
        operation.request.Wait()
    assert all((f.got == sum(cases.data(f.n, r) for r in range(f.p))).all() for f in operations)
    other.Free()


@need_thread
@pytest.mark.mpi(min_size=2)
def test_the_thread_sleeps_and_is_woken(threaded):
    """Some time after the last call is over, and whenever there is another, at once or a while later."""
    thread = progress.THREAD
    for rest in (0.0, 0.5 * progress.LINGER, 10 * progress.LINGER):
        time.sleep(rest)
        operation = Operation(threaded, 20_000)
        MPI.Request.Waitall([operation.request])   # which advances nothing of ours
        assert operation.right()
    until = time.monotonic() + 10
    while not thread.asleep and time.monotonic() < until:
        time.sleep(0.01)
    assert thread.asleep and not thread.channels and not thread.waiters


@need_thread
@pytest.mark.mpi(min_size=2)
def test_the_thread_is_out_of_the_way_while_somebody_waits(threaded, monkeypatch):
    """Who waits advances everything; the thread goes on with it when he does not."""
    passes = []
    monkeypatch.setattr(progress.THREAD, "_pass", passes.append)    # of a thread that looks, and does nothing
    if threaded.rank:
        time.sleep(0.5)
    operation = Operation(threaded, 100)
    if threaded.rank == 0:
        time.sleep(0.1)
        assert passes
        passes.clear()
    operation.request.Wait()       # rank 0 for 0.4 s, in which there is time for thousands
    assert len(passes) < 20
    monkeypatch.undo()
    assert operation.right() and not progress.THREAD.waiters


# -- errors


def alarm(*arguments):
    raise TimeoutError


@pytest.mark.mpi(min_size=2)
@each(("handler", "error"), [(signal.default_int_handler, KeyboardInterrupt), (alarm, TimeoutError)])
def test_ctrl_c_ends_nothing_but_the_wait(ours, handler, error):
    """What a signal handler raises goes to the caller; what is in flight goes on, and can be waited for again."""
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


@each("how", ["Wait", "Test"])
def test_an_error_on_the_way_surfaces_when_it_completes(ours, monkeypatch, how):
    """What goes wrong at the end of an operation is told to whoever waits for it; the next is as if nothing were."""
    with monkeypatch.context() as patch, ours.trace():
        patch.setattr("mpicoll.runtime.channel.Channel.record", fail)
        second = ours.Iallreduce(np.zeros(3), np.zeros(3))
        until = time.monotonic() + 20
        while not second._operation.done and time.monotonic() < until:
            ours._channel.poll()
    third = Operation(ours)
    with pytest.raises(Broken, match="on the way"):
        complete(second, how)
    assert second == MPI.REQUEST_NULL
    third.request.Wait()
    assert third.right()


def fail(*arguments):
    raise Broken("on the way")


def complete(request, how):
    """Wait, or Test until it is done."""
    if how == "Wait":
        request.Wait()
    else:
        while not request.Test():
            pass


# -- what runs


def test_native_where_there_is_no_kernel(ours):
    got = np.zeros(3, "g")
    with ours.trace() as records:
        request = ours.Iallreduce(np.ones(3, "g"), got)
        request.Wait()
    assert [r.algorithm for r in records] == ["native"] and (got == ours.size).all()


def test_user_operator(ours):
    got = np.zeros(9, np.int64)
    with ops.user_op(ops.AFFINE) as op:
        ours.Iallreduce(ops.maps(9, ours.rank), got, op).Wait()
    assert np.array_equal(got, ops.composed(9, ours.size))


def test_a_datatype_may_be_freed_before_the_wait(ours):
    """As MPI has it: it goes once nothing uses it. (An operator may not: mpi4py forgets its function.)"""
    got = [np.zeros(8_000, np.int64) for _ in range(4)]
    with ops.user_op(ops.PRODUCT) as op:
        with ops.matrix_type() as datatype:
            send = ops.matrices(2_000, ours.rank)
            requests = [ours.Iallreduce([send, datatype], [each_got, datatype], op) for each_got in got]
        for request in requests:
            request.Wait()
    assert all(np.array_equal(each_got, ops.multiplied(2_000, ours.size)) for each_got in got)


def test_freeing_a_communicator_completes_what_is_in_flight(ours):
    copy = ours.Dup()
    operations = several(copy, 3)
    copy.Free()
    for operation in operations:
        operation.request.Wait()
    assert all(operation.right() for operation in operations)
