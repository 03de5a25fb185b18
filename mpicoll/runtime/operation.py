"""A collective in flight: a chain of stages, advanced without blocking until the last one is done."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from ..engines.protocol import Execution, Waiting
from ..errors import spans
from ..schedules.collectives import BLOCKING
from ..selection.select import Choice
from .faults import contained, may_be_an_interrupt
from .status import CallId

GLANCE = 1.0  # the most seconds between two polls of an operation that count as a stall


class Raised(Exception):
    """An error of the call itself, such as a user operator's, Ctrl-C too: raised in the thread that waits for it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


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
    """A stage: a plan in its engine."""

    def __init__(self, execution: Execution) -> None:
        self.execution, self.over = execution, False

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds. Return True when done."""
        return self.execution.advance(seconds)

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far."""
        return self.execution.progress

    def describe(self) -> list[str]:
        """Return what each lane waits for."""
        return [_line(w) for w in self.execution.waiting()]

    def waited_for(self) -> tuple[int, ...]:
        """Return the peers of all lanes."""
        return tuple({peer for w in self.execution.waiting() for peer in (*w.receives, *w.sends)})


class Failed(Running):
    """A stage: a plan that the fast path began, and of which MPI has refused something; code is MPI's."""

    def __init__(self, execution: Any, code: int) -> None:
        super().__init__(execution)
        self.error = execution.error(code)

    def advance(self, seconds: float) -> bool:
        """Raise it."""
        raise self.error


def _line(w: Waiting) -> str:
    parts = [
        f"{what} rank{'s' * (len(peers) > 1)} {spans(peers)}"
        for what, peers in (("to receive from", w.receives), ("to send to", w.sends))
        if peers
    ]
    return f"step {w.step} of chunk {w.chunk}, strand {w.strand}, waits {' and '.join(parts) or 'for its turn'}"


@dataclass(frozen=True)
class Record:
    """The record of a call, for traces: the messages this rank posted, and the bytes that it sent and received.

    why names no sizes, so that it is equal for calls served for the same reason. fast_path says whether the call took
    the fast path.
    """

    collective: str
    form: str
    algorithm: str
    engine: str
    nbytes: int
    chunk_bytes: int | None
    lanes: int
    messages: int
    bytes: int
    sequence: int
    why: str
    fast_path: bool = False
    received: int = 0


class Sink(Protocol):
    """A list of records, or an object that counts them."""

    def append(self, record: Record, /) -> None:
        """Store or count one record."""


class Operation:
    """One call of a collective in flight.

    stages are made one after the other, each when the previous one is done. finish runs after the last.
    keep holds the memory that the stages use. It is not freed if a stage broke off, since MPI may still write to it.
    """

    def __init__(
        self,
        choice: Choice,
        sequence: int,
        stages: Sequence[Callable[[], Stage]],
        finish: Callable[[], None],
        keep: Any,
        form: str = BLOCKING,
        name: str = "",
    ) -> None:
        self.choice, self.sequence, self.keep, self.form = choice, sequence, keep, form
        self.name = name or choice.collective
        self.start = 0  # which start of a persistent collective
        self.is_begun = False  # whether its messages were posted before it was an operation
        self.stages = list(stages)
        self.finish: Callable[[], None] | None = finish
        self.stage: Stage | None = None
        self.after: Operation | None = None  # the earlier operation that must be done first
        self.done = False
        self.error: BaseException | None = None
        self.on_done: Callable[[], None] | None = None
        self.told = False  # whether the error has been raised to the user
        self.is_message = False  # whether it concerns one other rank, and is no call that all ranks make
        self.gives_up = False  # whether it ends with a StallError, not a report, when waiting cannot help
        self.deadline = math.inf  # time.monotonic() after which it raises StallError
        self.abandoned = False  # whether it ended so
        self.progress = (0, 0, 0)  # of the last stage that is done
        self.still, self.looked, self.seen, self.reported = 0.0, 0.0, (-1, -1, -1), False
        self.asked = 0.0  # how long it had stalled when the other ranks were last asked

    def step(self, seconds: float) -> bool:  # noqa: C901 - every way in which an operation ends
        """Advance. Return True when done and announced, with or without an error.

        An exception from a signal handler, Ctrl-C or a timeout, does not end the operation: step() raises it.
        """
        if self.done:
            return self._announce()  # if an interrupt or an error came before that
        if self.after is not None:
            if not self.after.done:
                return False
            self.after = None
        try:
            while self.stage is not None or self.stages:
                if self.stage is None:
                    self.stage = self.stages[0]()
                    del self.stages[0]
                if not self.stage.advance(seconds):
                    return False
                self.progress, self.stage = self.stage.progress, None
        except BaseException as error:  # raised later, by the call that waits for this operation
            if may_be_an_interrupt(error):
                raise
            self.error = error
        else:
            self._finish()
        self.done = True
        if not self.broke_off:  # a request may outlive the operation; its memory need not
            self.keep = self.finish = self.stage = None
            self.stages.clear()
        return self._announce()

    def _finish(self) -> None:
        assert self.finish is not None
        try:
            self.finish()
        except Raised as raised:
            self.error = raised.error
        except BaseException as error:
            if not isinstance(error, Exception) and may_be_an_interrupt(error):
                raise
            self.error = error

    def _announce(self) -> bool:
        """Call on_done. Return False if that failed: the next step tries again."""
        with contained("completing a request"):
            self.announce()
        return self.on_done is None

    def announce(self) -> None:
        """Call on_done, if that is still due. Raises what that raises."""
        on_done = self.on_done
        if on_done is not None:
            on_done()  # first: it may be called again after an interrupt, but must not be left out
            self.on_done = None  # it knows this operation: no cycle stays

    @property
    def broke_off(self) -> bool:
        """Return whether it ended with messages posted, so that MPI may still write to its memory."""
        return self.done and (self.abandoned or (self.stage is not None and not self.stage.over))

    def abandon(self, error: BaseException) -> None:
        """End with an error, even with messages in flight. Its memory stays, since MPI may still write to it."""
        self.error, self.abandoned, self.done = error, True, True

    def tell(self) -> None:
        """Raise the operation's error, the first time.

        The traceback holds the caller's frames, and these the caller's buffers, so no reference to it may stay here.
        """
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    @property
    def call_id(self) -> CallId:
        """Return the id by which other ranks know this call."""
        return CallId(self.sequence, self.start, self.name)

    def stalled(self, now: float) -> float:
        """Return the seconds in which polls found no progress; time in which the program computes does not count.

        Nor does the time spent waiting for an earlier operation, which is checked itself.
        """
        if self.after is not None and not self.after.done:
            self.looked = now
            return 0.0
        seen = self.stage.progress if self.stage is not None else self.progress
        if seen != self.seen:
            self.seen, self.still, self.asked = seen, 0.0, 0.0
        else:
            self.still += min(now - self.looked, GLANCE)
        self.looked = now
        return self.still

    def describe(self) -> list[str]:
        """Return what this operation waits for, a line each."""
        if self.after is not None:
            return [f"waits for call {self.after.sequence}, which must be done first"]
        return self.stage.describe() if self.stage is not None else ["not started"]

    def waited_for(self) -> tuple[int, ...]:
        """Return the ranks whose messages it needs, or which have to take its own; none where only the MPI knows."""
        return self.stage.waited_for() if self.stage is not None else ()
