"""Deferred frees: finalizers may run inside MPI calls that hold locks, so they only queue their work here.

For example, MPICH calls back into Python with a lock held when it frees a communicator within MPI_Request_free. If
Python collects garbage there and frees another request, MPICH takes the lock again and aborts the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mpi4py import MPI

from ..progress.faults import contained

_waiting: deque[Callable[[], object]] = deque()


def defer_free(free: Callable[[], object]) -> None:
    """Queue a function for the next run_deferred_frees(). Calls no MPI and takes no lock."""
    _waiting.append(free)


def run_deferred_frees() -> None:
    """Call the queued functions: when a request is made, started or freed, when a communicator is freed, and at exit.

    An interrupt may raise here, so callers call this before they begin anything else.
    """
    while _waiting:
        try:
            free = _waiting.popleft()
        except IndexError:  # another thread took it
            return
        if not MPI.Is_finalized():
            with contained("freeing an MPI object"):  # the caller has nothing to do with its errors
                free()
