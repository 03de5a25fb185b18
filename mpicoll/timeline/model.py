"""The records of ranks: calls, their messages, and spans of the program, in seconds of one clock.

A row of messages is one of engines/events.py, with the peer as a rank of COMM_WORLD and the step as `mpicoll show`
counts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Span(NamedTuple):
    """A part of the program that has a name."""

    name: str
    began: float
    ended: float


class Call(NamedTuple):
    """A call on one rank: from when on the program waited for it, and a row of messages for each message.

    communicator, number and start, which start of a persistent collective it is, name it on all its ranks. facts say
    what was called and what ran. lost counts the messages that were not recorded.
    """

    communicator: str
    number: int
    start: int
    name: str
    facts: dict[str, Any]
    began: float
    waited: float
    ended: float
    messages: np.ndarray
    lost: int

    @property
    def key(self) -> tuple[str, int, int]:
        """Return what names the call on all ranks."""
        return self.communicator, self.number, self.start


class Identity(NamedTuple):
    """Names the run of a rank, its clock, which the processes of a host have in common, and its process."""

    run: str = ""
    clock: str = ""
    process: str = ""


# Columns of a turn: the thread, an index in THREADS; the call, an index in the calls of the rank; times in nanoseconds;
# messages posted, bytes sent and steps finished in the turn.
THREAD, CALL, BEGAN, ENDED, POSTED, SENT, STEPS = range(7)
TURN_COLUMNS = 7
TURN_TIMES = slice(BEGAN, ENDED + 1)
THREADS = "mpicoll-driver", "mpicoll-progress"  # as the system names them
NO_TURNS = np.empty((0, TURN_COLUMNS), np.int64)


class RankTimeline(NamedTuple):
    """The record of one rank of COMM_WORLD.

    dropped is how many calls were too many to keep, dropped_turns how many turns of progress threads.
    """

    rank: int
    host: str
    calls: list[Call]
    spans: list[Span]
    dropped: int
    error: float  # the most seconds by which its times may be wrong
    identity: Identity = Identity()
    turns: np.ndarray = NO_TURNS
    dropped_turns: int = 0


def on_clock(times: np.ndarray, clock: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return times in nanoseconds on another clock, a function of seconds; 0 stays, for what did not happen."""
    moved: np.ndarray = np.where(times > 0, np.round(clock(times * 1e-9) * 1e9), 0).astype(np.int64)
    return moved
