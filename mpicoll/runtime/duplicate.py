"""Duplicate a communicator without waiting for its other ranks."""

from __future__ import annotations

from typing import TypeVar

from mpi4py import MPI

Kind = TypeVar("Kind", bound=MPI.Intracomm)


def begin(comm: Kind, info: MPI.Info | None = None) -> tuple[Kind, MPI.Request]:
    """Return a duplicate of a communicator and the request that it is complete with. Collective.

    A communicator of one rank is duplicated at once, since nobody is waited for: while a duplicate of another thread is
    under way, Intel MPI's MPI_Comm_idup of one rank never returns, and holds MPI's lock.

    MPICH 5.0 crashes or stands still where MPI_Comm_idup is under way while another thread makes a communicator, with
    mpi4py alone too: both go into one list of the process, but MPI_Comm_idup without its lock
    (sched_cb_gcn_allocate_cid). So this is for programs that ask for Idup, and mpicoll asks for none of its own.
    """
    if comm.size == 1:
        return MPI.Intracomm.Dup(comm, info), MPI.REQUEST_NULL
    return MPI.Intracomm.Idup(comm, info)
