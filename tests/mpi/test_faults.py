"""Errors in threads of ours: each is raised by the Wait it belongs to or logged, and the threads go on.

Every line with a call that such a thread runs is found by tracing it once. Then an error is raised at each of them.
"""

from __future__ import annotations

import ast
import linecache
import logging
import sys
import threading
import time
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI
from support.calls import is_ended

import mpicoll
from mpicoll.comm import lifetime, proxies, release
from mpicoll.diagnostics import peer_status, status_thread, watchdog
from mpicoll.diagnostics.peer_status import PeerStatus
from mpicoll.diagnostics.status_thread import STATUS_THREAD
from mpicoll.errors import StallError
from mpicoll.progress import faults
from mpicoll.progress import thread as progress
from mpicoll.progress.queue import Queue, anything_in_flight
from mpicoll.progress.thread import THREAD
from mpicoll.runtime.comm_state import LIVE, CommState

pytestmark = [
    pytest.mark.mpi(min_size=2, max_size=3),
    pytest.mark.skipif(MPI.Query_thread() != MPI.THREAD_MULTIPLE, reason="needs MPI_THREAD_MULTIPLE"),
    pytest.mark.timeout(240),  # on a machine that others use too
]
OURS = str(Path(mpicoll.__file__).parent)
OUTERMOST = ("_run", "_drive")  # of a thread, with no call but those that it contains
SECONDS = 20.0  # until a rank gives up a call that another rank left, unless notes say so before


class Injected(Exception):
    """An error injected at a line that does not raise by itself."""


@cache
def lines_with_calls(path: str) -> frozenset[int]:
    """Return the lines of a file with a call that may fail; to release a lock that one holds cannot."""
    lines = linecache.getlines(path)
    calls = [node.lineno for node in ast.walk(ast.parse("".join(lines))) if isinstance(node, ast.Call)]
    return frozenset(line for line in calls if not lines[line - 1].strip().endswith(".release()"))


class Tracer:
    """Sees each line with a call that a thread runs, and raises at one of them, once."""

    def __init__(self, at: tuple[str, int] | None = None) -> None:
        self.at, self.seen, self.raised = at, dict[tuple[str, int], None](), False

    def __call__(self, frame, event, argument):
        code = frame.f_code
        if event == "call":
            return self if code.co_filename.startswith(OURS) and code.co_name not in OUTERMOST else None
        site = code.co_filename, frame.f_lineno
        if event == "line" and frame.f_lineno in lines_with_calls(code.co_filename):
            self.seen[site] = None
            if site == self.at and not self.raised:
                self.raised = True
                raise Injected(f"{Path(site[0]).name}:{site[1]}")
        return self


def restarted(tracer=None):
    """End both threads, and have them start again under a tracer when they are needed."""
    for thread in (THREAD, STATUS_THREAD):
        thread.stop()
    THREAD.stopping, THREAD.asleep = False, False
    STATUS_THREAD.stopping.clear()
    STATUS_THREAD.thread = None
    threading.settrace(tracer)


@pytest.fixture
def quick(monkeypatch):
    """Ask other ranks at once, and often."""
    for module, name, value in (
        (watchdog, "POLL_INTERVAL", 0.005),
        (watchdog, "EARLY", 0.01),
        (watchdog, "HASTE", 0.02),
        (watchdog, "EARLY_PATIENCE", 0.05),
        (status_thread, "POLL_INTERVAL", 0.01),
        (peer_status, "ASK_INTERVAL", 0.02),
        (progress, "MIN_COMPUTE", 0.0),
    ):
        monkeypatch.setattr(module, name, value)
    faults._logged.clear()
    yield
    restarted()
    STATUS_THREAD.start(lambda: list(LIVE.values()))


