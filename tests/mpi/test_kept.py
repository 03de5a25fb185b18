"""Keep no buffer of the user's after a call, and only a limited amount of plans, executions and scratch."""

from __future__ import annotations

import gc
import time
import weakref

import numpy as np
import pytest
from mpi4py import MPI
from support import cases
from support.calls import complete

import mpicoll
from mpicoll.dispatch.call import MAX_IDLE, MAX_IDLE_BYTES
from mpicoll.errors import MismatchError, MpicollError
from mpicoll.runtime import cache, scratch

parametrize = pytest.mark.parametrize


class Array(np.ndarray):
    """An array that weak references can watch."""


def new(n, value=1.0, dtype=float):
    return np.full(n, value, dtype).view(Array)


@pytest.fixture
def ours(comm, engine):
    wrapped = mpicoll.Comm(comm)
    with wrapped.using(engine=engine):
        yield wrapped


# name: (collective and buffers of a call, as a function of the communicator)
CALLS = {
    "allreduce": lambda c: ("Allreduce", [new(50), new(50)], {}),
    "in place": lambda c: ("Allreduce", [MPI.IN_PLACE, new(50)], {}),
    "many chunks": lambda c: ("Allreduce", [new(50_000), new(50_000)], {}),
    "staged": lambda c: ("Alltoall", [MPI.IN_PLACE, new(3 * c.size)], {}),
    "packed": lambda c: ("Bcast", [[new(48), 5, VECTOR]], {}),
    "counts": lambda c: ("Alltoallv", [[new(c.size), [1] * c.size], [new(c.size), [1] * c.size]], {}),
    "counts asked for": lambda c: CALLS["counts"](c),
    "displacements": lambda c: (
        "Allgatherv", [new(2), [new(3 * c.size), [2] * c.size, [3 * r for r in range(c.size)], MPI.DOUBLE]], {}),
    "reduce_scatter": lambda c: ("Reduce_scatter", [new(2 * c.size), new(2)], {}),
    "native": lambda c: ("Allreduce", [new(3, 1, "S1"), new(3, 1, "S1")], {}),
    "user operator": lambda c: ("Allreduce", [new(4), new(4)], {"op": OP}),
}
CHOICES = {"counts": {"alltoallv": "pairwise"}, "counts asked for": {"alltoallv": "bruck"}}
VECTOR = MPI.DOUBLE.Create_vector(5, 1, 2).Create_resized(0, 64).Commit()
OP = MPI.Op.Create(lambda a, b, t: np.add(np.frombuffer(a), np.frombuffer(b), out=np.frombuffer(b)), commute=True)


def arrays(buffers):
    """Yield the arrays among the buffers of a call, at any depth."""
    for buffer in buffers:
        if isinstance(buffer, Array):
            yield buffer
        elif isinstance(buffer, list):
            yield from arrays(buffer)


def call(comm, name, form):
    """Make a call in a form; weak references to its buffers, and the request that is left."""
    method, buffers, keywords = CALLS[name](comm)
    watched = [weakref.ref(x) for x in arrays(buffers)]
    assert watched
    request = None
    if form == "blocking":
        getattr(comm, method)(*buffers, **keywords)
    elif form == "nonblocking":
        request = getattr(comm, f"I{method.lower()}")(*buffers, **keywords)
        request.Wait()
    elif form == "all of a list":
        request = getattr(comm, f"I{method.lower()}")(*buffers, **keywords)
        mpicoll.Request.Waitall([request])
    else:
        request = getattr(comm, f"{method}_init")(*buffers, **keywords)
        complete(request)
        request.Free()
        if type(request) is MPI.Prequest:  # of MPI's own: mpi4py releases buffers with the object
            request = None
    return watched, request


FORMS = ("blocking", "nonblocking", "all of a list", "persistent")


@parametrize("form", FORMS)
@parametrize("name", CALLS)
def test_no_buffer_is_kept(ours, name, form):
    """Not by a cache, not by the request that is done, and without garbage collection."""
    call(ours, name, form)
    gc.disable()
    try:
        with cases.Checks() as checks, ours.using(**CHOICES.get(name, {})):
            watched, request = call(ours, name, form)
            checks.that(all(x() is None for x in watched), [x() is None for x in watched], request)
    finally:
        gc.enable()


class Broken(Exception):
    pass


def fail(*arguments):
    raise Broken


