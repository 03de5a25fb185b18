"""Requests of every collective, nonblocking and persistent, as MPI's own: alone, in lists, and misused."""

from __future__ import annotations

import copy
import gc
import pickle
import time
import weakref
from itertools import product

import numpy as np
import pytest
from mpi4py import MPI
from support import ops, vectors
from support.calls import complete, works
from support.cases import Case, Checks
from support.collectives import AVERAGED_METHODS, EQUAL_METHODS

import mpicoll
from mpicoll.errors import CommError, RequestError
from mpicoll.runtime import duplicate
from mpicoll.runtime.comm_state import CommState
from mpicoll.schedules.collectives import COLLECTIVES, FORMS, NONBLOCKING, PERSISTENT

parametrize = pytest.mark.parametrize
THREADED = MPI.Query_thread() == MPI.THREAD_MULTIPLE
need_thread = pytest.mark.skipif(not THREADED, reason="needs MPI_THREAD_MULTIPLE")


@pytest.fixture(params=[NONBLOCKING, PERSISTENT])
def form(request):
    return request.param


@pytest.fixture
def ours(comm, engine):
    wrapped = mpicoll.Comm(comm)
    with wrapped.using(engine=engine):
        yield wrapped


@pytest.fixture
def alone(comm, engine, monkeypatch):
    """Yield a Comm that no progress thread serves."""
    monkeypatch.setenv("MPICOLL_PROGRESS", "0")
    wrapped = mpicoll.Comm(comm)
    with wrapped.using(engine=engine):
        yield wrapped


class Exchange:
    """A plain message to the next rank, by requests of MPI's own, and what must arrive."""

    def __init__(self, comm, form, tag=1):
        p, rank = comm.size, comm.rank
        self.got, self.source = np.full(3, -1.0), (rank - 1) % p
        if form == NONBLOCKING:
            receive, send = comm.Irecv, comm.Isend
        else:
            receive, send = comm.Recv_init, comm.Send_init
        self.requests = [receive(self.got, self.source, tag), send(np.full(3, float(rank)), (rank + 1) % p, tag)]

    @property
    def difference(self):
        return "" if (self.got == self.source).all() else f"the message: {self.got}"


class Mixed:
    """Two requests of every method of ours between plain ones, under way."""

    def __init__(self, comm, form):
        self.form, self.calls = form, vectors.prepare_all(comm) + vectors.prepare_all(comm, 300)
        self.plain = [Exchange(comm, form, tag) for tag in (1, 2)]
        ours = [call.start(comm, form) for call in self.calls]
        (first, second), (third, fourth) = (exchange.requests for exchange in self.plain)
        self.requests = [first, *ours[:7], second, third, *ours[7:], fourth]
        if form == PERSISTENT:
            mpicoll.Prequest.Startall(self.requests)

    def check(self):
        """Check that all messages arrived, and that each request is as MPI leaves it after completion."""
        with Checks() as checks:
            for call in self.calls:
                checks.call(call)
            for exchange in self.plain:
                checks.that(not exchange.difference, exchange.difference)
            for request in self.requests:
                checks.equal(request == MPI.REQUEST_NULL, self.form == NONBLOCKING, request)
        if self.form == PERSISTENT:
            for request in self.requests:
                request.Free()


def all_tested(of, requests):
    while not of.Testall(requests):
        time.sleep(0)


def completed_singly(complete_next):
    """Return a function that completes requests by a call that names one at a time, until it names none."""

    def complete(of, requests):
        done = []
        while len(done) < len(requests):
            index, flag = complete_next(of, requests)
            if flag:
                done.append(index)
        assert sorted(done) == list(range(len(requests)))
        assert complete_next(of, requests) == (MPI.UNDEFINED, True)

    return complete


def some_by(name):
    """Return a function that completes requests by a call that names several at a time."""

    def complete(of, requests):
        done = []
        while len(done) < len(requests):
            done += getattr(of, name)(requests)
        assert sorted(done) == list(range(len(requests)))
        assert getattr(of, name)(requests) is None

    return complete


WAYS = {
    "Waitall": lambda of, requests: of.Waitall(requests),
    "Waitall with statuses": lambda of, requests: of.Waitall(requests, [MPI.Status() for _ in requests]),
    "Testall": all_tested,
    "Waitany": completed_singly(lambda of, requests: (of.Waitany(requests), True)),
    "Testany": completed_singly(lambda of, requests: of.Testany(requests)),
    "Waitsome": some_by("Waitsome"),
    "Testsome": some_by("Testsome"),
    "Wait": lambda of, requests: [of.Wait(request) for request in requests],
    "Get_status": lambda of, requests: [ask(of, request) for request in requests],
}