def scenario(comm, late: bool):
    """Let the threads do all that they do; return an error of Wait's, None where the results are right.

    The progress thread alone advances two collectives, and waits for a rank that is late.
    """
    ours = mpicoll.Comm(comm)
    ours.Barrier()
    STATUS_THREAD.start(lambda: list(LIVE.values()))
    if late:
        time.sleep(0.025)
    send = [np.full(n, comm.rank + 1.0) for n in (3, 3000)]
    received = [np.zeros(n) for n in (3, 3000)]
    requests = []
    for x, y, engine in zip(send, received, ("mpi4py", "compiled")):
        with ours.using(allreduce="ring", engine=engine):
            requests.append(ours.Iallreduce(x, y))
    THREAD.poll_now()
    for request in requests:
        request._operation.raises_on_stall, request._operation.deadline = True, time.monotonic() + SECONDS
    until = time.monotonic() + 0.2
    while not all(map(is_ended, requests)) and time.monotonic() < until:
        time.sleep(0.002)  # the progress thread alone advances them
    errors = []
    for request, y in zip(requests, received):
        try:
            request.Wait()
        except Exception as error:
            errors.append(error)
        else:
            assert (y == comm.size * (comm.size + 1) / 2).all()
    alive = [worker.thread is None or worker.thread.is_alive() for worker in (THREAD, STATUS_THREAD)]  # None: not begun
    assert all(alive), alive
    comm.Barrier()  # until then this rank answers those that wait for it
    ours.Free()
    return errors


def test_an_error_at_any_call_of_a_thread(comm, quick, caplog):
    """Nothing hangs, results are right or Wait raises, and the threads are alive."""
    caplog.set_level(logging.CRITICAL)
    for path in {getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]}:
        if path.startswith(OURS):
            lines_with_calls(path)  # now: ast.parse() in two threads at once may raise SystemError in CPython 3.11
    sites = {}
    for turn in range(2 * comm.size):
        tracer = Tracer()
        restarted(tracer)
        assert not scenario(comm.Dup(), late=turn % comm.size == comm.rank)
        sites |= tracer.seen
    sites = list(sites)
    assert len(sites) > 60, len(sites)
    raised = 0
    for number in range(max(comm.allgather(len(sites)))):  # each rank at a site of its own
        tracer = Tracer(sites[number] if number < len(sites) else None)
        restarted(tracer)
        errors = scenario(comm.Dup(), late=number % comm.size == comm.rank)
        raised += tracer.raised
        every = comm.allgather([type(error).__name__ for error in errors])
        assert not any(every) or any("Injected" in error for error in every), (tracer.at, every)
    assert raised > len(sites) / 2


def test_an_error_behind_the_last_operation(comm, quick, monkeypatch):
    """Nothing counts as under way for ever, which would keep all calls off the fast path."""
    restarted()
    ours, own, failed = mpicoll.Comm(comm), Queue.mark_busy, []

    def once(queue, busy):
        if not busy and not failed and threading.current_thread() is not threading.main_thread():
            failed.append(True)
            raise Injected
        own(queue, busy)

    monkeypatch.setattr(Queue, "mark_busy", once)
    y, deadline, turn = np.zeros(3), time.monotonic() + SECONDS, 0
    while not comm.allreduce(bool(failed), MPI.LAND):  # the calling thread may have ended a call as it began
        turn += 1
        if turn % comm.size == comm.rank:
            time.sleep(0.02)  # so that the thread ends the calls of the others
        with ours.using(allreduce="ring"):
            request = ours.Iallreduce(np.ones(3), y)
            THREAD.poll_now()
            while (not is_ended(request) or anything_in_flight()) and time.monotonic() < deadline:
                time.sleep(0.001)
            assert not anything_in_flight()
            request.Wait()
    assert (y == comm.size).all()


def refuse(*arguments, **options):
    raise MPI.Exception(MPI.ERR_OTHER)  # in the main thread, anything else may be a signal handler's


@pytest.mark.parametrize("method", ["ask", "exchange", "_send", "_receive"])
def test_notes_that_always_fail(comm, quick, monkeypatch, method):
    """Collectives that all make are right, and one that not all make ends at its deadline."""
    monkeypatch.setattr(PeerStatus, method, refuse)
    restarted()
    ours = mpicoll.Comm(comm.Dup())
    for _ in range(2):
        assert not scenario(comm.Dup(), late=comm.rank == 0)
    if comm.rank == 0:
        with ours.using(allreduce="ring"):
            request = ours.Iallreduce(np.ones(3), np.zeros(3))
        request._operation.raises_on_stall, request._operation.deadline = True, time.monotonic() + 0.3
        with pytest.raises(StallError):
            request.Wait()
    comm.Barrier()


