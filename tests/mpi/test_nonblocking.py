"""Iallreduce: many in flight, completed in any order, with and without the progress thread."""

from __future__ import annotations

import gc
import time

import mpi_cases as cases
import mpi_ops as ops
import numpy as np
import pytest
from mpi4py import MPI
from mpi_cases import Checks

import mpicoll
from mpicoll.errors import CountMismatch, PreconditionError

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


class Flight:
    """An Iallreduce under way, of which the result is known."""

    def __init__(self, comm, n=5, factor=1):
        self.rank, self.p, self.n, self.factor = comm.rank, comm.size, n, factor
        self.send, self.got = cases.data(n, comm.rank) * factor, np.full(n, -1.0)
        self.request = comm.Iallreduce(self.send, self.got)

    def right(self):
        want = sum(cases.data(self.n, rank) for rank in range(self.p)) * self.factor
        return np.array_equal(self.got, want) and self.request == MPI.REQUEST_NULL


def several(comm, number):
    """Flights of many sizes, on their way."""
    return [Flight(comm, n=1 + 37 * (i % 5) + 9_000 * (i % 4 == 3), factor=i + 1) for i in range(number)]


def test_one(ours):
    flight = Flight(ours)
    assert isinstance(flight.request, mpicoll.Request) and isinstance(flight.request, MPI.Request)
    assert flight.request.Wait() is True
    assert flight.right()
    assert flight.request.Wait() is True        # of a null request


@each("spec", ALGORITHMS)
def test_every_algorithm(ours, engine, spec):
    with Checks() as checks, ours.using(allreduce=spec), ours.trace() as records:
        for n in (0, 1, 2 * ours.size + 1, 3_000):
            flight = Flight(ours, n)
            flight.request.Wait()
            checks.that(flight.right(), n, flight.got)
    assert [(r.algorithm, r.engine) for r in records] == [(spec, engine)] * 4
    assert all(r.messages > 0 for r in records[1:]) or ours.size == 1


@each("number", [2, 12])
@each("order", [1, -1], ids=["forwards", "backwards"])
def test_waiting_in_either_order(ours, number, order):
    flights = several(ours, number)
    for flight in flights[::order]:
        flight.request.Wait()
    assert all(flight.right() for flight in flights)


@each("order", [1, -1], ids=["forwards", "backwards"])
def test_testing_in_either_order(ours, order):
    flights = several(ours, 12)
    for flight in flights[::order]:
        while not flight.request.Test():
            pass
    assert all(flight.right() for flight in flights)


def test_ranks_complete_in_different_orders(ours):
    flights = several(ours, 8)
    for i in np.random.default_rng(ours.rank).permutation(8):
        flights[i].request.Wait()
    assert all(flight.right() for flight in flights)


def test_blocking_collectives_in_between(ours):
    flights = several(ours, 3)
    total = np.zeros(4)
    ours.Allreduce(np.full(4, 1.0), total)
    ours.Barrier()
    flights += several(ours, 2)
    ours.Bcast(total, ours.size - 1)
    for flight in flights:
        flight.request.Wait()
    assert all(flight.right() for flight in flights) and (total == ours.size).all()


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
    flight = Flight(ours, n=20_000)
    if ours.rank == 0:
        OTHERS[what](ours)
        flight.request.Wait()
    else:
        flight.request.Wait()
        OTHERS[what](ours)
    assert flight.right()


def test_more_in_flight_than_there_are_tags(ours):
    """Of different lengths, in several steps each, on ranks that are not in step: a mix-up would show."""
    with ours.using(allreduce="ring", chunk_bytes=64, window=2):
        flights = []
        for i in range(300):
            if i % 100 == 30 * ours.rank:
                time.sleep(0.05)
            flights.append(Flight(ours, n=3 + i % 50, factor=i % 7 + 1))
    for flight in flights[::-1]:
        flight.request.Wait()
    assert all(flight.right() for flight in flights)


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


def test_status(ours):
    status = MPI.Status()
    Flight(ours).request.Wait(status)
    assert status.Get_error() == MPI.SUCCESS and not status.Is_cancelled()
    flight, status = Flight(ours), MPI.Status()
    while not flight.request.Test(status):
        pass
    assert flight.right() and not status.Is_cancelled()


def test_lower_case_wait_and_test(ours):
    flight = Flight(ours)
    flight.request.wait()
    assert flight.right()
    flight = Flight(ours)
    while not flight.request.test():
        pass
    assert flight.right()


# -- with MPI's own completion calls, for which somebody else must make progress

need_thread = pytest.mark.skipif(not THREADED, reason="needs MPI_THREAD_MULTIPLE")


def exchange(comm, tag):
    """A native receive and send with the neighbours: (requests, what arrives, what should)."""
    p, rank = comm.size, comm.rank
    got, sent = np.full(3, -1.0), np.full(3, float(rank))
    requests = [comm.Irecv(got, (rank - 1) % p, tag), comm.Isend(sent, (rank + 1) % p, tag)]
    return requests, got, (rank - 1) % p


