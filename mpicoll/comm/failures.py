"""Define a communicator's methods for use after ranks have failed: those of ULFM."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from ..diagnostics import watchdog
from ..diagnostics.fault_tolerance import agree_on, free_id_allocator, missing
from ..errors import CommError, FaultToleranceError
from ..progress.operation import Operation
from ..progress.stages import RequestStage
from ..progress.thread import ProgressThread
from ..runtime.comm_state import CommState
from ..schedules.collectives import NONBLOCKING
from ..selection.select import native_choice
from .requests import Request

_NO_ISHRINK = "MPI_Comm_ishrink of Open MPI 5.0 does not work after a rank has failed; call Shrink"


def check_supported(method: str) -> None:
    """Raise FaultToleranceError if MPI does not survive failures, where mpi4py's methods would return wrong results."""
    if why := missing():
        raise FaultToleranceError(f"{method} does not work here after a rank has failed: {why}")


class RecoveryStage(RequestStage):
    """A stage that waits for Iagree or Ishrink, and leaves MPI's error to finish().

    Agree is for use after a failure. So its error revokes nothing, unlike the errors of other stages.
    """

    error: MPI.Exception | None = None

    def advance(self, seconds: float) -> bool:
        """Poll the request for at most so many seconds. Return True when it is complete, also with an error."""
        try:
            return super().advance(seconds)
        except MPI.Exception as error:
            self.error, self.is_over = error, True
            return True

    def describe(self) -> list[str]:
        """Describe the ranks that complete the request."""
        return ["waits for every rank that has not failed"]

    def finish(self) -> None:
        """Raise MPI's error, if any; for Ishrink one that says what to call instead."""
        error, self.error = self.error, None
        if error is not None and self.what == "Ishrink" and error.Get_error_class() == MPI.ERR_INTERN:
            raise FaultToleranceError(_NO_ISHRINK) from error
        if error is not None:
            raise error


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

    def _in_background(self, name: str, request: MPI.Request, keep: object) -> MPI.Request:
        """Return a request that completes with MPI's, and that is reported if it stalls; it keeps an object alive."""
        state = self._state
        if state is None or not (state.settings.progress and ProgressThread.is_supported()):
            return request  # MPI's own Waitall would not advance another one
        stage, choice = RecoveryStage(request, name), native_choice(name.lower(), "recovery")
        operation = Operation(
            choice, state.next_sequence(), [lambda: stage], stage.finish, (keep, request), NONBLOCKING, name=name
        )
        return Request.launch(state, operation)

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

        It is a plain MPI.Intracomm; pass it to Comm() once the request is complete. On Open MPI 5.0 the request raises
        FaultToleranceError if a rank has failed: call Shrink.
        """
        check_supported("Ishrink")
        comm, request = super().Ishrink()
        return comm, self._in_background("Ishrink", request, comm)

    def Agree(self, flag: int) -> int:
        """Return the bitwise AND of the flags of all ranks that have not failed."""
        check_supported("Agree")
        with self._reported("Agree"):
            return super().Agree(flag)

    def Iagree(self, flag: Any) -> MPI.Request:
        """Start Agree."""
        check_supported("Iagree")
        return self._in_background("Iagree", super().Iagree(flag), flag)

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