@pytest.mark.mpi(min_size=2)
@parametrize("form", ["blocking", "nonblocking"])
@parametrize("why", ["refused", "end", "mismatch"])
def test_failed_calls_keep_no_buffer(comm, monkeypatch, form, why):
    """The exception is the last that has them, through its traceback; nothing of ours refers to the exception."""
    monkeypatch.setenv("MPICOLL_CHECK", str(int(why == "mismatch")))
    ours = mpicoll.Comm(comm)

    def attempt():
        n = 5 + (ours.rank if why == "mismatch" else 0)
        send, receive = new(n), new(n + (why == "refused"))
        watched = [weakref.ref(send), weakref.ref(receive)]
        try:
            if form == "blocking":
                ours.Allreduce(send, receive)
            else:
                ours.Iallreduce(send, receive).Wait()
        except (MpicollError, MismatchError, Broken):
            return watched
        return None

    gc.disable()
    try:
        with cases.Checks() as checks, monkeypatch.context() as patch, ours.trace():
            if why == "end":
                patch.setattr("mpicoll.diagnostics.sinks.Sinks.append", fail)
            watched = attempt()
            checks.that(watched is not None, "it did not fail")
            checks.that(watched and all(x() is None for x in watched), why, [x() is None for x in watched or ()])
            checks.that(not ours._state.leaked, "kept as if messages were still posted")
    finally:
        gc.enable()


# -- limits


def test_plans_are_limited_in_number(ours, monkeypatch):
    """By number: more sizes, roots and choices than are kept, and every call is right."""
    monkeypatch.setattr(cache, "MAX_ENTRIES", 40)
    memory = ours._state.cache
    with cases.Checks() as checks:
        for n in range(1, 60):
            got = np.full(n, float(ours.rank))
            ours.Bcast(got, n % ours.size)
            checks.that((got == n % ours.size).all(), n)
            with ours.using(chunk_bytes=8 * n):
                ours.Allreduce(np.ones(2), got[:2] if n > 1 else np.zeros(2))
            checks.that(len(memory.order) <= 40, n)
        checks.that(sum(map(len, memory.tables.values())) <= 40, "more in the tables than accounted for")
        checks.that(len(memory.tables) <= cache.MAX_OVERRIDES, len(memory.tables))


def test_plans_are_limited_in_bytes(ours, monkeypatch):
    monkeypatch.setattr(cache, "MAX_BYTES", 200_000)
    memory, most = ours._state.cache, 0
    with cases.Checks() as checks:
        for n in range(1, 120):
            counts = [n] * ours.size
            got = np.zeros(n * ours.size)
            ours.Allgatherv(np.full(n, float(ours.rank)), [got, counts])
            ours.Alltoallv([np.ones(n * ours.size), counts], [got, counts])
            checks.that((got == 1).all(), n)
            most = max(most, memory.nbytes)
            checks.that(memory.nbytes == sum(x[2] for x in memory.order), "the sum is wrong")
        checks.that(100_000 < most <= 200_000, most)
        checks.that(len(memory.order) < 119, "nothing ever went")


@pytest.mark.mpi(min_size=2)
def test_an_override_that_is_left_does_not_leave_its_choice(ours):
    """A call that asked for counts under one choice is resolved under another, and the next is not misled."""
    n, p = 40, ours.size
    counts = [n] * p
    with cases.Checks() as checks, ours.using(alltoallv="bruck"):
        got, more = np.zeros(n * p), np.zeros(n * p)
        if ours.rank:
            time.sleep(0.1)     # rank 0 has left the first choice before it learns the counts
        with ours.using(chunk_bytes=64):
            request = ours.Ialltoallv([np.ones(n * p), counts], [got, counts])
        with ours.using(chunk_bytes=160), ours.trace() as records:
            request.Wait()
            ours.Alltoallv([np.ones(n * p), counts], [more, counts])
        checks.that((got == 1).all() and (more == 1).all())
        checks.equal((records[-1].form, records[-1].chunk_bytes, records[-1].lanes), ("blocking", 160, 2))


def test_idle_executions_are_limited(ours):
    """Many in flight at once leave a few for the next calls; large ones fewer."""
    mpicoll.Request.Waitall([ours.Iallreduce(np.ones(7), np.zeros(7)) for _ in range(30)])
    served = [x for table in ours._state.cache.tables.values() for x in table.values() if x.plan is not None]
    assert served and max(len(x.idle) for x in served) <= MAX_IDLE
    assert any(x.idle for x in served)
    for x in served:
        assert len(x.idle) <= max(1, MAX_IDLE_BYTES // x.plan.nbytes)


def test_large_scratch_is_not_kept(ours, monkeypatch):
    monkeypatch.setattr(scratch, "MAX_KEPT", 1 << 12)
    with ours.using(allreduce="ring", chunk_bytes=1 << 16):
        ours.Allreduce(np.ones(100_000), np.zeros(100_000))
        request = ours.Allreduce_init(np.ones(100_000), np.zeros(100_000))
        complete(request)
        request.Free()
    kept = ours._state.scratch.array
    assert kept is None or len(kept) <= 1 << 12
    with ours.using(allreduce="ring"):
        ours.Allreduce(np.ones(100), np.zeros(100))
    assert ours.size == 1 or ours._state.scratch.array is not None


def test_a_trace_ends_its_own(ours):
    """Two traces of the same calls are equal lists; the one that ends is not the other."""
    with ours.trace() as outer:
        with ours.trace() as inner:
            ours.Barrier()
        ours.Barrier()
    assert (len(outer), len(inner)) == (2, 1)
