"""When a call began and ended, and from when on the program waited for it, while a timeline is recorded."""

from __future__ import annotations

from typing import NamedTuple

from mpi4py import MPI

from ..engines.events import POSTED, RECORDING, Events


class Times(NamedTuple):
    """When a call began and ended on this rank, in seconds of MPI.Wtime, and the events of its plan.

    waited is when the program began to wait for it: `ended` if the call was complete by then. events is None for MPI's
    own collectives.
    """

    began: float
    waited: float
    ended: float
    events: Events | None


class Clock:
    """Notes when a call begins and when the program begins to wait for it; it notes nothing if no timeline runs."""

    __slots__ = ("began", "is_blocking", "waited")

    def __init__(self, began: float = 0.0, is_blocking: bool = False) -> None:
        """For a call that began then, in seconds of MPI.Wtime; 0: when its first message was posted."""
        self.began, self.waited, self.is_blocking = began, 0.0, is_blocking

    def wait_begins(self) -> None:
        """Note that the program waits from now on, the first time."""
        if RECORDING.users and not self.waited:
            self.waited = MPI.Wtime()

    def times(self, events: Events | None = None) -> Times | None:
        """Return the times of the call, which ends now; None if no timeline runs."""
        if not RECORDING.users:
            return None
        ended = MPI.Wtime()
        first = float(events.rows[0, POSTED]) * 1e-9 if events is not None and len(events.rows) else ended
        began = min(self.began or first, ended)
        return Times(began, began if self.is_blocking else max(self.waited or ended, began), ended, events)


def now() -> float:
    """Return the time if a timeline runs, else 0."""
    return MPI.Wtime() if RECORDING.users else 0.0
