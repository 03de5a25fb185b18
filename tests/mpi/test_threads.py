"""Communicators used from several threads at once: each is one thread's at a time, as MPI asks for."""

from __future__ import annotations

import faulthandler
import gc
import queue
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI
from support import cases
from support.calls import LIMIT, together

import mpicoll
from mpicoll.comm import proxies
from mpicoll.runtime import comm_state

THREADED = MPI.Query_thread() == MPI.THREAD_MULTIPLE
pytestmark = pytest.mark.skipif(not THREADED, reason="needs MPI_THREAD_MULTIPLE")


@pytest.fixture(params=[True, False], ids=["thread", "no-thread"])
def ours(comm, request, monkeypatch):
    """Return a Comm with the progress thread or without."""
    monkeypatch.setenv("MPICOLL_PROGRESS", str(int(request.param)))
    return mpicoll.Comm(comm)


def total(comm, n, i):
    """Return (send, receive, the expected result) of a sum that differs from every other call's."""
    return np.full(n, float(i + comm.rank)), np.zeros(n), comm.size * i + comm.size * (comm.size - 1) / 2


def mixed_calls(comm, n, times):
    """Return a function that makes blocking, nonblocking and persistent calls, in sequence and several in flight."""

    def work():
        send, got = np.zeros(n), np.zeros(n)
        repeated = comm.Allreduce_init(send, got)
        for i in range(times):
            data, result, right = total(comm, n, i)
            send[:] = data
            repeated.Start()
            comm.Allreduce(data, result)
            assert (result == right).all(), ("blocking", i, result)
            operations = [total(comm, n + k, i + k) for k in range(3)]
            requests = [comm.Iallreduce(a, b) for a, b, _ in operations]
            comm.Barrier()
            for request in requests[:: 1 if i % 2 else -1]:
                request.Wait()
            assert all((b == c).all() for _, b, c in operations), ("nonblocking", i)
            repeated.Wait()
            assert (got == right).all(), ("persistent", i, got)
        repeated.Free()

    return work


@pytest.mark.parametrize("engine", [("compiled",) * 4, ("mpi4py",) * 4, ("compiled", "mpi4py") * 2],
                         ids=["compiled", "mpi4py", "both"])
def test_four_threads(ours, engine):
    comms = [ours, *(ours.Dup() for _ in range(3))]
    for comm, name in zip(comms, engine):
        comm.using(engine=name).__enter__()
    together(*(mixed_calls(c, n, 60 if ours.size < 4 else 15) for c, n in zip(comms, (1, 7, 300, 5_000))))
    for comm in comms[1:]:
        comm.Free()


def test_requests_are_waited_for_in_another_thread(ours):
    """By Wait, by Test, and persistent ones."""
    handed: queue.Queue = queue.Queue()
    n = 150 if ours.size < 4 else 40

    def starts():
        for i in range(n):
            send, got, right = total(ours, 1 + i % 40, i)
            if i % 5 == 4:
                request = ours.Allreduce_init(send, got)
                request.Start()
            else:
                request = ours.Iallreduce(send, got)
            handed.put((i, request, got, right, send))
        handed.put(None)

    def waits():
        while (item := handed.get()) is not None:
            i, request, got, right, _ = item
            if i % 2:
                request.Wait()
            else:
                while not request.Test():
                    time.sleep(0)
            assert (got == right).all(), i
            if isinstance(request, MPI.Prequest):
                request.Free()

    together(starts, waits)


def test_communicators_come_and_go_while_another_is_busy(ours):
    """Dup, Split, Free and garbage in two threads, calls in a third."""
    live = len(comm_state.LIVE)
    busy, *parents = [ours, ours.Dup(), ours.Dup()]

    def cycles(parent):
        def work():
            for i in range(40):
                part = parent.Split(0, parent.rank) if i % 2 else parent.Dup()
                send, got, right = total(part, 9, i)
                request = part.Iallreduce(send, got)
                if i % 3:
                    request.Wait()
                del request
                if i % 10 == 0:
                    gc.collect()
                part.Free()
                assert (got == right).all(), i

        return work

    together(mixed_calls(busy, 2_000, 30), *map(cycles, parents))
    for parent in parents:
        parent.Free()
    assert len(comm_state.LIVE) == live


@pytest.mark.mpi(min_size=2)
def test_one_thread_waits_while_another_works(ours, engine):
    """Rank 0 waits in one communicator for ranks that first need its other thread in another."""
    other = ours.Dup()

    def waits():
        for _ in range(20):
            ours.Barrier()

    def works():
        for _ in range(20):
            time.sleep(0.002)
            mixed_calls(other, 5, 1)()

    def takes_turns():
        for _ in range(20):
            mixed_calls(other, 5, 1)()
            ours.Barrier()

    with ours.using(engine=engine), other.using(engine=engine):
        together(*[takes_turns] if ours.rank else [waits, works])
    other.Free()


