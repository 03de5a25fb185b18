"""The two engines: each works here, either can be forced, and what they send is the same."""

from __future__ import annotations

import signal
import time

import numpy as np
import pytest
from support import cases, collectives
from support.calls import works
from support.cases import Case, Checks

import mpicoll
from mpicoll.engines import mpi4py as mpi4py_engine
from mpicoll.engines import selftest
from mpicoll.errors import EngineError
from mpicoll.kernels import background
from mpicoll.progress import queue as queues

parametrize = pytest.mark.parametrize
SPECS = list(collectives.specs())


# -- which one runs


class Freed:
    """A request whose free is interrupted by a free of all requests, as a garbage collection may do."""

    def __init__(self, execution):
        self.execution, self.times = execution, 0

    def Free(self):
        self.times += 1
        self.execution.free()


def test_persistent_messages_are_freed_once():
    execution = mpi4py_engine.Execution.__new__(mpi4py_engine.Execution)
    requests = [Freed(execution), Freed(execution)]
    execution.persistent = {(0, 0, 0): requests[:1], (0, 0, 1): requests[1:]}
    execution.free()
    assert [request.times for request in requests] == [1, 1] and not execution.persistent


def test_self_test_passes_on_this_mpi():
    assert selftest.check() is None


def test_auto_takes_the_compiled_one_where_it_works(ours):
    assert ours.explain("allreduce").engine == "compiled"
    works(ours, "compiled")


def test_forced_by_the_environment(comm, monkeypatch, engine):
    monkeypatch.setenv("MPICOLL_ENGINE", engine)
    works(mpicoll.Comm(comm), engine)


def test_forced_by_using(ours, engine):
    with ours.using(engine=engine):
        works(ours, engine)


def test_rank_0_decides_for_all(comm, monkeypatch):
    monkeypatch.setenv("MPICOLL_ENGINE", "compiled" if comm.rank else "mpi4py")
    works(mpicoll.Comm(comm), "mpi4py")


@pytest.fixture
def broken(monkeypatch):
    """Make the compiled engine's self-test fail on this rank."""
    monkeypatch.setattr(selftest, "check", lambda wait=True: "it is broken for this test")


def test_auto_falls_back_where_the_self_test_fails(comm, broken):
    ours = mpicoll.Comm(comm)
    assert "broken for this test" in ours._state.agreed.engine_why
    works(ours, "mpi4py")


def test_forced_does_not_fall_back(comm, broken, monkeypatch):
    ours = mpicoll.Comm(comm)
    with pytest.raises(EngineError, match="broken for this test"), ours.using(engine="compiled"):
        pass
    works(ours, "mpi4py")
    monkeypatch.setenv("MPICOLL_ENGINE", "compiled")
    with pytest.raises(EngineError, match="broken for this test"):
        mpicoll.Comm(comm.Dup())


@pytest.mark.mpi(min_size=2)
def test_self_test_fails_on_one_rank(comm, monkeypatch):
    """auto means another engine there; the ranks understand each other all the same."""
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(selftest, "check", lambda wait=True: "it is broken for this test")
    works(mpicoll.Comm(comm), "mpi4py" if comm.rank == comm.size - 1 else "compiled")


@pytest.mark.mpi(min_size=2)
def test_forced_by_the_environment_and_broken_on_one_rank(comm, monkeypatch):
    """Every rank raises; the others do not go on to wait for the one that did."""
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(selftest, "check", lambda wait=True: "it is broken for this test")
    monkeypatch.setenv("MPICOLL_ENGINE", "compiled")
    with pytest.raises(EngineError, match="broken for this test"):
        mpicoll.Comm(comm)


@parametrize("part", ["_check_exchange", "_check_length_error"])
def test_self_test_says_what_is_wrong(monkeypatch, part):
    monkeypatch.setattr(selftest, part, lambda compiled, comm, *lengths: f"{part} fails")
    assert selftest._check.__wrapped__() == f"{part} fails"


def test_self_test_survives_an_exception(monkeypatch):
    monkeypatch.setattr(selftest, "_check_exchange", lambda compiled, comm: 1 / 0)
    assert "ZeroDivisionError" in selftest._check.__wrapped__()


# -- the same messages


