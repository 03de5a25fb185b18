"""How a channel hangs on the user's communicator: as an MPI attribute.

Every handle on the communicator shares it, and it goes when the communicator does, or the program. What is MPI's of it
goes a little later where MPI itself says so: MPICH does in the middle of MPI_Request_free, where a persistent request
was the last that kept the communicator, and stops whoever frees something then.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from mpi4py import MPI

from ..errors import CommError
from ..fastpath.opening import open_fast_path
from ..runtime import progress, responder
from ..runtime.channel import LEAKED, LIVE, Channel
from ..runtime.trace import Log

_keyval: int | None = None
LEFT: deque[Channel] = deque()  # of communicators that are gone, whose own are not given back yet
OPENED: list[Callable[[Channel], None]] = []  # called with every new channel, on all its ranks
# mpi4py asks for attributes with Python's lock held, and some MPIs have one lock for all attributes, which a thread
# whose callback waits for Python's lock holds: so one thread at a time, and nothing in here waits for another rank
_attributes = threading.RLock()
_process = os.getpid()


def attach(comm: MPI.Intracomm, like: Channel | None = None, own: Sequence[MPI.Intracomm] = ()) -> Channel:
    """Return the channel of a communicator, made if there is none yet (collective then, see Channel)."""
    channel = _attribute(comm)
    if channel is None:
        _give_back()
        channel = Channel(comm, open_fast_path, like, own)
        with _attributes:
            comm.Set_attr(_keyval, channel)  # type: ignore[arg-type]
        LIVE[id(channel)] = channel
        if channel.settings.log and channel.rank == 0:
            channel.trace(Log(channel.size))
        for opened in OPENED:
            opened(channel)
        if channel.settings.progress and progress.ProgressThread.possible():
            responder.RESPONDER.start(lambda: list(LIVE.values()))
    return channel


def detach(comm: MPI.Comm) -> None:
    """Free the channel of a communicator that is about to be freed, from outside of MPI."""
    _give_back()
    channel = _attribute(comm) if comm not in (MPI.COMM_NULL, MPI.COMM_WORLD, MPI.COMM_SELF) else None
    if channel is not None:
        channel.drain()
        channel.respond()
        channel.free()
        with _attributes:
            comm.Delete_attr(_keyval)  # type: ignore[arg-type]


def _attribute(comm: MPI.Comm) -> Channel | None:
    global _keyval
    with _attributes:
        if _keyval is None:
            _keyval = MPI.Comm.Create_keyval(delete_fn=_deleted)
            MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_finalizing), True)
        found: Any = comm.Get_attr(_keyval)
        channel: Channel | None = found
        return channel


def _deleted(comm: MPI.Comm, keyval: int, channel: Channel) -> None:
    """MPI is freeing the communicator, perhaps in the middle of something else: nothing of MPI's may be called."""
    if not channel.freed:
        channel.leave()
        LEFT.append(channel)


def _give_back() -> None:
    """Free what is MPI's of channels that were left, once nothing is in flight on them."""
    for _ in range(len(LEFT)):
        with suppress(IndexError):  # another thread gives back too
            channel = LEFT.popleft()
            if channel.in_flight:
                LEFT.append(channel)
            else:
                channel.free()


def _finalizing(comm: MPI.Comm, keyval: int, value: Any) -> None:
    """MPI_Finalize begins by deleting the attributes of COMM_SELF: the program has called it, before its exit."""
    _close()


@atexit.register
def _close() -> None:
    """Before MPI_Finalize: all ranks have come to their end, no thread in MPI, no communicator left.

    What is still in flight keeps its memory to the end of the process, since MPI may write to it until then.
    """
    progress.THREAD.stop()
    responder.RESPONDER.stop()
    if MPI.Is_initialized() and not MPI.Is_finalized() and not responder.RESPONDER.parting and os.getpid() == _process:
        responder.RESPONDER.part(LIVE.values())
        for channel in [*LIVE.values(), *LEFT]:
            LEAKED.extend(channel.in_flight)
            channel.free(drain=False)
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(LEAKED))


def check_usable(comm: MPI.Intracomm) -> None:
    """Raise CommError for a communicator no collective can run on."""
    if comm == MPI.COMM_NULL:
        raise CommError("the communicator is MPI.COMM_NULL or was freed; make a Comm from one that is alive")
    if comm.Is_inter():
        raise CommError("this is an intercommunicator; mpicoll serves intracommunicators, Merge() makes one")