def ask(of, request):
    """Poll Get_status until it returns true, then complete the request by Wait."""
    while not of.Get_status(request):
        time.sleep(0)
    request.Wait()


@need_thread
@parametrize("way", WAYS)
def test_every_collective_in_lists_of_mpis_own(ours, form, way):
    if MPI.get_vendor()[0] == "MPICH" and form == PERSISTENT and way in ("Waitany", "Testany"):
        return      # its own fails once all persistent requests are inactive
    mixed = Mixed(ours, form)
    WAYS[way](MPI.Request, mixed.requests)
    mixed.check()


@need_thread
def test_a_list_of_mpis_own_with_null_requests(ours, form):
    """Requests that are complete, or not started, are null: beside one under way, which takes its time."""
    p, last = ours.size, ours.rank == ours.size - 1
    for order in ("first", "last", "both"):
        done, _ = started(ours, form)
        done.Wait()
        time.sleep(0.02 * last)
        request, got = started(ours, form)
        MPI.Request.Waitall([done] * (order != "last") + [request] + [done] * (order != "first"))
        assert (got == p).all()


def _until(look):
    """Return the messages that a lower-case function returns, until none is left."""
    messages = []
    while (received := look()) is not None:
        messages.extend(received)
    return messages


def _any(index, flag, message):
    return None if flag and index == MPI.UNDEFINED else [message] * flag


LOWER = {
    "waitall": lambda requests: mpicoll.Request.waitall(requests),
    "testall": lambda requests: next(values for flag, values in iter(lambda: mpicoll.Request.testall(requests), None)
                                     if flag),
    "waitany": lambda requests: [mpicoll.Request.waitany(requests)[1] for _ in requests],
    "testany": lambda requests: _until(lambda: _any(*mpicoll.Request.testany(requests))),
    "waitsome": lambda requests: _until(lambda: mpicoll.Request.waitsome(requests)[1]),
    "testsome": lambda requests: _until(lambda: mpicoll.Request.testsome(requests)[1]),
}


@parametrize("way", LOWER)
def test_lists_with_requests_of_objects(alone, way):
    """Lower-case functions, which return what was sent, need no thread either."""
    p, rank = alone.size, alone.rank
    request, got = started(alone, NONBLOCKING)
    receiving = alone.irecv(source=(rank - 1) % p, tag=3)
    messages = LOWER[way]([request, receiving, alone.isend(("from", rank), (rank + 1) % p, 3)])
    assert [message for message in messages if message is not None] == [("from", (rank - 1) % p)]
    assert (got == p).all() and request == MPI.REQUEST_NULL


@parametrize("way", [way for way in WAYS if way not in ("Wait", "Get_status")])
def test_every_collective_in_lists_without_the_thread(alone, form, way):
    mixed = Mixed(alone, form)
    WAYS[way](mpicoll.Request if form == NONBLOCKING else mpicoll.Prequest, mixed.requests)
    mixed.check()


def test_every_collective_by_itself(alone, form):
    """Their own Wait, Test and Get_status need no thread, in any order and on ranks that differ in it."""
    mixed = Mixed(alone, form)
    for turn, i in enumerate(np.random.default_rng(alone.rank).permutation(len(mixed.requests))):
        request = mixed.requests[i]
        if turn % 3 == 0 and isinstance(request, mpicoll.Request | mpicoll.Prequest):
            while not request.Get_status():
                pass
        if turn % 3 == 1:
            while not request.Test():
                mpicoll.Request.Testall([])
        request.Wait()
    mixed.check()


# -- what a request is


def started(comm, form, n=5):
    """Return an allreduce in flight: (request, the expected result)."""
    got = np.full(n, -1.0)
    if form == NONBLOCKING:
        return comm.Iallreduce(np.ones(n), got), got
    request = comm.Allreduce_init(np.ones(n), got)
    request.Start()
    return request, got


def describe(status):
    return status.source, status.tag, status.error, status.Is_cancelled()


