"""Define a communicator's methods for use after ranks have failed: those of ULFM."""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from mpi4py import MPI

from ..diagnostics import watchdog
from ..diagnostics.fault_tolerance import agree_on, free_id_allocator, missing
from ..errors import CommError, FaultToleranceError
from ..runtime.comm_state import CommState


def check_supported(method: str) -> None:
    """Raise FaultToleranceError if MPI does not survive failures, where mpi4py's methods would return wrong results."""
    if why := missing():
        raise FaultToleranceError(f"{method} does not work here after a rank has failed: {why}")


class RecoveryRequest(MPI.Request):
    """The request of Iagree or Ishrink. The status thread reports a Wait that stalls."""

    _call: watchdog.RecoveryCall

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until the call is complete."""
        self._call.began = time.monotonic()
        try:
            return super().Wait(status)
        finally:
            self._call.began = math.inf


class FaultTolerance(MPI.Intracomm):
    """The methods of ULFM. They raise FaultToleranceError if MPI does not survive the failure of a rank."""

    _state: CommState | None
    _of_class_without_topology: Any

    @contextmanager
    def _reported(self, name: str) -> Iterator[None]:
        """Have the status thread report the call in the block if it stalls."""
        if (state := self._state) is None:
            yield
            return
        previous, state.recovery_call = state.recovery_call, watchdog.RecoveryCall(name, time.monotonic())
        try:
            yield
        finally:
            state.recovery_call = previous

    def _watched(self, name: str, request: MPI.Request) -> MPI.Request:
        """Return the request as one whose Wait is reported if it stalls."""
        if (state := self._state) is None:
            return request
        watched = RecoveryRequest(request)
        watched._call = state.recovery_call = watchdog.RecoveryCall(name, request=weakref.ref(watched))
        return watched

    def Shrink(self) -> Any:
        """Return a communicator of the ranks that have not failed, of the class that Split returns."""
        check_supported("Shrink")
        with self._reported("Shrink"):
            free_id_allocator()
            comm: Any = super().Shrink()
            agree_on(comm, 1)
            try:
                return self._of_class_without_topology(comm)
            except MPI.Exception:
                comm.Revoke()  # another rank has failed meanwhile, and others may wait for this rank
                raise

    def Ishrink(self) -> Any:
        """Return (a communicator of the ranks that have not failed, the request that completes when it is usable).

        It is a plain MPI.Intracomm; pass it to Comm() once the request is complete.
        """
        check_supported("Ishrink")
        comm, request = super().Ishrink()
        return comm, self._watched("Ishrink", request)

    def Agree(self, flag: int) -> int:
        """Return the bitwise AND of the flags of all ranks that have not failed."""
        check_supported("Agree")
        with self._reported("Agree"):
            return super().Agree(flag)

    def Iagree(self, flag: Any) -> MPI.Request:
        """Start Agree."""
        check_supported("Iagree")
        return self._watched("Iagree", super().Iagree(flag))

    def Get_failed(self) -> MPI.Group:
        """Return the group of ranks that failed."""
        check_supported("Get_failed")
        return super().Get_failed()

    def Ack_failed(self, num_to_ack: int | None = None) -> int:
        """Acknowledge ranks that failed."""
        check_supported("Ack_failed")
        return super().Ack_failed(num_to_ack)

    def Revoke(self) -> None:
        """Revoke the communicator: calls on it fail on every rank.

        Raises CommError for a duplicate that Idup has not completed.
        """
        check_supported("Revoke")
        state = self._state
        if state is None and self != MPI.COMM_NULL:
            raise CommError("this duplicate is not complete; wait for the request of Idup before you revoke it")
        super().Revoke()
        if state is not None and not state.queue.closed:
            state.rank_failure.revoke()  # so that collectives in flight fail too

    def Is_revoked(self) -> bool:
        """Return whether the communicator was revoked."""
        check_supported("Is_revoked")
        return super().Is_revoked()
