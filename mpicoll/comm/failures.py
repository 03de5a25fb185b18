"""The methods of a communicator for what follows the failure of a rank. They raise where no rank may fail."""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from ..diagnostics.fault_tolerance import await_others, missing
from ..errors import FaultToleranceError
from ..runtime.comm_state import CommState


def check(method: str) -> None:
    """Raise FaultToleranceError where a method for ranks that failed would only seem to work."""
    if why := missing():
        raise FaultToleranceError(f"{method} does not work here after a rank has failed: {why}")


class Survivors(MPI.Intracomm):
    """The methods for a communicator after a rank has failed. They raise where mpi4py has only stand-ins."""

    _state: CommState | None
    _part: Any

    def Shrink(self) -> Any:
        """Return the ranks that have not failed, of the class that Split gives. Raises FaultToleranceError."""
        check("Shrink")
        comm: Any = super().Shrink()
        await_others(comm)
        try:
            return self._part(comm)
        except MPI.Exception:
            comm.Revoke()  # a rank has failed meanwhile, and others may wait for this one
            raise

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
        state = self._state
        if state is not None and not state.queue.closed:
            state.rank_failure.revoke()  # so that collectives in flight fail, too

    def Is_revoked(self) -> bool:
        """Return whether the communicator was revoked. Raises FaultToleranceError."""
        check("Is_revoked")
        return super().Is_revoked()
