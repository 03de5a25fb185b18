"""A caller's lists and arrays that change while a call reads them: the call means what they said when it was made.

So does what the fast path of calls learns from it. Another thread may do so, a signal handler or a finaliser; here the
change comes at a certain point of the call, on every rank.
"""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from mpi4py import MPI
from support.cases import AGAIN

from mpicoll.dispatch import slow_path
from mpicoll.dispatch.methods import Invocation
from mpicoll.fastpath import compiled_path
from mpicoll.schedules.collectives import BLOCKING, NONBLOCKING

POINTS = ["before it is parsed", "after it is parsed", "when it is learnt"]
LEARNT = AGAIN - 1                      # calls of a kind that go the slow path


def at(point, change, monkeypatch):
    """Have `change` made at a point of the next call that goes the slow path."""
    pending = [change]

    def due():
        while pending:
            pending.pop()()

    snapshot, parse, insert = Invocation.snapshot, slow_path.prepare_call, compiled_path.CompiledFastPath.insert

    def taken(invocation):
        saved = snapshot(invocation)
        if point == POINTS[0]:
            due()
        return saved

    def prepare(*arguments):
        parsed = parse(*arguments)
        if point == POINTS[1]:
            due()
        return parsed

    def inserts(*arguments):
        if point == POINTS[2]:
            due()
        insert(*arguments)

    monkeypatch.setattr(Invocation, "snapshot", taken)
    monkeypatch.setattr(slow_path, "prepare_call", prepare)
    monkeypatch.setattr(compiled_path.CompiledFastPath, "insert", inserts)


@pytest.mark.parametrize("nth", range(LEARNT))
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("form", [BLOCKING, NONBLOCKING])
def test_another_array_in_the_list(ours, comm, monkeypatch, form, point, nth):
    """The program changes the list in the nth call of a kind; later calls read its new contents."""
    p = comm.size
    first, second, got = np.full(9, 1.0), np.full(4, 100.0), np.zeros(4)
    message = [first, 4]
    call = {
        BLOCKING: lambda: ours.Allreduce(message, got),
        NONBLOCKING: lambda: ours.Iallreduce(message, got).Wait(),
    }[form]
    for i in range(AGAIN + 3):
        if i == nth:
            at(point, lambda: message.__setitem__(0, second), monkeypatch)
        got[:] = -1
        call()
        monkeypatch.undo()
        assert (got == (1 if i <= nth else 100) * p).all(), i
        assert message[0] is (first if i < nth else second)
    first[:] = 55
    call()
    assert (got == 100 * p).all()


CHANGES = {
    "the count": lambda message, other: message.__setitem__(1, 2),
    "the list grows": lambda message, other: message.append(MPI.DOUBLE),
    "the list is emptied": lambda message, other: message.clear(),
    "all of it": lambda message, other: message.__setitem__(slice(None), [other, 3, MPI.DOUBLE]),
    "the shape": lambda message, other: setattr(message[0], "shape", (2, 3)),
    "the type": lambda message, other: setattr(message[0], "dtype", np.dtype("q")),
}


@pytest.mark.parametrize("nth", range(LEARNT))
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("what", CHANGES)
def test_anything_in_the_list(ours, comm, monkeypatch, what, point, nth):
    """The nth call, in which an argument changes, sums 4 numbers, and so do later calls with the list restored."""
    p = comm.size
    for i in range(AGAIN + 3):
        send, got = np.arange(6.0), np.full(4, -1.0)
        message = [send, 4]
        if i == nth:
            at(point, lambda message=message: CHANGES[what](message, np.full(5, 7.0)), monkeypatch)
        ours.Allreduce(message, got)
        monkeypatch.undo()
        assert (got == np.arange(4.0) * p).all(), i
        shorter = np.zeros(2)
        ours.Allreduce([np.full(6, 3.0), 2], shorter)
        assert (shorter == 3 * p).all()


COUNTS = {      # a method with counts of 2 for all: (its buffers, what arrives, other counts)
    "Allgatherv": lambda p, rank: (
        (np.full(2, float(rank)), np.full(4 * p, -1.0)), [*np.repeat(np.arange(p), 2), *[-1] * 2 * p], [4] * p),
    "Reduce_scatter": lambda p, rank: (
        (np.arange(2.0 * p), np.full(2, -1.0)), [2 * rank * p, (2 * rank + 1) * p], [2 * p] + [0] * (p - 1)),
}


@pytest.mark.parametrize("nth", range(LEARNT))
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("held", [list, np.array])
@pytest.mark.parametrize("method", COUNTS)
def test_counts(ours, comm, monkeypatch, method, held, point, nth):
    """Counts that change in a call, in a list or an array in place."""
    for i in range(AGAIN + 3):
        counts = held([2] * comm.size)
        (send, got), want, other = COUNTS[method](comm.size, comm.rank)
        if i == nth:
            at(point, lambda counts=counts, other=other: counts.__setitem__(slice(None), other), monkeypatch)
        getattr(ours, method)(send, *([[got, counts]] if method == "Allgatherv" else [got, counts]))
        monkeypatch.undo()
        assert got.tolist() == want, i


@pytest.mark.mpi(min_size=2)
def test_by_another_thread_while_the_call_waits(ours, comm):
    """The second call of a kind waits for a late rank, and another thread changes its list: later calls heed that."""
    p, rank = comm.size, comm.rank
    first, second, got = np.full(4, 10.0), np.full(4, 100.0), np.zeros(4)
    message = [first, 4]
    ours.Allreduce(message, got)
    if rank == 0:
        begun = ours._state.sequence

        def change():
            while ours._state.sequence == begun:
                time.sleep(0.001)
            message[0] = second

        thread = threading.Thread(target=change)
        thread.start()
    else:
        time.sleep(0.3)
    ours.Allreduce(message, got)
    assert (got == 10 * p).all()
    if rank == 0:
        thread.join()
    first[:] = 1
    for _ in range(AGAIN):
        ours.Allreduce(message, got)
        assert (got == 100 + (p - 1)).all()
