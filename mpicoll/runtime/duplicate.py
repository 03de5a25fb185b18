"""Make communicators of the same ranks: without the program's attributes, or without waiting for the others."""

from __future__ import annotations

import sys
import threading
from typing import TypeVar

from mpi4py import MPI

from ..diagnostics.fault_tolerance import is_rank_failure
from ..errors import CommError

Kind = TypeVar("Kind", bound=MPI.Intracomm)
_NO_ROOM = (MPI.ERR_OTHER, MPI.ERR_NO_MEM, MPI.ERR_INTERN)  # MPICH's is the first


def without_attributes(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a new communicator of the same ranks and of mpi4py's class, whose collectives are MPI's own. Collective.

    MPI_Comm_dup would call the copy functions of the program's attributes, which may count references or raise.
    MPI_Comm_create of MPICH 5.0 hangs on a grid that some ranks are not in. Raises CommError where MPI has no room.
    """
    try:
        return MPI.Intracomm(MPI.Intracomm.Split(comm, 0, comm.rank))
    except MPI.Exception as error:
        if error.Get_error_class() not in _NO_ROOM or is_rank_failure(error, comm):
            raise
        raise CommError(
            "MPI makes no private communicator, which every Comm has beside the program's; MPICH has 2,048 of both "
            f"kinds at a time: Free those that are not needed. MPI says: {error.Get_error_string().splitlines()[-1]}"
        ) from None


def begin(comm: Kind, info: MPI.Info | None = None) -> tuple[Kind, MPI.Request]:
    """Return a duplicate of a communicator and the request that it is complete with. Collective.

    A communicator of one rank is duplicated at once, which waits for no other rank. Intel MPI's MPI_Comm_idup of one
    rank never returns, and holds MPI's lock, while another thread's duplicate is in progress.
    """
    if comm.size == 1:
        return MPI.Intracomm.Dup(comm, info), MPI.REQUEST_NULL
    return MPI.Intracomm.Idup(comm, info)


def _may_harm() -> bool:
    """Return whether this MPI's MPI_Comm_idup may do harm to another thread that makes a communicator.

    MPICH 5.0 keeps what both wait for in one list of the process, which MPI_Comm_idup changes without the list's lock
    (sched_cb_gcn_allocate_cid). It crashes or hangs, with mpi4py alone too.
    """
    other_threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE and not sys.is_finalizing()
    return MPI.get_vendor()[0] == "MPICH" and other_threads


class Duplicate:
    """A duplicate in progress, of a private communicator on which no other collective begins meanwhile.

    It has the one method of a request that a stage needs. Where MPI_Comm_idup may do harm, a thread calls MPI_Comm_dup.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Begin. Collective."""
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        if comm.size > 1 and _may_harm():
            self.thread = threading.Thread(target=self._make, args=(comm,), name="mpicoll-duplicate", daemon=True)
            self.thread.start()
        else:
            self.comm, self.request = begin(comm)

    def _make(self, comm: MPI.Intracomm) -> None:
        try:
            self.comm = MPI.Intracomm.Dup(comm)
        except BaseException as error:  # raised by Test
            self.error = error

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the duplicate is complete. Raises what MPI raised."""
        if self.thread is None:
            return self.request.Test()
        if self.thread.is_alive():
            return False
        if self.error is not None:
            raise self.error
        return True