@parametrize("parity", [0, 1])
@parametrize(("collective", "spec"), SPECS, ids=map(" ".join, SPECS))
def test_ranks_on_different_engines_understand_each_other(comm, parity, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    engine = collectives.ENGINES[(comm.rank + parity) % 2]
    with Checks() as checks:
        for n in (1, p + 1, 3_000):
            for root in collectives.roots(collective, 0, p - 1):
                for how in ({}, {"chunk_bytes": 1000 if n == 3_000 else 8, "window": 2}):
                    cases.check(checks, ours, Case(collective, n, root), spec, engine, cases.AGAIN, **how)


@parametrize(("collective", "spec"), SPECS, ids=map(" ".join, SPECS))
def test_engines_count_the_same_messages_and_bytes(comm, collective, spec):
    ours, p = mpicoll.Comm(comm), comm.size
    with Checks() as checks:
        for n in (0, 1, 5 * p + 3) if collective != "barrier" else (0,):
            for how in ({}, {"chunk_bytes": 16, "window": 3}):
                ran = [record_of(ours, Case(collective, n), spec, engine, how) for engine in collectives.ENGINES]
                checks.equal(*[(r.messages, r.bytes, r.lanes, r.chunk_bytes) for r in ran], collective, n, how)


def record_of(comm, case, spec, engine, how):
    """Return the record of one call."""
    with comm.using(engine=engine, **{case.collective: spec}, **how), comm.trace() as records:
        case.run(comm)
    (record,) = records
    return record


def test_ring_sends_what_its_formula_says(comm, engine):
    ours, p, n = mpicoll.Comm(comm), comm.size, 60 * comm.size
    record = record_of(ours, Case("allreduce", n), "ring", engine, {})
    assert record.messages == 4 * (p - 1) and record.bytes == 2 * (p - 1) * n * 8 // p
    chunked = record_of(ours, Case("allreduce", n), "ring", engine, {"chunk_bytes": 80})
    assert chunked.lanes == 6 and chunked.messages == 6 * record.messages and chunked.bytes == record.bytes


@pytest.mark.mpi(min_size=2)
def test_a_report_leaves_messages_as_they_are(comm):
    """On MPICH 5, MPI_Request_get_status ends a persistent request, and its number of bytes is lost."""
    ours, y = mpicoll.Comm(comm), np.zeros(3)
    with ours.using(engine="mpi4py", allreduce="ring"):
        request = ours.Allreduce_init(np.ones(3), y)
        for _ in range(3):
            with ours._state.queue.lock:  # keeps the progress thread away
                request.Start()
                comm.Barrier()
                time.sleep(0.02)
                if (stage := request._operation.stage) is not None:
                    assert stage.describe()
            request.Wait()
            assert (y == comm.size).all()
    request.Free()


# -- coming back in time


@pytest.mark.mpi(min_size=2)
def test_a_spin_ends_on_time(ours, comm, engine):
    """Python handles signals between spins, so a spin on a receive without a message has to end in time."""
    spins: list[float] = []
    with ours.using(engine=engine, bcast="binomial"):
        if comm.rank == 0:
            time.sleep(0.5)
        else:
            spins = timed_spins(ours)
        buffer = np.full(4, 7.0 if comm.rank == 0 else 0.0)
        if comm.rank == 0:
            ours.Bcast(buffer)
    comm.Barrier()
    assert all(seconds < 0.25 for seconds in spins) and (comm.rank == 0 or len(spins) > 5)


def timed_spins(ours):
    """Make the broadcast, and note how long each spin of it took."""
    spins, step = [], queues.Queue.step

    def timed(self, seconds):
        before = time.monotonic()
        ended = step(self, seconds)
        spins.append(time.monotonic() - before)
        return ended

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(queues.Queue, "step", timed)
        ours.Bcast(np.zeros(4))
    return spins


class Interrupted(Exception):
    pass


def interrupt(*arguments):
    raise Interrupted


@pytest.mark.mpi(min_size=2)
def test_an_interrupt_is_seen_at_once(comm, engine):
    """A signal interrupts the call as Ctrl-C does, and the ranks can communicate afterwards."""
    ours, buffer = mpicoll.Comm(comm), np.zeros(4)
    before = signal.signal(signal.SIGALRM, interrupt)
    with ours.using(engine=engine, bcast="linear" if "linear" in mpicoll.list_algorithms()["bcast"] else "binomial"):
        if comm.rank:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            started = time.monotonic()
            with pytest.raises(Interrupted):
                ours.Bcast(buffer)
            assert time.monotonic() - started < 0.5
        signal.signal(signal.SIGALRM, before)
        comm.Barrier()
        if comm.rank == 0:
            ours.Bcast(buffer)
        ours._state.queue.drain()       # on the others it has gone on
        works(ours, engine)


# -- kernels that are being compiled


def test_the_fast_path_keeps_no_kernel_that_is_to_be_replaced(comm, monkeypatch):
    state = background.State()
    monkeypatch.setattr(background, "state", state)
    monkeypatch.setattr(background, "poll", lambda: None)
    ours = mpicoll.Comm(comm)
    state.pending["a kernel"] = None
    total = np.zeros(5)

    def engines_and_paths(calls):
        with ours.trace() as records:
            for _ in range(calls):
                ours.Allreduce(np.full(5, 2.0), total)
        assert (total == 2.0 * comm.size).all()
        return [(record.engine, record.fast_path) for record in records]

    assert engines_and_paths(4) == [("compiled", False)] * 4
    state.pending.clear()
    state.generation += 1
    assert engines_and_paths(3) == [("compiled", False)] * 2 + [("compiled", True)]


def test_a_communicator_switches_to_an_engine_that_arrives_later(comm, monkeypatch):
    """Ranks switch one by one, while calls are in flight; persistent collectives switch at the next Start."""
    state, check = background.State(), selftest.check
    monkeypatch.setattr(background, "state", state)
    monkeypatch.setattr(background, "poll", lambda: None)

    def missing(wait=True):
        if wait:
            return check()
        raise background.NotCompiled("for this test")

    monkeypatch.setattr(selftest, "check", missing)
    ours, total, sums = mpicoll.Comm(comm), np.zeros(5), np.zeros(5)
    request = ours.Allreduce_init(np.full(5, 2.0), total)
    assert "compiling kernels in the background" in ours.explain("allreduce").slow

    def engines():
        with ours.trace() as records:
            begun = ours.Iallreduce(np.full(5, 3.0), sums)
            request.Start()
            if state.generation == 0 and comm.rank % 2:  # each rank switches by itself
                arrive()
            ours.Barrier()
            request.Wait()
            begun.Wait()
        assert (total == 2.0 * comm.size).all() and (sums == 3.0 * comm.size).all()
        return {record.collective: record.engine for record in records}

    def arrive():
        monkeypatch.setattr(selftest, "check", check)
        state.generation += 1

    assert engines()["allreduce"] == "mpi4py"
    if state.generation == 0:
        arrive()
    assert set(engines().values()) == {"compiled"}
    with ours.trace() as records:
        request.Start()
        request.Wait()
    assert [(record.engine, record.fast_path) for record in records] == [("compiled", True)]
    request.Free()
