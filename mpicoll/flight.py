"""A collective under way: a chain of stages, advanced without blocking until the last one is done."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from .engines import Execution, Waiting
from .errors import spans
from .select import Choice


class Stage(Protocol):
    """One thing a flight waits for: a plan in an engine, or an exchange of signatures."""

    def advance(self, seconds: float) -> bool:
        """Go on for at most so long; True when done."""

    def describe(self) -> list[str]:
        """What it waits for, a line each, for the report of a stall."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far; grows whenever anything moved."""


class Gathering:
    """A stage: an allgather of a small array by the MPI itself; `all` has a row for every rank when it is done."""

    what = "the recvcounts"

    def __init__(self, comm: MPI.Comm, mine: np.ndarray) -> None:
        self.mine, self.all = mine, np.empty((comm.size, len(mine)), mine.dtype)
        self.request = comm.Iallgather(self.mine, self.all)

    def advance(self, seconds: float) -> bool:
        """Poll until it is done or the seconds are over."""
        until = time.monotonic() + seconds
        while not self.request.Test():
            if time.monotonic() >= until:
                return False
            os.sched_yield()
        return True

    @property
    def progress(self) -> tuple[int, int, int]:
        """Nothing is seen to move."""
        return 0, 0, 0

    def describe(self) -> list[str]:
        """What it waits for."""
        return [f"waits for {self.what} of all ranks: some rank has not made this call"]


class Running:
    """A stage: a plan in its engine."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.advance = execution.advance

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far."""
        return self.execution.progress

    def describe(self) -> list[str]:
        """What each lane waits for."""
        return [_line(w) for w in self.execution.waiting()]


def _line(w: Waiting) -> str:
    parts = [
        f"{what} rank{'s' * (len(peers) > 1)} {spans(peers)}"
        for what, peers in (("to receive from", w.receives), ("to send to", w.sends))
        if peers
    ]
    return f"step {w.step} of chunk {w.chunk}, strand {w.strand}, waits {' and '.join(parts) or 'for its turn'}"


@dataclass(frozen=True)
class Record:
    """What ran, for traces: messages and bytes are what this rank posted and sent."""

    collective: str
    algorithm: str
    engine: str
    nbytes: int
    chunk_bytes: int | None
    lanes: int
    messages: int
    bytes: int
    sequence: int


class Flight:
    """One call of a collective on its way.

    stages are made one after the other, each when the one before is done. finish runs after the last.
    keep holds whatever memory the stages use; it is not let go when a stage broke off, since MPI may still write to it.
    """

    def __init__(
        self,
        choice: Choice,
        sequence: int,
        stages: Sequence[Callable[[], Stage]],
        finish: Callable[[], None],
        keep: Any,
    ) -> None:
        self.choice, self.sequence, self.keep = choice, sequence, keep
        self.stages = list(stages)
        self.finish = finish
        self.stage: Stage | None = None
        self.after: Flight | None = None  # the earlier flight with our tags
        self.done = False
        self.error: BaseException | None = None
        self.on_done: Callable[[], None] | None = None
        self.told = False  # whether the error has been raised to the user
        self.progress = (0, 0, 0)  # of the last stage that is done
        self.moved, self.seen, self.reported = time.monotonic(), (-1, -1, -1), False

    def step(self, seconds: float) -> bool:
        """Advance; True when done, with or without an error."""
        if self.done:
            return True
        if self.after is not None:
            if not self.after.done:
                return False
            self.after = None
        try:
            while self.stage is not None or self.stages:
                if self.stage is None:
                    self.stage = self.stages.pop(0)()
                if not self.stage.advance(seconds):
                    return False
                self.progress, self.stage = self.stage.progress, None
            self.finish()
        except BaseException as error:  # told to whoever waits for this flight
            self.error = error
        self.done = True
        if self.stage is None:
            self.keep = None
        if self.on_done is not None:
            self.on_done()
        return True

    def stalled(self, now: float) -> float:
        """Seconds since anything moved."""
        seen = self.stage.progress if self.stage is not None else self.progress
        if seen != self.seen:
            self.seen, self.moved = seen, now
        return now - self.moved

    def describe(self) -> list[str]:
        """What this flight waits for, a line each."""
        if self.after is not None:
            return [f"waits for call {self.after.sequence} to free its tags"]
        return self.stage.describe() if self.stage is not None else ["not started"]
