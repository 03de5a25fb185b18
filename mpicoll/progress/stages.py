"""Define the stages of an operation: a plan, a request of MPI, or an allgather of a few words."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from ..engines.protocol import Execution, PendingMessages
from ..errors import spans
from .table import IN_PROGRESS, Row
from .thread import THREAD
from .turns import NO_CALL


class Stage(Protocol):
    """A part of an operation that completes before the next part begins."""

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds. Return True when done."""

    def describe(self) -> list[str]:
        """Describe what the stage waits for, one item per line, for the report of a stall."""

    def waited_for(self) -> tuple[int, ...]:
        """Return the ranks for which the stage waits; none if unknown."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (messages posted, bytes sent, steps finished) so far; a number grows whenever anything moves."""

    @property
    def is_over(self) -> bool:
        """Return whether MPI has finished with the stage's memory, also if the stage raised after that."""


class Testable(Protocol):
    """A request of MPI, or an object with its method Test."""

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether the request is complete."""


class RequestStage:
    """A stage that waits for a request of MPI; `what` names it in reports."""

    def __init__(self, request: Testable, what: str) -> None:
        self.request, self.what, self.is_over = request, what, False

    def advance(self, seconds: float) -> bool:
        """Poll the request for at most so many seconds. Return True when it is complete."""
        until = time.monotonic() + seconds
        while not self.request.Test():
            if time.monotonic() >= until:
                return False
            os.sched_yield()
        self.is_over = True
        return True

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return zeros: MPI does not report progress."""
        return 0, 0, 0

    def describe(self) -> list[str]:
        """Describe the request."""
        return [f"waits for {self.what} of all ranks"]

    def waited_for(self) -> tuple[int, ...]:
        """Return no ranks: only MPI knows them."""
        return ()


class AllgatherStage(RequestStage):
    """A stage that allgathers a small array by MPI_Iallgather; once done, `all` has a row for every rank."""

    def __init__(self, comm: MPI.Comm, mine: np.ndarray, what: str = "the recvcounts") -> None:
        self.mine, self.all = mine, np.empty((comm.size, len(mine)), mine.dtype)
        super().__init__(comm.Iallgather(self.mine, self.all), what)


class PlanStage:
    """A stage that runs a plan. A plan of the compiled engine is put into the table that compiled code advances."""

    row: Row | None = None
    is_put = False  # whether put_in_table() has run
    call = NO_CALL  # to which timelines ascribe what the driver does for the plan

    def __init__(self, execution: Execution) -> None:
        self.execution, self.is_over, self.code = execution, False, IN_PROGRESS
        self.step = execution.compiled_step()

    def put_in_table(self) -> None:
        """Put the plan into the table, where any thread advances it, once. Call this again after an interrupt."""
        if self.is_put:
            return
        if self.step is not None:
            self.row = self.row or THREAD.row()
            if self.row is not None:
                THREAD.put(self.row, self.step, self.call)
        self.is_put = True

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds. Return True when done."""
        self.put_in_table()
        if self.row is None or self.step is None:
            return self.execution.advance(seconds)
        if self.code == IN_PROGRESS:  # else an interrupt came after the plan had ended
            self.code = self.row.advance(seconds)
        if self.code == IN_PROGRESS:
            return False
        self.row.free()
        if self.code < 0:
            raise self.step.error(-self.code)
        return True

    @property
    def is_driven(self) -> bool:
        """Return whether the plan is in the table and has not ended."""
        return self.row is not None and self.code == IN_PROGRESS and not self.row.has_ended

    def withdraw(self) -> None:
        """Remove the plan from the table, so that no thread advances it."""
        if self.row is not None:
            self.row.free()
            self.row = None

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (messages posted, bytes sent, steps finished) so far."""
        return self.execution.progress

    def _pending(self) -> list[PendingMessages]:
        with self.row.held() if self.row is not None and self.is_driven else nullcontext():
            return self.execution.pending()

    def describe(self) -> list[str]:
        """Describe what every lane waits for, one lane per line."""
        return [_line(lane) for lane in self._pending()]

    def waited_for(self) -> tuple[int, ...]:
        """Return the peers of the pending messages of all lanes."""
        return tuple({peer for lane in self._pending() for peer in (*lane.receives, *lane.sends)})


class FailedStage(PlanStage):
    """A stage for a plan that the fast path began and MPI failed, with this error code."""

    def __init__(self, execution: Any, code: int) -> None:
        super().__init__(execution)
        self.is_put = True  # never put into the table
        self.error = execution.error(code)

    def advance(self, seconds: float) -> bool:
        """Raise the error."""
        raise self.error


def _line(pending: PendingMessages) -> str:
    parts = [
        f"{what} rank{'s' * (len(peers) > 1)} {spans(peers)}"
        for what, peers in (("to receive from", pending.receives), ("to send to", pending.sends))
        if peers
    ]
    return (
        f"step {pending.step} of chunk {pending.chunk}, strand {pending.strand}, "
        f"waits {' and '.join(parts) or 'for its turn'}"
    )