def test_statuses(ours, form):
    """No source, no tag, no data, no error, by every call; an inactive request gives an empty status, as MPI's do."""
    empty = (MPI.ANY_SOURCE, MPI.ANY_TAG, MPI.SUCCESS, False)
    for ended in (lambda r, s: r.Wait(s), lambda r, s: mpicoll.Request.Waitall([r], [s]),
                  lambda r, s: mpicoll.Request.Waitany([r], s)):
        request, _ = started(ours, form)
        for _ in range(2):
            status = MPI.Status()
            status.source = status.tag = 7
            ended(request, status)
            assert describe(status) == empty and status.Get_count(MPI.BYTE) == status.Get_elements(MPI.BYTE) == 0
        request.Free() if form == PERSISTENT else None


def test_a_request_is_what_mpis_own_is(ours, form):
    native = ours.Irecv(np.zeros(1), ours.rank)
    request, got = started(ours, form)
    assert isinstance(request, MPI.Prequest if form == PERSISTENT else MPI.Request)
    assert isinstance(request, mpicoll.Prequest if form == PERSISTENT else mpicoll.Request)
    assert request and request != MPI.REQUEST_NULL and request == request and request != native
    assert MPI.Request(request) == request and type(request).__name__ in repr(request)
    for each_request in (native, request):
        with pytest.raises(TypeError):
            hash(each_request)
        for serialize in (pickle.dumps, copy.copy):
            with pytest.raises(ValueError, match="cannot serialize"):
                serialize(each_request)
    assert request.Wait() is True and (got == ours.size).all()
    assert request.Wait() is True and request.Test() is True and request.Get_status() is True
    assert bool(request) == (form == PERSISTENT) and (request == MPI.REQUEST_NULL) == (form == NONBLOCKING)
    if form == PERSISTENT:
        request.Free()
    assert not request and request == MPI.REQUEST_NULL and request.Wait() is True
    ours.Send(np.zeros(1), ours.rank)
    native.Wait()


def misused(call, words):
    """Check that a misuse is refused in these words, with MPI's class for it."""
    with pytest.raises(RequestError) as caught:
        call()
    assert isinstance(caught.value, MPI.Exception) and caught.value.Get_error_class() == MPI.ERR_REQUEST
    assert all(word in str(caught.value) for word in words.split()), str(caught.value)


def test_misuse(ours, form):
    request, got = started(ours, form, 2_000)
    misused(request.Cancel, "cannot be cancelled Wait")
    misused(request.cancel, "cannot be cancelled Wait")
    if form == NONBLOCKING:
        misused(request.Free, "in flight cannot be freed Wait")
        request.Wait()
        misused(request.Free, "complete nothing to free")
    else:
        misused(request.Start, "in flight wait")
        misused(lambda: mpicoll.Prequest.Startall([request]), "in flight wait")
        request.Free()          # while it is under way: completes it
        assert (got == ours.size).all()
        request.Free()
        misused(request.Start, "freed make another")
    misused(request.Cancel, "cannot be cancelled")
    works(ours)


def test_buffers_live_as_long_as_requests_of_mpis_own(comm, form):
    """mpi4py itself keeps none of a reduction's; MPI would read memory that has another owner by now."""
    ours = mpicoll.Comm(comm)
    with ours.using(**dict.fromkeys(COLLECTIVES, "native")), Checks() as checks:
        for method in EQUAL_METHODS:
            call = vectors.prepare(method, ours)
            arrays = [weakref.ref(memory) for memory in (call.sent, call.received) if memory is not None]
            request = call.start(ours, form)
            del call
            checks.that(all(array() is not None for array in arrays), method, "in flight")
            complete(request)
            del request
            checks.that(all(array() is None for array in arrays), method, "complete")


# -- persistent


def test_each_start_sends_the_buffers_content(ours):
    """And which algorithm serves is what was in force when the request was made."""
    p = ours.size
    send, got, other, moved = np.zeros(6), np.zeros(6), np.zeros(2), np.zeros(2)
    with ours.using(allreduce="naive", bcast="chain", chunk_bytes=16):
        total, broadcast = ours.Allreduce_init(send, got), ours.Bcast_init(other, p - 1)
    with ours.using(allreduce="ring", bcast="linear"), ours.trace() as records:
        for i in range(4):
            send[:], other[:] = i + ours.rank, i * 10 + ours.rank
            pair = [total, broadcast] if (i + ours.rank) % 2 else [broadcast, total]  # in different orders on the ranks
            mpicoll.Prequest.Startall(pair)
            mpicoll.Prequest.Waitall(pair)
            moved[:] = i * 10 + p - 1
            assert (got == p * i + p * (p - 1) / 2).all() and np.array_equal(other, moved)
    assert sorted({(r.algorithm, r.form, r.chunk_bytes) for r in records}) == [
        ("chain", PERSISTENT, 16), ("naive", PERSISTENT, 16)]
    total.Free(), broadcast.Free()


