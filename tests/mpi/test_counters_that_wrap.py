"""Counters that start again (tags, numbers of calls, slots), past their end with one operation left standing."""

from __future__ import annotations

import numpy as np
import pytest
from mpi4py import MPI
from support.calls import is_ended

import mpicoll
from mpicoll.comm import proxies
from mpicoll.errors import CommError, MessageLengthError
from mpicoll.plans.plan import SEQUENCES

LATE = 1  # the rank that joins last
several = pytest.mark.mpi(min_size=2)


@pytest.fixture
def ours(comm, engine):
    wrapped = mpicoll.Comm(comm)
    with wrapped.using(engine=engine):
        yield wrapped


class Standing:
    """An Iallreduce that one rank joins only when it is let."""

    def __init__(self, comm):
        self.comm, self.x, self.y = comm, np.full(5, comm.rank + 1.0), np.zeros(5)
        self.request = None if comm.rank == LATE else self._begin()

    def _begin(self):
        return self.comm.Iallreduce(self.x, self.y)

    @property
    def is_complete(self):
        """Tell whether the request is complete, by MPI's own Get_status."""
        return self.request is not None and MPI.Request.Get_status(self.request)

    def end(self, plain):
        """Return whether the sum is right and was complete on no rank before all ranks had joined."""
        early = plain.allgather(self.is_complete)
        if self.request is None:
            self.request = self._begin()
        mpicoll.Request.Waitall([self.request])
        p = self.comm.size
        return early == [False] * p and (self.y == p * (p + 1) / 2).all()


@several
def test_a_request_stands_while_others_use_every_tag(comm, monkeypatch):
    monkeypatch.setattr(proxies, "_TAGS_PER_COMM", 64)
    ours = mpicoll.Comm(comm)
    other, x, y = ours.Dup(), np.ones(1), np.zeros(1)
    standing = Standing(ours)
    for _ in range(63):
        other.Iallreduce(x, y).Wait()
    last = other.Iallreduce(x, y)
    comm.Barrier()
    assert standing.end(comm)
    last.Wait()


@several
def test_a_fast_call_does_not_take_the_tags_of_one_in_flight(comm):
    """The call whose tags those are begins once that one is done, and is no fast one."""
    ours = mpicoll.Comm(comm)
    small, total = np.full(3, comm.rank + 1.0), np.zeros(3)
    for _ in range(4):
        ours.Allreduce(small, total)
    slow = np.full(400_000, comm.rank + 1.0)
    with ours.using(allreduce="ring", chunk_bytes=512, window=1):
        request = ours.Iallreduce(slow, np.zeros_like(slow))
    number = ours._state.sequence
    with ours.trace() as records:
        for call in range(number + 1, number + SEQUENCES + 2):
            begun_alone = is_ended(request)
            total[:] = 0
            ours.Allreduce(small, total)
            assert (total == comm.size * (comm.size + 1) / 2).all(), call
            if call == number + SEQUENCES:
                assert begun_alone or (not records[-1].fast_path and is_ended(request))
    assert any(record.fast_path for record in records)
    request.Wait()


@several
def test_more_requests_than_tags(comm, monkeypatch):
    """A second communicator has tags where the first has none left."""
    monkeypatch.setattr(proxies, "_TAGS_PER_COMM", 4)
    monkeypatch.setattr(proxies.SelfMessageProxy, "tags", proxies.SelfTags())
    ours = mpicoll.Comm(comm)
    standing = [Standing(ours.Dup()) for _ in range(11)]
    assert all(call.end(comm) for call in reversed(standing))
    assert Standing(ours).end(comm)


@several
def test_a_dropped_request_keeps_its_tag(comm, monkeypatch):
    """The aborted call stays in flight though no rank waits for it any more."""
    monkeypatch.setattr(proxies, "_TAGS_PER_COMM", 2)
    monkeypatch.setattr(proxies.SelfMessageProxy, "tags", proxies.SelfTags())
    ours = mpicoll.Comm(comm)
    first, second = Standing(ours), Standing(ours.Dup())
    first.request = None
    others = [Standing(ours.Dup()) for _ in range(3)]
    assert all(call.end(comm) for call in others)
    assert second.end(comm)
    if comm.rank == LATE:
        first.request = first._begin()
    while not comm.allreduce((first.y == comm.size * (comm.size + 1) / 2).all(), op=MPI.LAND):
        ours.Barrier()  # in which what is under way moves on


