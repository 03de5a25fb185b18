"""Advance a collective in flight: a chain of stages, of which each begins when the previous one is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..schedules.collectives import BLOCKING
from ..selection.select import Choice
from .faults import contained, may_be_an_interrupt
from .stages import PlanStage, Stage
from .times import Clock
from .turns import CallNumbers

MAX_POLL_GAP = 1.0  # seconds: if polls are further apart, the rest does not count as a stall


class Raised(Exception):
    """Wrap an error of the call itself, such as a user operator's or its Ctrl-C, for the thread that waits."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class CallId(NamedTuple):
    """Identify a call on every rank: its number, the start of a persistent collective (else 0), and its method."""

    call: int
    start: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (call {self.call}{f', start {self.start}' if self.start else ''})"


class RecordedArguments(NamedTuple):
    """The arguments of a call in its history row: bytes as selection counts them, root or -1, operator or ""."""

    nbytes: int = 0
    root: int = -1
    operator: str = ""


class ErrorExplainer(Protocol):
    """The state of a communicator, which knows whether ranks have failed."""

    def explain(self, operation: Operation, error: BaseException) -> BaseException:
        """Return the error to raise from an operation for an error that a stage raised."""


class Operation:
    """One collective call in flight.

    - stages: functions that make the stages; each is called when the previous stage is done.
    - finish: called after the last stage.
    - keep: the memory that the stages use. It is not freed if a stage was aborted, since MPI may still write to it.
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
        self.clock = Clock()
        self.recorded_arguments = RecordedArguments()
        self.row = 0  # the serial of its row in the history of calls, 0 before it is written
        self.start = 0  # the number of the start of a persistent collective, else 0
        self.ring_number = 0  # of its communicator in timelines, 0 for what is no call of the program
        self.is_posted = False  # whether the fast path posted messages of its first stage
        self.stages = list(stages)
        self.finish: Callable[[], None] | None = finish
        self.stage: Stage | None = None
        self.predecessor: Operation | None = None  # an operation that must be done before this one begins
        self.done = False
        self.error: BaseException | None = None
        self.owner: ErrorExplainer | None = None  # the state on whose queue it is
        self.on_done: Callable[[], None] | None = None
        self.error_raised = False  # whether Wait or Test has raised the error
        self.is_message = False  # whether it is a message to or from one rank, not a collective
        self.raises_on_stall = False  # whether a stall that cannot end raises StallError instead of a report
        self.deadline = math.inf  # time.monotonic() after which it raises StallError
        self.abandoned = False  # whether it ended with messages in flight, by StallError
        self.progress = (0, 0, 0)  # of the last completed stage
        self.stalled_for, self.polled_at, self.last_progress, self.reported = 0.0, 0.0, (-1, -1, -1), False
        self.asked_after = 0.0  # the stalled seconds when this rank last asked the others

    def adopt_posted(self) -> None:
        """Make the first stage, whose messages the fast path has posted, without advancing it."""
        stage = self._next_stage()
        if isinstance(stage, PlanStage):
            stage.put_in_table()

    def _next_stage(self) -> Stage:
        """Begin the next stage; if it is a plan, name the call to the driver."""
        self.stage = stage = self.stages[0]()
        del self.stages[0]
        if isinstance(stage, PlanStage):
            stage.call = self.numbers
        return stage

    @property
    def numbers(self) -> CallNumbers:
        """Return the numbers by which timelines name the call."""
        return CallNumbers(self.ring_number, self.sequence, self.start)

    def step(self, seconds: float) -> bool:
        """Advance the stages. Return True when the operation is done and its request complete, also after an error.

        An exception from a signal handler, such as Ctrl-C, does not end the operation: step() raises it.
        """
        if self.done:
            return self._announce()  # again, if an interrupt or an error came before
        if self.predecessor is not None:
            if not self.predecessor.done:
                return False
            self.predecessor = None
        try:
            while self.stage is not None or self.stages:
                stage = self.stage or self._next_stage()
                if not stage.advance(seconds):
                    return False
                self.progress, self.stage = stage.progress, None
        except BaseException as error:  # raised later, by the call that waits for this operation
            if may_be_an_interrupt(error):
                raise
            self.error = error if self.owner is None else self.owner.explain(self, error)
            self._withdraw()
        else:
            self._finish()
        self.done = True
        if not self.was_aborted:  # a request may outlive the operation; its memory need not
            self.keep = self.finish = self.stage = None
            self.stages.clear()
        return self._announce()

    def _withdraw(self) -> None:
        """Remove the stage from the table, so that no thread advances it."""
        if isinstance(self.stage, PlanStage):
            self.stage.withdraw()

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
        """Call on_done. Return False if that failed: the next step() tries again."""
        with contained("completing a request"):
            self.announce()
        return self.on_done is None

    def announce(self) -> None:
        """Complete the request by on_done, once. Raises the errors of on_done."""
        on_done = self.on_done
        if on_done is not None:
            on_done()  # before it is cleared: after an interrupt on_done is called again
            self.on_done = None  # it refers to this operation: break the cycle

    @property
    def was_aborted(self) -> bool:
        """Return whether the operation ended with messages posted, so that MPI may still write to its memory."""
        return self.done and (self.abandoned or (self.stage is not None and not self.stage.is_over))

    @property
    def is_driven(self) -> bool:
        """Return whether compiled code advances the operation, or the predecessor for which it waits."""
        if self.predecessor is not None and not self.done:
            return self.predecessor.is_driven
        return isinstance(self.stage, PlanStage) and self.stage.is_driven

    def abandon(self, error: BaseException) -> None:
        """End with an error, with messages in flight. The memory stays, since MPI may still write to it."""
        self._withdraw()
        self.error, self.abandoned, self.done = error, True, True

    def raise_error(self) -> None:
        """Raise the operation's error, if any; a second call does nothing.

        The traceback refers to the caller's frames, and these to its buffers, so no reference to it may stay here.
        """
        error, self.error = self.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error

    @property
    def call_id(self) -> CallId:
        """Return the id of the call, the same on every rank."""
        return CallId(self.sequence, self.start, self.name)

    def stalled(self, now: float) -> float:
        """Return for how many seconds polls have found no progress.

        The time between distant polls, in which the program computes, does not count. Nor does waiting for the
        predecessor, which is checked itself.
        """
        if self.predecessor is not None and not self.predecessor.done:
            self.polled_at = now
            return 0.0
        if (progress := self.counters) != self.last_progress:
            self.last_progress, self.stalled_for, self.asked_after = progress, 0.0, 0.0
        else:
            self.stalled_for += min(now - self.polled_at, MAX_POLL_GAP)
        self.polled_at = now
        return self.stalled_for

    @property
    def counters(self) -> tuple[int, int, int]:
        """Return (messages posted, bytes sent, steps finished) of this stage, or of the last completed one."""
        return self.stage.progress if self.stage is not None else self.progress

    def describe(self) -> list[str]:
        """Describe what this operation waits for, one item per line."""
        if self.predecessor is not None:
            return [f"waits for call {self.predecessor.sequence}, which must be done first"]
        return self.stage.describe() if self.stage is not None else ["not started"]

    def waited_for(self) -> tuple[int, ...]:
        """Return the ranks whose messages, or receives, it waits for; none if only MPI knows them."""
        return self.stage.waited_for() if self.stage is not None else ()
