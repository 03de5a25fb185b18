"""One call of every collective method in a form, which waits on some rank until rank 0 makes it too; the fast path."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.dispatch.methods import METHODS
from mpicoll.schedules.collectives import PERSISTENT
from support.cases import AGAIN


def collectives(comm: MPI.Intracomm, form: str, only: str | None = None) -> dict[str, Callable[[], Any]]:
    """By the method's name in that form; persistent requests are made here, and started by the call. Or `only` one.

    A call returns its request, None in the blocking form.
    """
    p, last = comm.size, comm.size - 1
    one = lambda: np.ones(2)
    all_of_them = lambda: np.ones(2 * p)
    each_its_type = lambda: [np.ones(p), [1] * p, [8 * r for r in range(p)], [MPI.DOUBLE] * p]
    arguments: dict[str, tuple[Any, ...]] = {
        "Barrier": (),
        "Bcast": (one(), 0),
        "Scatter": (all_of_them(), one(), 0),
        "Scatterv": (all_of_them(), one(), 0),
        "Gather": (one(), all_of_them(), last),
        "Gatherv": (one(), all_of_them(), last),
        "Reduce": (one(), one(), MPI.SUM, last),
        "Alltoallw": (each_its_type(), each_its_type()),
        "Reduce_scatter": (all_of_them(), one(), [2] * p),
        "Reduce_scatter_block": (all_of_them(), one()),
    }
    for name in ("Allgather", "Allgatherv"):
        arguments[name] = one(), all_of_them()
    for name in ("Alltoall", "Alltoallv"):
        arguments[name] = all_of_them(), all_of_them()
    for name in ("Allreduce", "Scan", "Exscan"):
        arguments[name] = one(), one()
    calls = {}
    for name, method in METHODS.items():
        if only not in (None, name):
            continue
        call = partial(getattr(comm, method.spelled(form)), *arguments[name])
        calls[method.spelled(form)] = partial(_started, call()) if form == PERSISTENT else call
    return calls


def _started(request: MPI.Prequest) -> MPI.Prequest:
    request.Start()
    return request


def teach(call: Callable[[], Any], times: int = AGAIN - 1) -> None:
    """Make a call so often that the next one goes the fast path, if it may."""
    for _ in range(times):
        call()


def goes_short(comm: Any, call: Callable[[], Any]) -> bool:
    """Whether the one collective that is called does."""
    with comm.trace() as records:
        call()
    (record,) = records
    return bool(record.fast_path)
