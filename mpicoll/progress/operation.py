"""A collective in flight: a chain of stages, advanced without blocking until the last one is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..schedules.collectives import BLOCKING
from ..selection.select import Choice
from .faults import contained, may_be_an_interrupt
from .stages import Running, Stage
from .times import Clock

GLANCE = 1.0  # the most seconds between two polls of an operation that count as a stall


class Raised(Exception):
    """An error of the call itself, such as a user operator's, Ctrl-C too: raised in the thread that waits for it."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class CallId(NamedTuple):
    """The id of a call, the same on every rank: its number, how often a persistent one was started, its method."""

    call: int
    start: int
    name: str

    def __str__(self) -> str:
        return f"{self.name} (call {self.call}{f', start {self.start}' if self.start else ''})"


class Passed(NamedTuple):
    """The arguments of a call in which ranks may differ: bytes as selection counts them, root or -1, operator."""

    nbytes: int = 0
    root: int = -1
    operator: str = ""


class Explaining(Protocol):
    """A communicator, which knows what an error of MPI means."""

    def explain(self, operation: Operation, error: BaseException) -> BaseException:
        """Return the error that an operation ends with, for one that a stage has raised."""


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
        self.clock = Clock()
        self.passed = Passed()
        self.row = 0  # the serial of its row in the history of calls, 0 before it is written
        self.start = 0  # which start of a persistent collective
        self.is_begun = False  # whether its messages were posted before it was an operation
        self.stages = list(stages)
        self.finish: Callable[[], None] | None = finish
        self.stage: Stage | None = None
        self.after: Operation | None = None  # the earlier operation that must be done first
        self.done = False
        self.error: BaseException | None = None
        self.owner: Explaining | None = None  # the communicator on which it is in flight
        self.on_done: Callable[[], None] | None = None
        self.told = False  # whether the error has been raised to the user
        self.is_message = False  # whether it concerns one other rank, and is no call that all ranks make
        self.gives_up = False  # whether it ends with a StallError, not a report, when waiting cannot help
        self.deadline = math.inf  # time.monotonic() after which it raises StallError
        self.abandoned = False  # whether it ended so
        self.progress = (0, 0, 0)  # of the last stage that is done
        self.still, self.looked, self.seen, self.reported = 0.0, 0.0, (-1, -1, -1), False
        self.asked = 0.0  # how long it had stalled when the other ranks were last asked

    def take_up(self) -> None:
        """Make the first stage, whose messages are posted already; it is not advanced."""
        self.stage = self.stages[0]()
        del self.stages[0]
        if isinstance(self.stage, Running):
            self.stage.enlist()

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
            self.error = error if self.owner is None else self.owner.explain(self, error)
            self._withdraw()
        else:
            self._finish()
        self.done = True
        if not self.broke_off:  # a request may outlive the operation; its memory need not
            self.keep = self.finish = self.stage = None
            self.stages.clear()
        return self._announce()

    def _withdraw(self) -> None:
        """Have no thread advance the stage any more."""
        if isinstance(self.stage, Running):
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

    @property
    def is_driven(self) -> bool:
        """True while compiled code advances it, or the earlier operation that must be done first."""
        if self.after is not None and not self.done:
            return self.after.is_driven
        return isinstance(self.stage, Running) and self.stage.is_driven

    def abandon(self, error: BaseException) -> None:
        """End with an error, even with messages in flight. Its memory stays, since MPI may still write to it."""
        self._withdraw()
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