def mixed(comm):
    """Requests of ours between native ones, and what tells whether all came out right."""
    first, got, source = exchange(comm, 1)
    flights = several(comm, 4)
    second, other, _ = exchange(comm, 2)
    requests = [flights[0].request, *first, flights[1].request, flights[2].request, *second, flights[3].request]

    def right():
        plain = all((g == source).all() for g in (got, other))
        totals = [sum(cases.data(f.n, r) for r in range(f.p)) * f.factor for f in flights]
        return plain and all(np.array_equal(f.got, t) for f, t in zip(flights, totals))

    return requests, right


@need_thread
def test_native_waitall_on_a_mixed_list(threaded):
    requests, right = mixed(threaded)
    MPI.Request.Waitall(requests)
    assert right() and all(r == MPI.REQUEST_NULL for r in requests)


@need_thread
def test_native_testall_on_a_mixed_list(threaded):
    requests, right = mixed(threaded)
    while not MPI.Request.Testall(requests):
        time.sleep(0)
    assert right()


@need_thread
def test_native_waitany_on_a_mixed_list(threaded):
    requests, right = mixed(threaded)
    done = [MPI.Request.Waitany(requests) for _ in requests]
    assert sorted(done) == list(range(len(requests))) and right()
    assert MPI.Request.Waitany(requests) == MPI.UNDEFINED


@need_thread
def test_native_waitsome_on_a_mixed_list(threaded):
    requests, right = mixed(threaded)
    done = []
    while len(done) < len(requests):
        done += MPI.Request.Waitsome(requests)
    assert sorted(done) == list(range(len(requests))) and right()


@need_thread
def test_native_wait_on_one(threaded):
    """Through the base class, as a list of one kind of request would."""
    flight = Flight(threaded)
    MPI.Request.Wait(flight.request)
    assert flight.right()
    flight = Flight(threaded)
    while not MPI.Request.Test(flight.request):
        time.sleep(0)
    assert flight.right()


@need_thread
@pytest.mark.mpi(min_size=2)
@each("n", [1, 20_000])
def test_a_program_that_needs_asynchronous_progress(threaded, n):
    """Rank 0 waits for a message that comes when another rank's Iallreduce is complete."""
    flight, word = Flight(threaded, n), np.zeros(1)
    if threaded.rank == 0:
        for source in range(1, threaded.size):
            threaded.Recv(word, source, 9)
        flight.request.Wait()
    else:
        flight.request.Wait()
        threaded.Send(word, 0, 9)
    assert flight.right()


@need_thread
def test_progress_while_the_program_computes(threaded):
    """Nobody calls MPI, and yet all is there."""
    flights = several(threaded, 4)
    time.sleep(0.5)
    until = time.monotonic() + 10
    while not all(f.request._flight.done for f in flights) and time.monotonic() < until:
        time.sleep(0.01)
    assert all(f.request._flight.done for f in flights)
    for flight in flights:
        flight.request.Wait()
    assert all(flight.right() for flight in flights)


@need_thread
def test_on_two_communicators(threaded, engine):
    other = threaded.Dup()
    with other.using(engine=engine):
        flights = [Flight(c, n=100 * i + 1) for i in range(6) for c in (threaded, other)]
    MPI.Request.Waitall([f.request for f in flights])
    for flight in flights:
        flight.request.Wait()
    assert all((f.got == sum(cases.data(f.n, r) for r in range(f.p))).all() for f in flights)
    other.Free()


# -- errors


def test_bad_arguments_raise_at_once(ours):
    with pytest.raises(CountMismatch):
        ours.Iallreduce(np.zeros(3), np.zeros(4))
    with ours.using(allreduce="ring"), ops.user_op(ops.AFFINE) as op, pytest.raises(PreconditionError):
        ours.Iallreduce(ops.maps(3, ours.rank), np.zeros(3, np.int64), op)
    flight = Flight(ours)
    flight.request.Wait()
    assert flight.right()


class Broken(Exception):
    pass


@each("how", ["Wait", "Test"])
def test_an_error_on_the_way_surfaces_when_it_completes(ours, monkeypatch, how):
    """What goes wrong at the end of a flight is told to whoever waits for it, and the next is as if nothing were."""
    with monkeypatch.context() as patch, ours.trace():
        patch.setattr("mpicoll.channel.Channel.record", fail)
        second = ours.Iallreduce(np.zeros(3), np.zeros(3))
        until = time.monotonic() + 20
        while not second._flight.done and time.monotonic() < until:
            ours._channel.poll()
    third = Flight(ours)
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
    flights = several(copy, 3)
    copy.Free()
    for flight in flights:
        flight.request.Wait()
    assert all(flight.right() for flight in flights)
