"""Fault tolerance (ULFM): find out whether this run survives the failure of a rank, and which ranks failed.

mpi4py has the methods for that on every MPI. Where the library has no such functions, or fault tolerance is off in this
run, they are stand-ins: Shrink duplicates, and Get_failed finds no rank. So missing() examines the library and the run.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Protocol

from mpi4py import MPI

from ..errors import ProcFailedError, RevokedError
from .groups import world_ranks

_FUNCTIONS = ("MPI_Comm_shrink", "MPIX_Comm_shrink")
_OTHER = "use Open MPI 5 and start it by mpiexec --with-ft ulfm …"
_VARIABLE = b"mpi_ft_enable"  # of Open MPI's tool interface: whether fault tolerance is on in this run
_NO_FENCE = "ompi_async_mpi_finalize"  # where Open MPI keeps its MCA parameter async_mpi_finalize
HOSTS: dict[int, str] = {}  # the names of the hosts of ranks of MPI.COMM_WORLD, as far as known
ID_ROUNDS = 5  # an Idup of check mode has three calls of MPI in progress
ID_WAIT = 0.1  # seconds for a duplicate of MPI.COMM_SELF, which needs no other rank
_self_duplicates: list[tuple[MPI.Intracomm, MPI.Request]] = []  # the one that waits for MPI.COMM_WORLD's id, if any
DETECTION = 2.0  # seconds within which MPI tells a rank of a failure that another rank knows of


@cache
def missing() -> str:
    """Return why no rank may fail here, and what to type where something helps; empty where the others go on."""
    library, wrapper = ctypes.CDLL(MPI.__file__), Path(MPI.__file__).read_bytes()
    if not any(hasattr(library, name) for name in _FUNCTIONS):
        return f"this MPI library has no MPI_Comm_shrink; {_OTHER}"
    if not any(name.encode() in wrapper for name in _FUNCTIONS):
        return f"this mpi4py was built without MPI_Comm_shrink; {_OTHER}"
    enabled = _variable(library, _VARIABLE)
    if enabled is None:
        return f"this MPI library has no fault tolerance that can be switched on; {_OTHER}"
    return "" if enabled else "fault tolerance is off in this run; start it by mpiexec --with-ft ulfm …"


def _variable(library: ctypes.CDLL, name: bytes) -> bool | None:
    """Return a boolean control variable of MPI's tool interface; None where there is none of that name."""
    # The level of threads that is asked for is the process's own: Open MPI changes the process's to what is asked here.
    number, provided, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    handle, value = ctypes.c_void_p(), ctypes.create_string_buffer(16)
    try:
        if library.MPI_T_init_thread(MPI.Query_thread(), ctypes.byref(provided)):
            return None
        try:
            if library.MPI_T_cvar_get_index(name, ctypes.byref(number)):
                return None
            if library.MPI_T_cvar_handle_alloc(number, None, ctypes.byref(handle), ctypes.byref(count)):
                return None
            read = library.MPI_T_cvar_read(handle, value) == MPI.SUCCESS
            library.MPI_T_cvar_handle_free(ctypes.byref(handle))
            return value.raw[0] != 0 if read else None
        finally:
            library.MPI_T_finalize()
    except AttributeError:  # a library without the tool interface
        return None


def agree_on(comm: MPI.Intracomm, flags: int) -> int:
    """Return the flags that all surviving ranks have set; where no rank may fail, the rank's own. Collective.

    A rank also calls this before it may revoke a new communicator: Open MPI 5.0 crashes on a rank that still makes a
    communicator which another rank has made and revokes.
    """
    while not missing():
        comm.Ack_failed()
        try:
            return comm.Agree(flags)
        except MPI.Exception as error:  # a rank failed meanwhile, and every rank gets this error
            if not is_rank_failure(error, comm):
                raise
    return flags


def free_id_allocator() -> None:
    """Have Open MPI make communicators again after a failure ended MPI_Comm_idup or MPI_Comm_dup on this rank. Local.

    Open MPI 5.0 chooses the id of a new communicator under a lock that holds the id of the parent, and does not release
    it when a failure ends the call (ompi_comm_cid_lowest_id in comm_cid.c). Then a communicator with a higher id waits
    for ever in MPI_Comm_shrink. A parent with a lower id takes the lock over and releases it: MPI.COMM_SELF, which
    takes no other rank. Only MPI.COMM_WORLD has a lower id; Shrink of it releases that lock.
    """
    if missing() or not (_self_duplicates or failed_ranks(MPI.COMM_WORLD)):
        return
    for _ in range(ID_ROUNDS):  # a released lock may go to the next of the ended calls, which keeps it, too
        if not _self_duplicates:
            _self_duplicates.append(MPI.Intracomm.Idup(MPI.COMM_SELF))
        until = time.monotonic() + ID_WAIT
        while not _self_duplicates[0][1].Test():  # the lock of MPI.COMM_WORLD: the next call tests this request again
            if time.monotonic() > until:
                return
        _self_duplicates.pop()[0].Free()
        time.sleep(1e-3)
        _progress()


