"""The lifetime of a CommState: an MPI attribute of the user's communicator, from the first Comm to its end.

Every handle on the communicator shares the state, which ends with the communicator, at the latest with the program.

MPI may delete the attribute in the middle of another call: MPICH frees a communicator within MPI_Request_free, if a
persistent request was the last that kept it, and fails if an object is freed in that moment. So the delete callback
only puts the state into LEFT. Its private communicators are freed at a later chance, once no rank can have a note on
its way to another: MPI may give their context to a communicator of fewer ranks, the program's own, where the note of a
rank that is not in it would be found by MPI_Iprobe.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from ..diagnostics import watchdog
from ..diagnostics.flight import RECORD
from ..diagnostics.status import ending
from ..diagnostics.status_thread import STATUS_THREAD
from ..diagnostics.trace import Log
from ..errors import CommError
from ..fastpath.opening import open_fast_path
from ..kernels import cache
from ..progress.faults import attempt, contained
from ..progress.thread import THREAD, ProgressThread
from ..runtime.comm_state import LEAKED, LIVE, OPENED, CommState
from ..timeline.timeline import OF_PROGRAM
from . import release

_keyval: int | None = None
LEFT: deque[CommState] = deque()  # of freed communicators, whose private ones are still to be freed
LAST = 0.2  # seconds that the end of the program waits for ranks that come to leave
MANY = 64  # of them may wait for ranks that have not left; the private communicators of older ones are given up
# One thread at a time may touch attributes. mpi4py holds Python's lock when it asks for one. Some MPIs hold a lock of
# their own for all attributes while a callback runs, which waits for Python's lock: two threads could wait for each
# other. For the same reason nothing that holds this lock waits for another rank.
_attributes = threading.RLock()
_process = os.getpid()


def attach(
    comm: MPI.Intracomm, parent: CommState | None = None, private_comms: Sequence[MPI.Intracomm] = ()
) -> CommState:
    """Return the state of a communicator. Where there is none yet, make one, which is collective (see CommState)."""
    state = _attribute(comm)
    if state is None:
        _give_back()
        cache.show_progress = MPI.COMM_WORLD.rank == 0
        state = CommState(comm, open_fast_path, parent, private_comms)
        with _attributes:
            comm.Set_attr(_keyval, state)  # type: ignore[arg-type]
        LIVE[id(state)] = state
        if state.settings.log and state.rank == 0:
            state.trace(Log(state.size))
        for opened in OPENED:
            opened(state)
        OF_PROGRAM.opened(state, comm)
        if state.settings.progress and ProgressThread.is_supported():
            STATUS_THREAD.start(lambda: list(LIVE.values()))
    return state


def detach(comm: MPI.Comm) -> None:
    """Free the state of a communicator that is about to be freed, from outside of MPI."""
    _give_back()
    state = _attribute(comm) if comm not in (MPI.COMM_NULL, MPI.COMM_WORLD, MPI.COMM_SELF) else None
    if state is not None:
        state.queue.drain()
        with _attributes:
            comm.Delete_attr(_keyval)  # type: ignore[arg-type]
        _give_back()


def _attribute(comm: MPI.Comm) -> CommState | None:
    global _keyval
    with _attributes:
        if _keyval is None:
            _keyval = MPI.Comm.Create_keyval(delete_fn=_deleted)
            MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_finalizing), True)
        attribute: Any = comm.Get_attr(_keyval)
        state: CommState | None = attribute
        return state


def _deleted(comm: MPI.Comm, keyval: int, state: CommState) -> None:
    """Leave a communicator that MPI is freeing, without calling MPI."""
    if not state.freed:
        LEFT.append(state)
        with contained("leaving a communicator", in_callback=True):
            state.close()


def _give_back(seconds: float = 0.0) -> None:
    """Free the private communicators of states that every rank has left and on which nothing is in flight.

    It waits so long at most for ranks that come to leave.
    """
    release.run_deferred_frees()
    until = time.monotonic() + seconds
    while True:
        for _ in range(len(LEFT)):
            with suppress(IndexError):  # another thread gives back too
                state = LEFT.popleft()
                if not attempt("freeing a private communicator", partial(_is_freed, state), False):
                    LEFT.append(state)
        if not LEFT or time.monotonic() >= until:
            return
        time.sleep(1e-4)


def _is_freed(state: CommState) -> bool:
    """Free the private communicators of a state that is quiet, and return whether they are freed."""
    if state.is_quiet() or (len(LEFT) >= MANY and not state.queue.in_flight):
        state.free()
        return True
    return False


def _finalizing(comm: MPI.Comm, keyval: int, value: Any) -> None:
    """Close everything, since the program has called MPI_Finalize, which begins by deleting COMM_SELF's attributes."""
    _end()
    if os.getpid() == _process:
        for state in [*LIVE.values(), *LEFT]:
            with contained("freeing a private communicator"):
                state.free(drain=False)


@atexit.register
def _end() -> None:
    """End what must have ended before MPI_Finalize: threads that call MPI, and waiting for other ranks.

    Communicators stay, for what the program may still do with them while Python ends, with all memory that MPI may
    write to until the end of the process.
    """
    THREAD.stop()
    STATUS_THREAD.stop()
    if MPI.Is_initialized() and not MPI.Is_finalized() and not STATUS_THREAD.is_exiting and os.getpid() == _process:
        _give_back()
        watchdog.record(LIVE, ended=ending(STATUS_THREAD.error))
        wait = partial(STATUS_THREAD.wait_for_peers, LIVE.values())
        all_have_ended = attempt("waiting for the other ranks' ends", wait, False)
        with contained("writing the timeline"):
            OF_PROGRAM.end()
        if all_have_ended:
            RECORD.remove()
        _give_back(LAST)  # MPIs complain of a barrier that did not end
        for state in [*LIVE.values(), *LEFT]:
            LEAKED.append(state)
            with contained("freeing persistent requests"):
                state.tag_pool.free_requests()
        _import_parts_of_numpy()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(LEAKED))


def _import_parts_of_numpy() -> None:
    """Have NumPy import what it imports when it is first used, since nothing can be imported while Python ends."""
    numbers = np.zeros(1, np.int64)
    for method in ("sum", "prod", "max", "min", "any", "all", "mean"):
        getattr(numbers, method)()
    repr(numbers.dtype)


def check_usable(comm: MPI.Intracomm) -> None:
    """Raise CommError if no collective can run on this communicator."""
    if comm == MPI.COMM_NULL:
        raise CommError("the communicator is MPI.COMM_NULL or was freed; make a Comm from one that is alive")
    if comm.Is_inter():
        raise CommError("this is an intercommunicator; mpicoll serves intracommunicators, Merge() makes one")
