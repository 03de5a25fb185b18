"""The turns of calls that return before they are complete: nonblocking and persistent ones, and those of torch.

Several may be in flight, and none may wait for another rank before it returns. So a turn is an operation that begins
with a barrier, and the last one ends with an exchange of all times. Which call uses which algorithm must not depend on
when a rank learned of the outcome: a nonblocking call that begins before this rank knows it waits for that exchange, as
a stage, and its plan is chosen then. A persistent call has turns of its own, and starts only when it is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from mpi4py import MPI

from ..progress.operation import Operation
from ..progress.stages import Stage
from ..runtime.comm_state import CommState
from ..selection.learning import Lesson
from ..selection.rules import Rule
from ..selection.select import Choice
from .call import Call
from .count_exchange import NumbersExchange
from .execute import ActiveCall
from .prepare import prepare_by


class OverlappingLesson(Lesson):
    """The turns of such calls; last is the operation of the last turn, and best the candidate that was agreed on in it.

    agreed is the rule for it: of what auto chose, the first, where a rank ran a turn without its compiled kernels.
    """

    def begin(self) -> None:
        """Begin with the first turn."""
        super().begin()
        self.in_flight: list[Operation] = []
        self.last: Operation | None = None
        self.agreed: Rule | None = None
        self.best = 0

    def turn(self, operation: Operation, is_in_doubt: bool) -> Operation:
        """Have an operation, not launched yet, be the next turn: of the candidate with which it was prepared."""
        turn, start, stages, under_way = self.take_turn(is_in_doubt), 0.0, operation.stages, operation.keep

        def barrier() -> Stage:
            return _exchange(under_way, np.zeros(1, np.int64), lambda every: None)

        def begin() -> Stage:
            nonlocal start
            start = MPI.Wtime()
            return stages[0]()

        def end(earlier: Sequence[Operation]) -> Stage:
            self.note(turn, MPI.Wtime() - start)
            return Until(earlier)

        self.in_flight = [other for other in self.in_flight if not other.done]
        operation.stages = [barrier, begin, *stages[1:], partial(end, self.in_flight if self.is_over else ())]
        if self.is_over:
            operation.stages.append(partial(self._exchange_times, under_way))
            self.last = operation
        else:
            self.in_flight.append(operation)
        return operation

    def _exchange_times(self, under_way: ActiveCall) -> Stage:
        return _exchange(under_way, np.append(self.measured(), self.is_in_doubt), self._agree)

    def _agree(self, every: np.ndarray) -> None:
        """Decide by the times of the slowest rank, which all ranks know now."""
        *slowest, is_in_doubt = every.max(axis=0)
        us, self.is_in_doubt = np.reshape(slowest, (len(self.candidates), -1)), bool(is_in_doubt)
        if self.is_in_doubt:
            us[1:] = np.inf
        self.best, self.agreed = self.fastest(us), self.rule(us)
        if self.is_in_doubt:
            why = "kernels were compiled while calls took turns, so auto's choice stays"
            self.agreed = self.agreed._replace(why=why)

    def follow(self, state: CommState, operation: Operation) -> Operation:
        """Have an operation, not launched yet, wait until this rank knows the outcome, and go by it."""
        last, under_way, start = self.last, operation.keep, operation.stages[0]
        assert last is not None and isinstance(under_way, ActiveCall)

        def begin() -> Stage:
            if self.agreed is not None:
                operation.choice = _go_by(state, under_way.call, self.agreed)
            return start()

        operation.stages[:1] = [lambda: Until([last]), begin]
        return operation


def _exchange(under_way: ActiveCall, mine: np.ndarray, on_numbers: Callable[[np.ndarray], None]) -> NumbersExchange:
    """Return a stage that exchanges numbers by the tags of a call, so that calls may start in any order."""
    engine = under_way.call.prepared.choice.engine
    return NumbersExchange(under_way.comm, under_way.tags, engine, mine, on_numbers)


def _go_by(state: CommState, call: Call, rule: Rule) -> Choice:
    """Prepare a call again by a rule, and return the choice."""
    choice = replace(call.prepared.choice, algorithm=rule.algorithm, chunk_bytes=rule.chunk_bytes, window=rule.window)
    choice = replace(choice, why=rule.why, rule=rule.why, measured=True)
    call.prepared = prepare_by(state, call, choice)
    return choice


class Until:
    """A stage: operations that must be done first."""

    is_over, progress = True, (0, 0, 0)

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations

    def advance(self, seconds: float) -> bool:
        """Return whether they are done; their queue advances them."""
        return all(operation.done for operation in self.operations)

    def describe(self) -> list[str]:
        """Return which they are."""
        waiting = [operation for operation in self.operations if not operation.done]
        return [f"waits for {operation.call_id}, which must be done first" for operation in waiting]

    def waited_for(self) -> tuple[int, ...]:
        """Return the ranks that they wait for."""
        return tuple({rank for operation in self.operations for rank in operation.waited_for()})
