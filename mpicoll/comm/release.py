"""What finalizers give back to MPI, later: they may run anywhere, in a call of MPI's that holds its locks too.

MPICH, for one, calls back into Python with a lock held where it frees a communicator within MPI_Request_free. There
Python may collect garbage, and freeing another request takes that lock again: MPICH aborts the run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from mpi4py import MPI

from ..runtime.faults import contained

_waiting: deque[Callable[[], object]] = deque()


def later(give_back: Callable[[], object]) -> None:
    """Have this called at the next chance. Calls no MPI and takes no lock."""
    _waiting.append(give_back)


def now() -> None:
    """Call what waits: when a request is made, started or freed, when a communicator is, and at the end.

    An interrupt may come between, so a call that comes by here has begun all that it begins, or nothing.
    """
    while _waiting:
        try:
            give_back = _waiting.popleft()
        except IndexError:  # another thread does the same
            return
        if not MPI.Is_finalized():
            with contained("giving back to MPI"):  # what it refuses is no error of the call that is made here
                give_back()
