"""Events of plans in progress: when an engine posted each message, when its step's messages arrived, and were reduced.

Engines record events only while a timeline is recorded. A row of a table is one message, or a step that has none.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple, Protocol

import numpy as np

from ..plans.rolled import RolledPlan

# Columns of a row. Times are nanoseconds of MPI_Wtime. A step is complete at ARRIVED, and its local work is at ENDED;
# both are 0 before. STEP and TURN are those of the rolled plan.
KIND, PEER, NBYTES, STRAND, SLOT, CHUNK, STEP, TURN, POSTED, ARRIVED, ENDED = range(11)
COLUMNS = 11
NO_MESSAGE = -1  # the kind of a step without messages
MOST = 1 << 16  # rows of one call that are kept


class Events(NamedTuple):
    """The events of one call on this rank, and how many did not fit."""

    plan: RolledPlan
    rows: np.ndarray
    lost: int
    tag: int  # of the call's first message, by which other ranks' events match


class Recorded(Protocol):
    """An execution, which records events if it is asked."""

    def record_events(self, on: bool) -> None:
        """Record events from now on, or no more."""


class Recording:
    """A switch: engines record events while at least one timeline needs them."""

    def __init__(self) -> None:
        self.users = 0
        self.executions: weakref.WeakSet[Recorded] = weakref.WeakSet()

    def add(self, execution: Recorded) -> None:
        """Have an execution that was just made record events as all others do."""
        self.executions.add(execution)
        if self.users:
            execution.record_events(True)

    def begin(self) -> None:
        """Have all executions record events."""
        self.users += 1
        self._tell()

    def end(self) -> None:
        """Take back one begin()."""
        self.users -= 1
        self._tell()

    def _tell(self) -> None:
        for execution in list(self.executions):
            execution.record_events(self.users > 0)


RECORDING = Recording()


def room(plan: RolledPlan) -> int:
    """Return how many rows a call of this plan is given; with other counts it may have more chunks."""
    return min(MOST, max(1024, plan.all_rows * plan.lanes))