def skip_fence_of_finalize() -> None:
    """Have MPI_Finalize not wait for ranks that have failed, if this rank knows of any. Local.

    MPI_Finalize of Open MPI 5.0 waits for the surviving ranks by a shrink and a barrier, and then again in a fence of
    the runtime (PMIx_Fence_nb in ompi_mpi_finalize.c), which sometimes waits for the failed ranks for ever. This sets
    the MCA parameter async_mpi_finalize, which leaves the fence out. Ranks that still enter it are not held up.
    """
    if not missing() and failed_ranks(MPI.COMM_WORLD):
        with suppress(ValueError):  # a version without it
            ctypes.c_bool.in_dll(ctypes.CDLL(MPI.__file__), _NO_FENCE).value = True


def is_rank_failure(error: BaseException, comm: MPI.Intracomm) -> bool:
    """Return whether MPI raised an error since a rank of a communicator has failed, or the communicator was revoked.

    Open MPI's own collectives raise errors of other classes then, too, and so does Waitall.
    """
    if not isinstance(error, MPI.Exception) or missing():  # without fault tolerance the classes are those of others
        return False
    kind = error.Get_error_class()
    if kind in (MPI.ERR_OTHER, MPI.ERR_IN_STATUS, MPI.ERR_INTERN):
        with suppress(MPI.Exception):  # of a communicator that is freed
            return MPI.Intracomm.Is_revoked(comm) or bool(failed_ranks(comm))
    return kind in (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)


def is_revoked(comm: MPI.Comm) -> bool:
    """Return whether this rank knows that a communicator was revoked; False where no rank may fail."""
    return not missing() and MPI.Comm.Is_revoked(comm)


def failed_ranks(comm: MPI.Intracomm) -> list[int]:
    """Return the ranks of a communicator that this rank knows to have failed, in order."""
    failed, all_ranks = MPI.Intracomm.Get_failed(comm), comm.Get_group()
    try:
        return sorted(MPI.Group.Translate_ranks(failed, None, all_ranks)) if failed.size else []
    finally:
        failed.Free()
        all_ranks.Free()


def note_hosts(comm: MPI.Intracomm, hosts: Sequence[str]) -> None:
    """Keep the names of the hosts of a communicator's ranks, in the order of ranks, for errors. Local."""
    HOSTS.update((rank, host) for rank, host in zip(world_ranks(comm), hosts) if rank != MPI.UNDEFINED)


def hosts_of(comm: MPI.Intracomm, ranks: Sequence[int]) -> list[str]:
    """Return the name of the host of each of these ranks of a communicator, empty where it is unknown. Local."""
    all_ranks = world_ranks(comm)
    return [HOSTS.get(all_ranks[rank], "") for rank in ranks]


class Communicator(Protocol):
    """The communicator whose ranks may fail."""

    comm: MPI.Intracomm
    user_handle: int
    freed: bool

    def private_communicators(self) -> list[MPI.Intracomm]:
        """Return the communicators that the ranks have beside the program's."""


class RankFailure:
    """The failure of ranks of a communicator, as far as this rank knows of it, and the errors that say so.

    A rank learns of a failure from a message to or from the rank that failed. Ranks that wait for other ones would
    never learn of it, since those have left the collective. So the first rank to learn of it revokes the private
    communicators, after which every rank's messages on them fail.
    """

    def __init__(self, state: Communicator) -> None:
        self.state: Communicator = weakref.proxy(state)  # no cycle
        self.is_known = False
        self.call = ""  # the first call that a failure ended here, in words

    def revoke(self) -> None:
        """Revoke the private communicators, once: the calls in flight end on all ranks."""
        if not self.is_known:
            self.is_known = True
            for comm in self.state.private_communicators():
                if comm != MPI.COMM_NULL:
                    with suppress(MPI.Exception):
                        MPI.Intracomm.Revoke(comm)

    def ended(self, call: str) -> ProcFailedError | RevokedError:
        """Return the error of a call, in words, that a failure ended here: with the ranks that failed.

        Another rank may have known of them first. Then this waits until MPI has told this one.
        """
        self.call = self.call or call
        until = time.monotonic() + DETECTION
        while True:
            if failed := failed_ranks(self.state.comm):
                return ProcFailedError(call, failed, hosts_of(self.state.comm, failed))
            if not self.state.freed and is_revoked(MPI.Intracomm.fromhandle(self.state.user_handle)):
                failed = failed_ranks(MPI.COMM_WORLD)  # of another communicator, if any
                return RevokedError(call, failed, hosts_of(MPI.COMM_WORLD, failed))
            if time.monotonic() > until:
                return ProcFailedError(call, ())
            _progress()
            time.sleep(1e-3)

    def check(self) -> None:
        """Raise an error if a failure has ended a call: no other call can complete."""
        if self.call:
            raise self.ended(self.call)

    @contextmanager
    def noticed(self) -> Iterator[None]:
        """Revoke where an error of MPI in the block, which is outside of any call, means that a rank has failed."""
        try:
            yield
        except MPI.Exception as error:
            if not is_rank_failure(error, self.state.comm):
                raise
            self.revoke()


def _progress() -> None:
    """Have MPI progress, which is how it learns of failures; on no communicator that is revoked.

    To make a communicator for this would wait for ever, if the failure has ended an MPI_Comm_idup.
    """
    with suppress(MPI.Exception):
        MPI.COMM_SELF.Iprobe()
