"""Record when a call began and ended, and when the program began to wait for it, for timelines."""

from __future__ import annotations

import time
from typing import NamedTuple

from ..engines.events import POSTED, RECORDING, Events


class Times(NamedTuple):
    """The times of a call on this rank, in seconds of time.monotonic(), and the events of its plan.

    - waited: when the program began to wait for the call; equal to `ended` if the call was complete by then.
    - events: None for MPI's own collectives.
    """

    began: float
    waited: float
    ended: float
    events: Events | None


class Clock:
    """Record when a call begins and when the program begins to wait for it, if a timeline is recorded."""

    __slots__ = ("began", "is_blocking", "waited")

    def __init__(self, began: float = 0.0, is_blocking: bool = False) -> None:
        """Make the clock of a call that began at this time.monotonic(); 0: when its first message was posted."""
        self.began, self.waited, self.is_blocking = began, 0.0, is_blocking

    def wait_begins(self) -> None:
        """Record that the program waits from now on; a second call does nothing."""
        if RECORDING.users and not self.waited:
            self.waited = time.monotonic()

    def times(self, events: Events | None = None) -> Times | None:
        """Return the times of the call, which ends now; None if no timeline is recorded."""
        if not RECORDING.users:
            return None
        ended = time.monotonic()
        first = float(events.rows[0, POSTED]) * 1e-9 if events is not None and len(events.rows) else ended
        began = min(self.began or first, ended)
        return Times(began, began if self.is_blocking else max(self.waited or ended, began), ended, events)


def now() -> float:
    """Return time.monotonic() if a timeline is recorded, else 0."""
    return time.monotonic() if RECORDING.users else 0.0