@several
def test_an_interrupted_wait_keeps_its_tag(comm, monkeypatch):
    monkeypatch.setattr(proxies, "_TAGS_PER_COMM", 2)
    monkeypatch.setattr(proxies.SelfMessageProxy, "tags", proxies.SelfTags())
    ours = mpicoll.Comm(comm)
    standing = Standing(ours)
    if standing.request is not None:
        with monkeypatch.context() as patch:
            patch.setattr(standing.request._state.queue, "advance_once", interrupted)
            with pytest.raises(KeyboardInterrupt):
                standing.request.Wait()
    others = [Standing(ours.Dup()) for _ in range(5)]
    assert all(call.end(comm) for call in others)
    assert standing.end(comm)


def interrupted(seconds):
    raise KeyboardInterrupt


@pytest.mark.mpi(min_size=3)
def test_more_calls_than_numbers_while_one_stands(ours, comm):
    """Rank 0 waits for the late one in its first Gather; the others have ended theirs and go on."""
    rank, p, calls = comm.rank, comm.size, 2 * SEQUENCES + 3
    if rank == LATE:
        comm.recv(source=2)  # the others have begun all
    sends = [np.full(3, 1000.0 * i + rank) for i in range(calls)]
    receives = [np.zeros((p, 3)) for _ in range(calls)]
    requests = [ours.Igather(send, receive, 0) for send, receive in zip(sends, receives)]
    if rank == 2:
        comm.send(None, LATE)
    mpicoll.Request.Waitall(requests)
    right = [1000.0 * i + np.arange(p)[:, None] for i in range(calls)]
    assert rank or all((receive == expected).all() for receive, expected in zip(receives, right))


@several
def test_a_persistent_one_stands_while_others_are_made_past_the_end(ours, comm):
    x, y = np.full(4, comm.rank + 1.0), np.zeros(4)
    first = ours.Allreduce_init(x, y)
    if comm.rank != LATE:
        first.Start()
    kept = []
    for i in range(2 * SEQUENCES + 3):
        a, b = np.full(4, float(i)), np.zeros(4)
        again = ours.Allreduce_init(a, b)
        again.Start()
        again.Wait()
        assert (b == i * comm.size).all()
        if i % 2:
            kept.append(again)
        else:
            again.Free()
    if comm.rank == LATE:
        first.Start()
    first.Wait()
    assert (y == comm.size * (comm.size + 1) / 2).all()
    for request in (*kept, first):
        request.Free()


@several
def test_the_tags_of_a_call_that_broke_off_are_not_used_again(ours, engine):
    """A message that did not fit may have left others: the call after 126 more is refused, those before it served."""
    pair = ours.Split(0 if ours.rank < 2 else MPI.UNDEFINED)
    if pair == MPI.COMM_NULL:
        return
    with pair.using(engine=engine, allreduce="recursive_doubling"):
        n = 8 if pair.rank else 4
        was_aborted = pair._state.sequence + 1
        with pytest.raises(MessageLengthError):
            pair.Allreduce(np.ones(n), np.zeros(n))
        for i in range(SEQUENCES - 1):
            y = np.zeros(3)
            pair.Allreduce(np.full(3, float(i)), y)
            assert (y == 2 * i).all()
        for call in (pair.Allreduce, pair.Iallreduce):
            with pytest.raises(CommError, match=f"call {was_aborted} .* was aborted .* call {was_aborted + SEQUENCES}"):
                call(np.ones(3), np.zeros(3))
        again, y = pair.Dup(), np.zeros(1)
        again.Allreduce(np.ones(1), y)
        assert y == 2


def test_a_request_is_completed_once(comm, monkeypatch):
    """An interrupt may have its end gone through again: its tag is given back once, and no message is left over."""
    monkeypatch.setattr(proxies.SelfMessageProxy, "tags", proxies.SelfTags())
    operation = type("Operation", (), {"error": None, "told": False})()
    for _ in range(3):
        ticket, other = proxies.SelfMessageProxy(operation), proxies.SelfMessageProxy(operation)
        for _ in range(2):
            ticket.complete()
        ticket.request.Wait()
        assert not other.request.Test()
        other.complete()
        other.request.Wait()
    assert {ticket.tag, other.tag} == {0, 1}
    general = proxies.GrequestProxy(operation)
    general.complete()
    general.complete()
    general.request.Wait()