@parametrize("complete", [
    lambda request: mpicoll.Request.Waitall([request]),
    lambda request: request.Wait(MPI.Status()),
])
def test_nothing_is_written_after_free(ours, complete):
    """Its tables are gone, and their memory has another owner."""
    for i in range(20):
        request, got = started(ours, PERSISTENT)
        complete(request)
        request.Free()
        others = [np.full(n, -1, np.int64) for n in range(1, 40)]
        assert request.Wait() is True and (got == ours.size).all()
        assert all((other == -1).all() for other in others), i
        with pytest.raises(RequestError):
            request.Start()


def test_operations_progress_while_the_first_request_is_created(alone):
    """It takes a communicator for its tags, which all ranks make together; one of them waits for another before."""
    n = 1 << 17
    got = np.full(n, -1.0)
    with alone.using(allreduce="ring", chunk_bytes=1 << 14):
        first = alone.Iallreduce(np.ones(n), got)
    if alone.rank:
        first.Wait()
    request, total = started(alone, PERSISTENT)
    request.Wait()
    first.Wait()
    request.Free()
    assert (got == alone.size).all() and (total == alone.size).all()


@pytest.mark.mpi(min_size=2)
def test_a_communicator_for_tags_is_begun_when_every_rank_is_there(ours, comm, monkeypatch):
    """Begin the duplicate only when all ranks are there, so that an interrupt before leaves no rank in it."""
    begun, real = [], duplicate.Duplicate

    def begin(comm):
        begun.append(time.monotonic())     # one clock for all ranks of a host
        return real(comm)

    monkeypatch.setattr(duplicate, "Duplicate", begin)
    comm.Barrier()
    if comm.rank == comm.size - 1:
        time.sleep(0.2)
    came = time.monotonic()
    request, _ = started(ours, PERSISTENT)
    request.Wait()
    request.Free()
    assert len(begun) == 1
    assert comm.allreduce(begun[0], MPI.MIN) >= comm.allreduce(came, MPI.MAX)


def test_buffers_of_a_request_that_is_dropped_go_with_it(ours):
    send, got = np.ones(3), np.zeros(3)
    arrays = [weakref.ref(send), weakref.ref(got)]
    request = ours.Allreduce_init(send, got)
    request.Start()
    request.Wait()
    del request, send, got
    gc.collect()
    assert [array() for array in arrays] == [None, None]


def test_garbage_that_is_found_while_mpi_frees_a_communicator(ours, comm, form, monkeypatch):
    """MPICH holds a lock there that MPI_Request_free takes. Whatever is found calls no MPI before MPI has returned."""
    collected, close = [], CommState.close

    def closing(state):
        collected.append(gc.collect())
        close(state)

    monkeypatch.setattr(CommState, "close", closing)
    gc.freeze()     # what earlier tests left, so that collecting takes no time
    for _ in range(3):
        plain, cycle, other = MPI.Intracomm(comm.Dup()), [], ours.Dup()
        with mpicoll.Comm(plain).using(bcast="native"):
            last = mpicoll.Comm(plain).Bcast_init(np.ones(3))   # keeps the communicator as long as it is there
        last.Start(), last.Wait()
        gc.collect()
        cycle += [cycle, started(other, form)]
        del cycle
        plain.Free(), last.Free()
        works(ours)
        other.Free()
    assert any(collected)


def test_more_alive_at_once_than_there_are_tags(ours):
    """All under way together, freed in another order on every rank, and taken again."""
    for number in (300, 40):
        buffers = [np.zeros(3) for _ in range(number)]
        requests = [ours.Allreduce_init(np.full(3, float(i)), buffer) for i, buffer in enumerate(buffers)]
        mpicoll.Prequest.Startall(requests[:: 1 if ours.rank % 2 else -1])
        mpicoll.Prequest.Waitall(requests)
        assert all((buffer == i * ours.size).all() for i, buffer in enumerate(buffers))
        for i in np.random.default_rng(ours.rank).permutation(number):
            requests[i].Free()
    assert len(ours._state.tag_pool.comms) <= 3


