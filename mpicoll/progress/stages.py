"""The stages of an operation: what it waits for, one thing after the other."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from ..engines.protocol import Execution, PendingMessages
from ..errors import spans
from .table import UNDER_WAY, Row
from .thread import THREAD


class Stage(Protocol):
    """One thing an operation waits for: a plan in an engine, or an exchange of signatures."""

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds. Return True when done."""

    def describe(self) -> list[str]:
        """Return what it waits for, a line each, for the report of a stall."""

    def waited_for(self) -> tuple[int, ...]:
        """Return the ranks it waits for, where that is known."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far; grows whenever anything moved."""

    @property
    def over(self) -> bool:
        """Return whether MPI no longer uses the stage's memory, even if the stage raised after that."""


class Testable(Protocol):
    """A request of MPI's, or an object that can be polled like one."""

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Return whether it is complete."""


class RequestStage:
    """A stage: a request of MPI's own."""

    def __init__(self, request: Testable, what: str) -> None:
        self.request, self.what, self.over = request, what, False

    def advance(self, seconds: float) -> bool:
        """Poll until it is done or the seconds are over."""
        until = time.monotonic() + seconds
        while not self.request.Test():
            if time.monotonic() >= until:
                return False
            os.sched_yield()
        self.over = True
        return True

    @property
    def progress(self) -> tuple[int, int, int]:
        """Nothing is seen to move."""
        return 0, 0, 0

    def describe(self) -> list[str]:
        """Return what it waits for."""
        return [f"waits for {self.what} of all ranks"]

    def waited_for(self) -> tuple[int, ...]:
        """Only the MPI knows."""
        return ()


class Gathering(RequestStage):
    """A stage: an allgather of a small array by the MPI itself; `all` has a row for every rank when it is done."""

    def __init__(self, comm: MPI.Comm, mine: np.ndarray, what: str = "the recvcounts") -> None:
        self.mine, self.all = mine, np.empty((comm.size, len(mine)), mine.dtype)
        super().__init__(comm.Iallgather(self.mine, self.all), what)


class Running:
    """A stage: a plan in its engine, and in the table of plans that compiled code advances, if that can."""

    row: Row | None = None
    is_known = False  # whether it was asked for a row

    def __init__(self, execution: Execution) -> None:
        self.execution, self.over, self.code = execution, False, UNDER_WAY
        self.step = execution.compiled_step()

    def enlist(self) -> None:
        """Have compiled code advance it, in any thread. A call that an interrupt ended is to be made again."""
        if self.is_known:
            return
        if self.step is not None:
            self.row = self.row or THREAD.row()
            if self.row is not None:
                THREAD.put(self.row, self.step)
        self.is_known = True

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds. Return True when done."""
        self.enlist()
        if self.row is None or self.step is None:
            return self.execution.advance(seconds)
        if self.code == UNDER_WAY:  # else an interrupt came before the rest
            self.code = self.row.advance(seconds)
        if self.code == UNDER_WAY:
            return False
        self.row.give_up()
        if self.code < 0:
            raise self.step.error(-self.code)
        return True

    @property
    def is_driven(self) -> bool:
        """True while compiled code advances it, in any thread."""
        return self.row is not None and self.code == UNDER_WAY and not self.row.has_ended

    def withdraw(self) -> None:
        """Have no thread advance it any more."""
        if self.row is not None:
            self.row.give_up()
            self.row = None

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far."""
        return self.execution.progress

    def _pending(self) -> list[PendingMessages]:
        with self.row.held() if self.row is not None and self.is_driven else nullcontext():
            return self.execution.pending()

    def describe(self) -> list[str]:
        """Return what each lane waits for."""
        return [_line(lane) for lane in self._pending()]

    def waited_for(self) -> tuple[int, ...]:
        """Return the peers of all lanes."""
        return tuple({peer for lane in self._pending() for peer in (*lane.receives, *lane.sends)})


class Failed(Running):
    """A stage: a plan that the fast path began, and of which MPI has refused something; code is MPI's."""

    def __init__(self, execution: Any, code: int) -> None:
        super().__init__(execution)
        self.is_known = True  # and has none
        self.error = execution.error(code)

    def advance(self, seconds: float) -> bool:
        """Raise it."""
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
