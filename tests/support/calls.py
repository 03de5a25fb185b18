"""Calls that many tests make: of every collective method in a form, on the fast path, in several threads at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.dispatch.methods import METHODS
from mpicoll.schedules.collectives import PERSISTENT, at_root
from support import vectors
from support.cases import AGAIN, Checks
from support.collectives import meaning

LIMIT = 40.0  # seconds until threads that have not ended count as stuck


def collective_calls(comm: MPI.Intracomm, form: str, only: str | None = None) -> dict[str, Callable[[], Any]]:
    """Return a call of each method, or of `only` one, by the method's name in a form.

    A call returns its request, None in the blocking form. Persistent requests are made here, and started by the call.
    No rank completes a call without rank 0.
    """
    calls = {}
    for name, method in METHODS.items():
        if only in (None, name):
            prepared = vectors.prepare(name, comm, 2, 0 if meaning(name).starts is at_root else comm.size - 1)
            start = partial(prepared.start, comm, form)
            calls[method.spelled(form)] = partial(_started, start()) if form == PERSISTENT else start
    return calls


def _started(request: MPI.Prequest) -> MPI.Prequest:
    request.Start()
    return request


def complete(request: MPI.Request | None) -> None:
    """Wait for what a call of any form returned, which starts a persistent one first."""
    if isinstance(request, MPI.Prequest):
        request.Start()
    if request is not None:
        request.Wait()


def fill_fast_path(call: Callable[[], Any], times: int = AGAIN - 1) -> None:
    """Make a call so often that the next one takes the fast path, if it may."""
    for _ in range(times):
        call()


def takes_fast_path(comm: Any, call: Callable[[], Any]) -> bool:
    """Return whether the collective that a function calls takes the fast path."""
    with comm.trace() as records:
        call()
    (record,) = records
    return bool(record.fast_path)


def works(comm: Any, engine: str | None = None, algorithms: Sequence[str | None] = (None,)) -> None:
    """Hold that collectives of ours give what they should, on the engine and by the algorithms that are named."""
    p = comm.size
    for algorithm in algorithms:
        total = np.zeros(5)
        with comm.using(**{"allreduce": algorithm} if algorithm else {}), comm.trace() as records:
            comm.Allreduce(np.full(5, comm.rank + 1.0), total)
        assert (total == p * (p + 1) / 2).all()
        assert (records[0].algorithm == "native") == (algorithm == "native")
        assert engine in (None, records[0].engine)
    comm.Barrier()


def together(*functions: Callable[[], Any]) -> None:
    """Run each function in a thread of its own, all at once; what any raised is raised here."""
    errors: list[BaseException] = []
    begin = threading.Barrier(len(functions))

    def guarded(function: Callable[[], Any]) -> None:
        try:
            begin.wait(LIMIT)
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
    until = time.monotonic() + LIMIT
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    stuck = sum(thread.is_alive() for thread in threads)
    with Checks() as checks:
        checks.that(not stuck, f"{stuck} threads are stuck")
        checks.that(not errors, *map(repr, errors))


def is_ended(request):
    """Return whether a collective is complete. A repeated call may complete as it begins, without an operation."""
    return request._operation is None or request._operation.done
