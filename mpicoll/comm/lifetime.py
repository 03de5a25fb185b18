"""Manage the lifetime of a CommState, an MPI attribute of the user's communicator.

The first Comm of a communicator makes the state, and all handles share it. The state ends with the communicator, at the
latest with the program.

MPI may delete the attribute in the middle of another call: MPICH frees a communicator within MPI_Request_free if a
persistent request was its last user, and fails if an object is freed at that moment. So the delete callback only
appends the state to FREED. Its private communicators are freed later, once no status message of any rank can be in
flight. Until then MPI must not reuse their context: if a smaller communicator of the program got it, MPI_Iprobe on that
would find the message of a rank that is not in it.
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
from ..diagnostics.fault_tolerance import agree_on, skip_fence_of_finalize
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
from ..runtime.duplicate import dup_without_attributes
from ..timeline.timeline import OF_PROGRAM
from . import release

_keyval: int | None = None
FREED: deque[CommState] = deque()  # states of freed communicators whose private communicators are not freed yet
MAKING: list[watchdog.Making] = []  # private communicators that are being made
FREE_WAIT = 0.2  # seconds at the end of the program to wait until other ranks have freed communicators too
MAX_FREED = 64  # states in FREED that wait for other ranks; beyond, the oldest are freed without waiting
# One thread at a time may use attributes. mpi4py calls MPI with the GIL held. Some MPIs hold a lock for all attributes
# while a callback runs, and the callback waits for the GIL: two threads would deadlock. For the same reason code that
# holds this lock never waits for another rank.
_attributes = threading.RLock()
_process = os.getpid()


def attach(
    comm: MPI.Intracomm, parent: CommState | None = None, private_comms: Sequence[MPI.Intracomm] = ()
) -> CommState:
    """Return the state of a communicator; make it if there is none yet, which is collective (see CommState)."""
    state = _get_state(comm)
    if state is None:
        _free_private_comms()
        cache.show_progress = MPI.COMM_WORLD.rank == 0
        state = CommState(comm, open_fast_path, private_comms or [_private(comm)], parent)
        if private_comms:  # of an Idup, which other ranks may complete in another order
            RECORD.mark_ambiguous(state.place)
        with _attributes:
            comm.Set_attr(_keyval, state)  # type: ignore[arg-type]
        LIVE[id(state)] = state
        if state.settings.log and state.rank == 0:
            state.sinks.add(Log(state.size))
        for opened in OPENED:
            opened(state)
        OF_PROGRAM.opened(state, comm)
        if state.settings.progress:
            _start_status_thread()
    return state


def _start_status_thread() -> None:
    if ProgressThread.is_supported():
        STATUS_THREAD.start(lambda: [*LIVE.values(), *MAKING])


def _private(comm: MPI.Intracomm) -> MPI.Intracomm:
    """Return a private communicator for mpicoll's messages. Collective; the status thread reports it if it stalls."""
    making = watchdog.Making(comm.rank)
    MAKING.append(making)
    if comm.size > 1 and os.environ.get("MPICOLL_PROGRESS") != "0":  # the ranks have not agreed on settings yet
        _start_status_thread()
    try:
        private = dup_without_attributes(comm)
        agree_on(private, 1)  # from here on, a rank may revoke it
        return private
    finally:
        MAKING.remove(making)


def detach(comm: MPI.Comm) -> None:
    """Complete the operations of a communicator that is about to be freed, and close its state."""
    _free_private_comms()
    state = _get_state(comm) if comm not in (MPI.COMM_NULL, MPI.COMM_WORLD, MPI.COMM_SELF) else None
    if state is not None:
        state.queue.drain()
        with _attributes:
            comm.Delete_attr(_keyval)  # type: ignore[arg-type]
        _free_private_comms()


def _get_state(comm: MPI.Comm) -> CommState | None:
    global _keyval
    with _attributes:
        if _keyval is None:
            _keyval = MPI.Comm.Create_keyval(delete_fn=_on_delete)
            MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_on_finalize), True)
        attribute: Any = comm.Get_attr(_keyval)
        state: CommState | None = attribute
        return state


def _on_delete(comm: MPI.Comm, keyval: int, state: CommState) -> None:
    """Close the state of a communicator that MPI is freeing, without calling MPI."""
    if not state.freed:
        FREED.append(state)
        with contained("closing a communicator", in_callback=True):
            state.close()


def _free_private_comms(seconds: float = 0.0) -> None:
    """Free the private communicators of states in FREED that are quiet on every rank.

    Wait at most so many seconds for other ranks.
    """
    release.run_deferred_frees()
    until = time.monotonic() + seconds
    while True:
        for _ in range(len(FREED)):
            with suppress(IndexError):  # another thread does the same
                state = FREED.popleft()
                if not attempt("freeing a private communicator", partial(_free_if_quiet, state), False):
                    FREED.append(state)
        if not FREED or time.monotonic() >= until:
            return
        time.sleep(1e-4)


def _free_if_quiet(state: CommState) -> bool:
    """Free the private communicators of a state if it is quiet or FREED is full. Return whether they are freed."""
    if state.is_quiet() or (len(FREED) >= MAX_FREED and not state.queue.in_flight):
        state.free()
        return True
    return False


def _on_finalize(comm: MPI.Comm, keyval: int, value: Any) -> None:
    """Free all states: MPI_Finalize begins by deleting the attributes of COMM_SELF."""
    _end()
    if os.getpid() == _process:
        for state in [*LIVE.values(), *FREED]:
            with contained("freeing a private communicator"):
                state.free(drain=False)


@atexit.register
def _end() -> None:
    """Stop the threads and wait for other ranks, before MPI_Finalize.

    Communicators stay usable while Python exits, and all memory to which MPI may write stays allocated until the
    process ends.
    """
    THREAD.stop()
    STATUS_THREAD.stop()
    if MPI.Is_initialized() and not MPI.Is_finalized() and not STATUS_THREAD.is_exiting and os.getpid() == _process:
        _free_private_comms()
        watchdog.record(LIVE, ended=ending(STATUS_THREAD.error))
        wait = partial(STATUS_THREAD.wait_for_peers, LIVE.values())
        all_have_ended = attempt("waiting for the other ranks' ends", wait, False)
        with contained("writing the timeline"):
            OF_PROGRAM.end()
        if all_have_ended:
            RECORD.remove()
        _free_private_comms(FREE_WAIT)  # MPIs complain about an incomplete barrier
        with contained("preparing MPI_Finalize"):
            skip_fence_of_finalize()
        for state in [*LIVE.values(), *FREED]:
            LEAKED.append(state)
            with contained("freeing persistent requests"):
                state.tag_pool.free_requests()
        _preload_numpy()
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(LEAKED))


def _preload_numpy() -> None:
    """Make NumPy import the modules that it imports at first use, since imports fail while Python exits."""
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
