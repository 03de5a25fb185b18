"""Time calls that return before they are complete: nonblocking and persistent ones, and those of torch.

Several such calls may be in flight, and none may wait for another rank before it returns. So a turn is an operation
that begins with a barrier, and the last turn ends with an exchange of all times. A call must use the same algorithm on
every rank, although ranks learn the outcome at different times. So a nonblocking call that begins before this rank
knows the outcome waits for that exchange in a stage, and its plan is chosen then. The starts of a persistent request
have a lesson of their own.
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
from .prepare import prepare_with


class OverlappingLesson(Lesson):
    """The lesson of calls that overlap.

    - last_turn: the operation of the last turn, once that has begun.
    - best, agreed: the index and the rule of the candidate on which the ranks agreed in the last turn: of the
      first candidate, auto's choice, if a rank ran a turn without its compiled kernels.
    """

    def begin(self) -> None:
        """Begin with the first turn."""
        super().begin()
        self.in_flight: list[Operation] = []
        self.last_turn: Operation | None = None
        self.agreed: Rule | None = None
        self.best = 0

    def turn(self, operation: Operation, is_in_doubt: bool) -> Operation:
        """Make an operation, prepared with the current candidate and not launched yet, the next turn."""
        turn, start, stages, active_call = self.take_turn(is_in_doubt), 0.0, operation.stages, operation.keep

        def barrier() -> Stage:
            return _exchange(active_call, np.zeros(1, np.int64), lambda of_all_ranks: None)

        def begin() -> Stage:
            nonlocal start
            start = MPI.Wtime()
            return stages[0]()

        def end(earlier: Sequence[Operation]) -> Stage:
            self.note(turn, MPI.Wtime() - start)
            return WaitForOperations(earlier)

        self.in_flight = [other for other in self.in_flight if not other.done]
        operation.stages = [barrier, begin, *stages[1:], partial(end, self.in_flight if self.is_over else ())]
        if self.is_over:
            operation.stages.append(partial(self._exchange_times, active_call))
            self.last_turn = operation
        else:
            self.in_flight.append(operation)
        return operation

    def _exchange_times(self, active_call: ActiveCall) -> Stage:
        return _exchange(active_call, np.append(self.measured(), self.is_in_doubt), self._agree)

    def _agree(self, of_all_ranks: np.ndarray) -> None:
        """Choose a candidate by the times of the slowest rank, which are equal on all ranks."""
        *slowest, is_in_doubt = of_all_ranks.max(axis=0)
        us, self.is_in_doubt = np.reshape(slowest, (len(self.candidates), -1)), bool(is_in_doubt)
        if self.is_in_doubt:
            us[1:] = np.inf
        self.best, self.agreed = self.fastest(us), self.rule(us)
        if self.is_in_doubt:
            why = "kernels were compiled while calls took turns, so auto's choice stays"
            self.agreed = self.agreed._replace(why=why)

    def wait_for_outcome(self, state: CommState, operation: Operation) -> Operation:
        """Have an operation, not launched yet, wait for the agreement and then run by its rule."""
        last_turn, active_call, start = self.last_turn, operation.keep, operation.stages[0]
        assert last_turn is not None and isinstance(active_call, ActiveCall)

        def begin() -> Stage:
            if self.agreed is not None:
                operation.choice = _prepare_with_rule(state, active_call.call, self.agreed)
            return start()

        operation.stages[:1] = [lambda: WaitForOperations([last_turn]), begin]
        return operation


def _exchange(active_call: ActiveCall, mine: np.ndarray, on_numbers: Callable[[np.ndarray], None]) -> NumbersExchange:
    """Return a stage that exchanges numbers with the tags of a call, so that calls may start in any order."""
    engine = active_call.call.prepared.choice.engine
    return NumbersExchange(active_call.comm, active_call.tags, engine, mine, on_numbers)


def _prepare_with_rule(state: CommState, call: Call, rule: Rule) -> Choice:
    """Prepare a call again with the choice of a rule, and return that choice."""
    choice = replace(call.prepared.choice, algorithm=rule.algorithm, chunk_bytes=rule.chunk_bytes, window=rule.window)
    choice = replace(choice, why=rule.why, rule=rule.why, measured=True)
    call.prepared = prepare_with(state, call, choice)
    return choice


class WaitForOperations:
    """A stage that waits for other operations."""

    is_over, progress = True, (0, 0, 0)

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations

    def advance(self, seconds: float) -> bool:
        """Return whether the operations are done; their queue advances them."""
        return all(operation.done for operation in self.operations)

    def describe(self) -> list[str]:
        """Name the operations that are not done, one per line."""
        waiting = [operation for operation in self.operations if not operation.done]
        return [f"waits for {operation.call_id}, which must be done first" for operation in waiting]

    def waited_for(self) -> tuple[int, ...]:
        """Return the ranks for which the operations wait."""
        return tuple({rank for operation in self.operations for rank in operation.waited_for()})
