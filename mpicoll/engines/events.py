"""Record when an engine posts each message, when its step's messages arrive, and when its local work ends.

Engines record events only while a timeline is recorded. A row of a table is a message, or a step without messages.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple, Protocol

import numpy as np

from ..plans.rolled import RolledPlan

# Columns of a row. Times are nanoseconds of the monotonic clock, which MPI_Wtime is not on MPICH. A step is complete at
# ARRIVED, and its local work is at ENDED; both are 0 before. STEP and TURN are those of the rolled plan.
KIND, PEER, NBYTES, STRAND, SLOT, CHUNK, STEP, TURN, POSTED, ARRIVED, ENDED = range(11)
COLUMNS = 11
NO_MESSAGE = -1  # the kind of a step without messages
MAX_EVENTS = 1 << 16  # recorded rows of one call


class Events(NamedTuple):
    """The events of one call on this rank, and the number that did not fit in the table."""

    plan: RolledPlan
    rows: np.ndarray
    lost: int
    tag: int  # of the call's first message; equal on all ranks, so that their events can be matched


class Recorder(Protocol):
    """The method of an execution that starts and stops recording."""

    def record_events(self, on: bool) -> None:
        """Start or stop recording events."""


class Recording:
    """A switch that all executions obey: they record events while at least one timeline needs them."""

    def __init__(self) -> None:
        self.users = 0
        self.executions: weakref.WeakSet[Recorder] = weakref.WeakSet()

    def add(self, execution: Recorder) -> None:
        """Apply the switch to a new execution, now and whenever it changes."""
        self.executions.add(execution)
        if self.users:
            execution.record_events(True)

    def begin(self) -> None:
        """Make all executions record events, until the matching end()."""
        self.users += 1
        self._apply()

    def end(self) -> None:
        """Undo one begin(); after the last, executions stop recording."""
        self.users -= 1
        self._apply()

    def _apply(self) -> None:
        for execution in list(self.executions):
            execution.record_events(self.users > 0)


RECORDING = Recording()


def capacity(plan: RolledPlan) -> int:
    """Return the rows to allocate for a call of this plan, with spare ones: other counts may need more chunks."""
    return min(MAX_EVENTS, max(1024, plan.all_rows * plan.lanes))
