"""The sparse exchange: every rank sends arrays to some ranks, and no rank knows who sends to it.

The algorithm is NBX (Hoefler, Siebert, Lumsdaine, Scalable communication protocols for dynamic sparse data exchange,
2010). Each array is announced by a synchronous send. When all its announcements have been matched, a rank starts a
nonblocking barrier, and receives until the barrier is complete. After that no announcement of this exchange can arrive.
The rank then waits for the second messages of long arrays.
"""

from __future__ import annotations

import operator
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from mpi4py import MPI

from ..diagnostics.record import Record
from ..engines.load import engine_named
from ..engines.protocol import Execution
from ..errors import ArgumentError, DatatypeError, MessageSpecError, RankError, spans
from ..plans.lowering import lower
from ..plans.plan import WINDOW
from ..plans.rolled import rolled
from ..progress.operation import Operation
from ..progress.stages import PlanStage, Stage
from ..runtime.comm_state import CommState
from ..runtime.inbox import Arrival
from ..schedules.collectives import BLOCKING, NONBLOCKING
from ..schedules.schedule import schedule
from ..selection.select import Choice
from .call import Prepared
from .check_mode import SignatureExchange

COLLECTIVE, ALGORITHM = "sparse_alltoall", "nbx"
NAMES = {BLOCKING: "Sparse_alltoall", NONBLOCKING: "Isparse_alltoall"}
Arrays = dict[int, np.ndarray]


def check_parts(parts: Mapping[Any, Any], size: int) -> Arrays:
    """Return the arrays to send, contiguous, by destination rank.

    Raises ArgumentError, RankError, MessageSpecError or DatatypeError for a wrong argument.
    """
    if not isinstance(parts, Mapping):
        raise ArgumentError(f"parts is of {type(parts).__name__}; pass a dict of arrays by destination rank")
    arrays = {}
    for key, part in parts.items():
        try:
            rank = operator.index(key)
        except TypeError:
            raise ArgumentError(f"the keys are ranks, and {key!r} is no integer") from None
        if rank == MPI.PROC_NULL:
            continue
        if not 0 <= rank < size:
            raise RankError(f"rank {rank} is not in this communicator of {size} rank{'s' * (size > 1)}")
        if rank in arrays:
            raise ArgumentError(f"there are two arrays for rank {rank}; concatenate them")
        try:
            array = np.asarray(part, order="C")
        except (TypeError, ValueError) as error:  # a ragged list
            raise MessageSpecError(f"the value for rank {rank} is no array: {error}") from None
        if array.dtype.hasobject:
            raise DatatypeError(f"the array for rank {rank} holds Python objects; send arrays of numbers")
        arrays[rank] = array
    return arrays


class SparseExchange:
    """A stage that sends arrays, and receives those of other ranks until no rank has more for this one."""

    def __init__(self, state: CommState, sequence: int, parts: Arrays, barrier: Execution) -> None:
        self.inbox, self.sequence, self.parts = state.inbox, sequence, parts
        self.sends: dict[int, list[MPI.Request]] | None = (
            None  # of the ranks that have not received theirs, once posted
        )
        self.messages, self.bytes = 0, sum(array.nbytes for array in parts.values())
        barrier.bind(sequence, (0, 0, 0))
        self.barrier, self.barrier_is_over, self.is_over = PlanStage(barrier), False, False

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds. Return True when done. Raises RequestError: see Inbox.check()."""
        until = time.monotonic() + seconds
        while not self._is_complete():
            if time.monotonic() >= until:
                return False
            os.sched_yield()
        self.is_over = True
        return True

    def _is_complete(self) -> bool:
        self.inbox.check()
        if self.sends is None:
            self.sends = self.inbox.send(self.sequence, self.parts)
            self.messages = sum(map(len, self.sends.values()))
        self.inbox.poll()
        if not self.barrier_is_over:
            self.sends = {rank: requests for rank, requests in self.sends.items() if not MPI.Request.Testall(requests)}
            self.barrier_is_over = not self.sends and self.barrier.execution.advance(0.0)
        return self.barrier_is_over and all(arrival.request.Test() for arrival in self._arrivals())

    def _arrivals(self) -> list[Arrival]:
        return self.inbox.arrivals.get(self.sequence, [])

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (messages posted, bytes of this rank's arrays, arrays received and sent)."""
        moved = len(self._arrivals()) + len(self.parts) - len(self.parts if self.sends is None else self.sends)
        return self.messages + self.barrier.progress[0], self.bytes, moved

    def describe(self) -> list[str]:
        """Describe what the exchange waits for, one item per line."""
        if self.sends:
            ranks = sorted(self.sends)
            return [f"waits for rank{'s' * (len(ranks) > 1)} {spans(ranks)} to receive an array"]
        return self.barrier.describe()

    def waited_for(self) -> tuple[int, ...]:
        """Return the ranks that have not received this rank's arrays; if all have, its peers in the barrier."""
        return tuple(sorted(self.sends or ())) or self.barrier.waited_for()


def operation(
    state: CommState, parts: Arrays, received: Arrays, form: str, sequence: int | None = None
) -> Operation:
    """Return the operation, not launched yet, that sends `parts` and fills `received` when it completes.

    sequence: its number if it was counted before.
    """
    if sequence is None:
        sequence = state.next_sequence()
    prepared = _prepared(state)
    choice, barriers = prepared.choice, [prepared.take(state.comm)]
    exchange = SparseExchange(state, sequence, parts, barriers[0])

    def finish() -> None:
        if sequence in state.inbox.arrivals:  # else none arrived, or an interrupt came after this line
            received.update(state.inbox.take(sequence))
        if state.sinks:
            (messages, nbytes, _), incoming = exchange.progress, sum(array.nbytes for array in received.values())
            numbers = nbytes, choice.chunk_bytes, 1, messages, nbytes, sequence
            served = ALGORITHM, choice.engine, *numbers, choice.why
            state.sinks.append(Record(COLLECTIVE, form, *served, received=incoming))
        while barriers:  # once: after an interrupt finish() is called again
            prepared.give_back(barriers.pop())

    stages: list[Callable[[], Stage]] = [lambda: exchange]
    if state.is_checked(sequence):  # made here, since all ranks must begin it in the order of calls
        compared = SignatureExchange(state.comm, {"sequence": sequence, "collective": COLLECTIVE})
        stages.insert(0, lambda: compared)
    return Operation(choice, sequence, stages, finish, exchange, form, NAMES[form])


def _prepared(state: CommState) -> Prepared:
    """Return the choice for all sparse exchanges, with the plan of their barrier."""
    prepared: Prepared | None = state.prepared.get(COLLECTIVE)
    if prepared is None:
        plan = rolled(lower(schedule("barrier", "dissemination", state.size), state.rank, 0, 1))
        choice = Choice(COLLECTIVE, ALGORITHM, None, WINDOW, state.engine, "the only algorithm")
        prepared = Prepared(choice, 0, plan, engine=engine_named(choice.engine))
        state.remember(COLLECTIVE, prepared, prepared.nbytes_kept(0))
    return prepared