def test_dropped_while_in_flight(ours, form):
    """It completes all the same, and its tags are not given out before."""
    got = started(ours, form, 3_000)[1]
    gc.collect()
    works(ours)
    until = time.monotonic() + 20
    while not (got == ours.size).all() and time.monotonic() < until:
        ours._state.queue.poll()
    assert (got == ours.size).all()
    works(ours)


def test_inactive_when_its_communicator_goes(ours):
    other = ours.Dup()
    request = other.Allreduce_init(np.ones(3), np.zeros(3))
    complete(request)
    other.Free()
    with pytest.raises(CommError, match="freed") as caught:
        request.Start()
    assert caught.value.Get_error_class() == MPI.ERR_COMM
    assert request.Wait() is True
    request.Free()
    works(ours)


def test_types_freed_before_the_end(ours, form):
    """As MPI has it: they go once nothing uses them. (An operator may not: mpi4py forgets its function.)"""
    product_of_all = ops.combined("PRODUCT", [ops.matrices(2_000, rank) for rank in range(ours.size)])
    send, got = ops.matrices(2_000, ours.rank), [np.zeros(8_000, np.int64) for _ in range(4)]
    begin = ours.Allreduce_init if form == PERSISTENT else ours.Iallreduce
    with ops.user_op(ops.PRODUCT) as op:
        with ops.matrix_type() as datatype:
            requests = [begin([send, datatype], [each_got, datatype], op) for each_got in got]
        for _ in range(1 + (form == PERSISTENT)):
            if form == PERSISTENT:
                for each_got in got:
                    each_got[:] = 0
                mpicoll.Prequest.Startall(requests)
            mpicoll.Request.Waitall(requests)
            assert all(np.array_equal(each_got, product_of_all) for each_got in got)
        for request in requests if form == PERSISTENT else ():
            request.Free()


def test_averages_in_every_method_and_form(ours):
    """Sums, divided by the number of ranks, of every method that can be asked for one."""
    with Checks() as checks:
        for name, form in product(AVERAGED_METHODS, FORMS):
            call = Case(name, op="AVG").prepare(ours)
            call.run(ours, form)
            checks.call(call, form)


def test_mpis_own_startall_does_not_start_ours(ours):
    """It sees an inactive handle; mpicoll's takes both."""
    exchange = Exchange(ours, PERSISTENT)
    requests = [ours.Barrier_init(), *exchange.requests]
    for start in (MPI.Prequest.Startall, lambda ours: MPI.Prequest.Start(ours[0])):
        with pytest.raises(MPI.Exception) as caught:
            start(requests[:1])
        assert caught.value.Get_error_class() == MPI.ERR_REQUEST
    mpicoll.Prequest.Startall(requests)
    mpicoll.Prequest.Waitall(requests)
    assert not exchange.difference
    for request in requests:
        request.Free()


@pytest.mark.mpi(min_size=2)
def test_memory_in_flight_cannot_be_resized(comm, ours, form):
    """Rank 0 is alone in the call when it tries."""
    array, memory = np.zeros(4), bytearray(32)
    begin = ours.Allreduce_init if form == PERSISTENT else ours.Iallreduce
    calls = [(np.ones(4), array), ([bytes(32), "d"], [memory, "d"])]
    requests = [begin(*call) for call in calls] if form == PERSISTENT else []
    comm.Barrier() if comm.rank else None
    requests = requests or [begin(*call) for call in calls]
    mpicoll.Prequest.Startall(requests if form == PERSISTENT else [])
    if comm.rank == 0:
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize(1_000)
        with pytest.raises(BufferError, match="re-sized"):
            memory.extend(b"more")
        comm.Barrier()
    mpicoll.Request.Waitall(requests)
    assert (array == comm.size).all()


@pytest.mark.parametrize("started", [False, True])
def test_tags_of_a_freed_request_are_given_back(comm, started):
    ours = mpicoll.Comm(comm)
    for _ in range(3):
        request = ours.Allreduce_init(np.ones(5), np.zeros(5))
        taken = sum(int(used.sum()) for used in ours._state.tag_pool.used)
        if started:
            complete(request)
        request.Free()
        assert taken == 1 and not any(used.any() for used in ours._state.tag_pool.used)