@pytest.mark.parametrize("waitall", [mpicoll.Request.Waitall, MPI.Request.Waitall])
def test_completing_a_request_fails_once(comm, quick, monkeypatch, waitall):
    """It is tried again, so that MPI's own Waitall ends too."""
    ours, own, failed = mpicoll.Comm(comm), proxies._call_once, []

    def once(*arguments):
        if not failed:
            failed.append(True)
            raise MPI.Exception(MPI.ERR_OTHER)
        own(*arguments)

    monkeypatch.setattr(proxies, "_call_once", once)
    y = np.zeros(3)
    with ours.using(allreduce="ring"):
        waitall([ours.Iallreduce(np.ones(3), y)])
    assert failed and (y == comm.size).all()


def test_completing_a_request_always_fails(comm, quick, monkeypatch):
    """Wait raises the error."""
    ours = mpicoll.Comm(comm)
    with monkeypatch.context() as patch:
        patch.setattr(proxies, "_call_once", refuse)
        with ours.using(allreduce="ring"):
            request = ours.Iallreduce(np.ones(3), np.zeros(3))
        with pytest.raises(MPI.Exception):
            request.Wait()
    request.Wait()


class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no words")


@pytest.mark.parametrize("error", [Unprintable, SystemExit, MemoryError])
def test_an_error_of_a_callback_in_the_thread(comm, quick, error):
    """It is raised by the Wait of its operation, and the thread serves the next."""
    restarted()
    ours = mpicoll.Comm(comm)
    raised = []

    class Sink:
        def append(self, record):
            if threading.current_thread() is not threading.main_thread():
                raised.append(record)
                raise error

    sink = Sink()
    ours._state.sinks.add(sink)
    with ours.using(allreduce="ring"):
        if comm.rank:
            time.sleep(0.05)  # so that the thread advances the collective of rank 0
        request = ours.Iallreduce(np.ones(3), np.zeros(3))
        THREAD.poll_now()
        while not is_ended(request):
            time.sleep(0.001)
        with pytest.raises(error) if raised else nullcontext():
            request.Wait()
        ours._state.sinks.remove(sink)
        assert raised or comm.rank
        y = np.zeros(3)
        MPI.Request.Waitall([ours.Iallreduce(np.ones(3), y)])
    assert (y == comm.size).all() and (THREAD.thread is None or THREAD.thread.is_alive())


def test_finalizers_run_although_one_of_them_fails(caplog):
    faults._logged.clear()
    returned = []

    for give_back in (refuse, lambda: returned.append(1), refuse, lambda: returned.append(2)):
        release.defer_free(give_back)
    release.run_deferred_frees()
    assert returned[-2:] == [1, 2]
    assert caplog.text.count("freeing an MPI object failed") == 1


def test_a_finalizer_of_a_persistent_request_that_fails(comm, quick, monkeypatch):
    """The rest of what it holds is given back."""
    ours = mpicoll.Comm(comm)
    with ours.using(allreduce="ring"):
        request = ours.Allreduce_init(np.ones(3000), np.zeros(3000))
    persistent, returned = request._persistent, []
    monkeypatch.setattr(type(persistent.slot), "free", refuse)
    monkeypatch.setattr(ours._state.scratch, "give_back", returned.append)
    request.Free()
    assert len(returned) == 1


def test_a_thread_that_ended_begins_again(comm, quick):
    """The next collective starts a thread that has ended for any reason."""
    restarted()
    THREAD.thread = threading.Thread(target=int)
    THREAD.thread.start()
    THREAD.thread.join()
    THREAD.add_queue(mpicoll.Comm(comm)._state.queue)
    assert THREAD.thread.is_alive()


def test_a_communicator_that_is_left_whatever_fails(comm, quick, monkeypatch):
    """A callback of MPI's that meets an error keeps the private communicator for a later chance."""
    ours = mpicoll.Comm(comm.Dup())
    state = ours._state
    with monkeypatch.context() as patch:
        patch.setattr(CommState, "close", refuse)
        MPI.Intracomm(ours).Free()
    assert state in lifetime.FREED or state.queue.closed
    with monkeypatch.context() as patch:
        patch.setattr(CommState, "is_quiet", refuse)
        lifetime._free_private_comms()
    assert state in lifetime.FREED or state.queue.closed