def test_settled_by_the_progress_thread_while_the_program_makes_requests(ours):
    """A plan that is made once counts are in takes scratch in one thread while another takes some too."""
    p, n = ours.size, 40 if ours.size < 4 else 10
    with cases.Checks() as checks, ours.using(alltoallv="bruck", allreduce="ring"):
        for i in range(n):
            counts = [1 + (i + r + ours.rank) % 5 for r in range(p)]
            got = np.full(sum(counts), -1.0)
            request = ours.Ialltoallv([np.full(sum(counts), float(ours.rank)), counts], [got, counts])
            send, result, right = total(ours, 600, i)
            repeated = ours.Allreduce_init(send, result)
            repeated.Start()
            repeated.Wait()
            request.Wait()
            repeated.Free()
            checks.that((result == right).all(), i, "allreduce")
            checks.that((got == np.repeat(np.arange(p), counts)).all(), i, got)


def test_first_requests_of_threads_have_one_communicator(monkeypatch):
    """Share one communicator for tags between threads that make their first requests at once."""
    def slow():
        time.sleep(0.05)
        return object()

    tags, taken = proxies.SelfTags(), []
    monkeypatch.setattr(proxies, "create_self_comm", slow)
    together(*[lambda: taken.append(tags.take())] * 4)
    assert len({comm for comm, _ in taken}) == 1 and len({tag for _, tag in taken}) == 4


def test_persistent_collectives_of_one_rank_and_of_all_are_made_at_once(comm):
    """Each makes a communicator for its tags; Intel MPI's Idup of one rank hangs beside another thread's.

    MPICH's own crashes beside another thread that makes a communicator.
    """
    parents = [MPI.Intracomm(comm).Dup(), MPI.Intracomm(comm).Dup(), MPI.COMM_SELF.Dup()]

    def make(parent, times):
        for i in range(times):
            ours = mpicoll.Comm(parent.Dup())
            send, receive, right = total(ours, 3, i)
            request = ours.Allreduce_init(send, receive)
            request.Start()
            request.Wait()
            if MPI.get_vendor()[0] != "MPICH":
                copy, copied = ours.Idup()
                copied.Wait()
                copy.Free()
            request.Free()
            ours.Free()
            assert (receive == right).all()

    try:
        together(*(lambda parent=parent: make(parent, 40) for parent in parents))
    finally:
        for parent in parents:
            parent.Free()


def test_an_operator_in_python_holds_no_lock_of_mpi(comm, engine):
    """Its function lets other threads run, which call MPI: on Intel MPI these would wait for it, and it for them."""
    ours, over = mpicoll.Comm(comm), threading.Event()

    def slowly(a, b, datatype):
        assert datatype == MPI.DOUBLE
        time.sleep(0.002)
        result = np.frombuffer(b)
        result += np.frombuffer(a)

    def reduce():
        op = MPI.Op.Create(slowly, commute=True)
        try:
            with ours.using(allreduce="naive", engine=engine):
                for i in range(30):
                    send, receive, right = total(comm, 9, i)
                    ours.Allreduce(send, receive, op)
                    assert (receive == right).all()
        finally:
            over.set()
            op.Free()

    def ask():
        keyval = MPI.Datatype.Create_keyval()
        while not over.is_set():
            MPI.DOUBLE.Get_attr(keyval)  # mpi4py holds Python's lock meanwhile
            time.sleep(0)
        MPI.Datatype.Free_keyval(keyval)

    faulthandler.dump_traceback_later(LIMIT, exit=True)  # no thread of Python's could say so
    try:
        together(reduce, ask)
    finally:
        faulthandler.cancel_dump_traceback_later()


def test_kinds_are_counted_while_another_thread_completes_calls(ours):
    """A thread that completes an operation puts its kind back into the table of the fast path."""
    fast_path = ours._state.fast_path
    if fast_path.closed:
        return
    kinds, over = fast_path.table.kinds, threading.Event()

    def put_and_take():
        while not over.is_set():
            for at in range(64):
                kinds[-1 - at] = SimpleNamespace(nbytes=8), None
            for at in range(64):
                del kinds[-1 - at]

    thread, interval = threading.Thread(target=put_and_take), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        assert all(fast_path.stats().kinds <= 64 for _ in range(5000))
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)
