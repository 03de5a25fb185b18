"""Find out whether this MPI goes on after a rank has failed (ULFM), as mpi4py's methods for that promise.

mpi4py has the methods on every MPI. Where the library has no such functions, or fault tolerance is off in this run,
they are stand-ins: Shrink duplicates, and Get_failed finds no rank. So missing() examines the library and the run.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ..errors import FaultToleranceError
from ..runtime.channel import Channel

_FUNCTIONS = ("MPI_Comm_shrink", "MPIX_Comm_shrink")
_OTHER = "use Open MPI 5 and start it by mpiexec --with-ft ulfm …"
_VARIABLE = b"mpi_ft_enable"  # of Open MPI's tool interface: whether fault tolerance is on in this run


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


def check(method: str) -> None:
    """Raise FaultToleranceError where a method for ranks that failed would only seem to work."""
    if why := missing():
        raise FaultToleranceError(f"{method} does not work here after a rank has failed: {why}")


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


class Survivors(MPI.Intracomm):
    """The methods for a communicator after a rank has failed. They raise where mpi4py has only stand-ins."""

    _channel: Channel | None
    _part: Any

    def Shrink(self) -> Any:
        """Return the ranks that have not failed, of the class that Split gives. Raises FaultToleranceError."""
        check("Shrink")
        return self._part(super().Shrink())

    def Ishrink(self) -> Any:
        """Return (the ranks that have not failed, the request it is complete with); a plain MPI.Intracomm.

        Comm() makes one of this class of it, once the request is complete. Raises FaultToleranceError.
        """
        check("Ishrink")
        return super().Ishrink()

    def Agree(self, flag: int) -> int:
        """Agree on a flag with the ranks that have not failed. Raises FaultToleranceError."""
        check("Agree")
        return super().Agree(flag)

    def Iagree(self, flag: Any) -> MPI.Request:
        """Start Agree. Raises FaultToleranceError."""
        check("Iagree")
        return super().Iagree(flag)

    def Get_failed(self) -> MPI.Group:
        """Return the ranks that failed. Raises FaultToleranceError."""
        check("Get_failed")
        return super().Get_failed()

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Acknowledge ranks that failed. Raises FaultToleranceError."""
        check("Ack_failed")
        return super().Ack_failed(num_to_ack)

    def Revoke(self) -> None:
        """Have every rank's calls on this communicator fail. Raises FaultToleranceError."""
        check("Revoke")
        super().Revoke()
        channel = self._channel
        if channel is not None and not channel.queue.closed:
            channel.comm.Revoke()  # so that collectives in flight fail, too

    def Is_revoked(self) -> bool:
        """Return whether the communicator was revoked. Raises FaultToleranceError."""
        check("Is_revoked")
        return super().Is_revoked()
