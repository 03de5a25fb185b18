"""Duplicate a communicator without waiting for its other ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mpi4py import MPI

Kind = TypeVar("Kind", bound=MPI.Intracomm)


def begin(
    comm: MPI.Intracomm, dup: Callable[[], Kind], idup: Callable[[], tuple[Kind, MPI.Request]]
) -> tuple[Kind, MPI.Request]:
    """Return a duplicate of a communicator and the request that it is complete with. Collective.

    A communicator of one rank is duplicated at once, since nobody is waited for: while a duplicate of another thread is
    under way, Intel MPI's MPI_Comm_idup of one rank never returns, and holds MPI's lock.
    """
    return (dup(), MPI.REQUEST_NULL) if comm.size == 1 else idup()
