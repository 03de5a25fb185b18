"""Duplicate communicators: without the program's attributes, or without waiting for other ranks."""

from __future__ import annotations

import sys
import threading
from typing import TypeVar

from mpi4py import MPI

from ..diagnostics.fault_tolerance import (
    failed_ranks,
    free_id_allocator,
    hosts_of,
    is_rank_failure,
    is_revoked,
    missing,
)
from ..errors import CommError, ProcFailedError

Comm = TypeVar("Comm", bound=MPI.Intracomm)
MAKING = "the creation of an mpicoll.Comm"  # names the call in errors
_OUT_OF_COMMUNICATORS = (MPI.ERR_OTHER, MPI.ERR_NO_MEM, MPI.ERR_INTERN)  # MPICH's is the first


def dup_without_attributes(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a new communicator of the same ranks and of mpi4py's class, whose collectives are MPI's own. Collective.

    MPI_Comm_dup would call the copy functions of the program's attributes, which may count references or raise.
    MPI_Comm_create of MPICH 5.0 hangs on a grid that some ranks are not in. Raises CommError if MPI has no more
    communicators.

    Where ranks may fail, MPI_Comm_shrink makes it, and every rank raises ProcFailedError if one has failed.
    MPI_Comm_split would raise on some ranks and leave others waiting for them.
    """
    if not missing():
        free_id_allocator()
        copy = MPI.Intracomm(MPI.Intracomm.Shrink(comm))
        if copy.size < comm.size:
            failed = failed_ranks(comm)
            raise ProcFailedError(MAKING, failed, hosts_of(comm, failed))
        return copy
    try:
        return MPI.Intracomm(MPI.Intracomm.Split(comm, 0, comm.rank))
    except MPI.Exception as error:
        if error.Get_error_class() not in _OUT_OF_COMMUNICATORS or is_rank_failure(error, comm):
            raise
        raise CommError(
            "MPI cannot make the private communicator that every Comm needs; MPICH has 2,048 communicators at a time, "
            f"private ones included: Free those that are not needed. MPI: {error.Get_error_string().splitlines()[-1]}"
        ) from None


def begin_dup(comm: Comm, info: MPI.Info | None = None) -> tuple[Comm, MPI.Request]:
    """Return a duplicate of a communicator, and the request that completes when it is usable. Collective.

    A communicator of one rank is duplicated at once by MPI_Comm_dup. Intel MPI's MPI_Comm_idup of one
    rank never returns, and holds MPI's lock, while another thread's duplicate is in progress.
    """
    if comm.size == 1:
        return MPI.Intracomm.Dup(comm, info), MPI.REQUEST_NULL
    return MPI.Intracomm.Idup(comm, info)


class RevocableRequest:
    """A request for a duplicate. Test raises ERR_REVOKED if the parent's private communicator was revoked.

    A rank whose request fails revokes it. Otherwise the others would wait for that rank forever.
    """

    def __init__(self, request: MPI.Request, private: MPI.Intracomm) -> None:
        self.request, self.private = request, private

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the request is complete."""
        if is_revoked(self.private):
            raise MPI.Exception(MPI.ERR_REVOKED)
        return self.request.Test()


def _idup_is_unsafe() -> bool:
    """Return whether MPI_Comm_idup may crash or hang if another thread makes a communicator meanwhile.

    MPICH 5.0 keeps the pending communicators of all threads in one list, which MPI_Comm_idup changes without the list's
    lock (sched_cb_gcn_allocate_cid). This happens with mpi4py alone too.
    """
    other_threads = MPI.Query_thread() == MPI.THREAD_MULTIPLE and not sys.is_finalizing()
    return MPI.get_vendor()[0] == "MPICH" and other_threads


class Duplicate:
    """A duplicate in progress of a private communicator, on which no other collective may begin meanwhile.

    It has the method Test of a request. If MPI_Comm_idup is unsafe, a thread calls MPI_Comm_dup instead.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Start to duplicate comm. Collective."""
        self.thread: threading.Thread | None = None
        self.error: BaseException | None = None
        if comm.size > 1 and _idup_is_unsafe():
            self.thread = threading.Thread(target=self._make, args=(comm,), name="mpicoll-duplicate", daemon=True)
            self.thread.start()
        else:
            self.comm, self.request = begin_dup(comm)

    def _make(self, comm: MPI.Intracomm) -> None:
        try:
            self.comm = MPI.Intracomm.Dup(comm)
        except BaseException as error:  # raised by Test
            self.error = error

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the duplicate is complete. Raises the error of MPI_Comm_dup."""
        if self.thread is None:
            return self.request.Test()
        if self.thread.is_alive():
            return False
        if self.error is not None:
            raise self.error
        return True
