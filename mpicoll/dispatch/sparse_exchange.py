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
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from ..engines.load import engine_named
from ..errors import ArgumentError, DatatypeError, MessageSpecError, RankError, spans
from ..plans.lowering import lower
from ..plans.plan import WINDOW
from ..plans.rolled import RolledPlan, rolled
from ..progress.operation import Operation
from ..progress.stages import Running, Stage
from ..runtime.channel import Channel
from ..runtime.record import Record
from ..schedules.schedule import schedule
from ..selection.select import Choice
from .check_mode import Exchange

COLLECTIVE, ALGORITHM = "sparse_alltoall", "nbx"
Arrays = dict[int, np.ndarray]


def checked(parts: Mapping[Any, Any], size: int) -> Arrays:
    """Return what a rank sends, as contiguous arrays by rank.

    Raises ArgumentError, RankError, MessageSpecError and DatatypeError.
    """
    if not isinstance(parts, Mapping):
        raise ArgumentError(f"a dict of arrays by the ranks they go to is needed, not {type(parts).__name__}")
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
            raise MessageSpecError(f"what goes to rank {rank} is no array: {error}") from None
        if array.dtype.hasobject:
            raise DatatypeError(f"the array for rank {rank} holds Python objects; send arrays of numbers")
        arrays[rank] = array
    return arrays


class SparseExchange:
    """A stage of an operation: send these arrays, and receive those of others until no rank has any more."""

    def __init__(self, channel: Channel, sequence: int, parts: Arrays, engine: str) -> None:
        self.inbox, self.sequence, self.over = channel.inbox, sequence, False
        self.bytes = sum(array.nbytes for array in parts.values())
        self.sends = {rank: self.inbox.send(sequence, rank, array) for rank, array in parts.items()}
        self.messages = sum(map(len, self.sends.values()))
        idle = channel.inbox.barriers.setdefault(engine, [])
        plan = _barrier(channel.size, channel.rank)
        execution = idle.pop() if idle else engine_named(engine).Execution(plan, channel.comm)
        execution.bind(sequence, (0, 0, 0))
        self.barrier, self.idle, self.is_through = Running(execution), idle, False

    def advance(self, seconds: float) -> bool:
        """Progress for at most so many seconds. Return True when done."""
        until = time.monotonic() + seconds
        while not self._is_complete():
            if time.monotonic() >= until:
                return False
            os.sched_yield()
        self.over = True
        self.idle.append(self.barrier.execution)
        return True

    def _is_complete(self) -> bool:
        self.inbox.poll()
        if not self.is_through:
            self.sends = {rank: requests for rank, requests in self.sends.items() if not MPI.Request.Testall(requests)}
            self.is_through = not self.sends and self.barrier.execution.advance(0.0)
        arrivals = self.inbox.arrivals.get(self.sequence, [])
        return self.is_through and all(arrival.request.Test() for arrival in arrivals)

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes of this rank's arrays, arrays received and ranks served)."""
        received = len(self.inbox.arrivals.get(self.sequence, []))
        return self.messages + self.barrier.progress[0], self.bytes, received - len(self.sends)

    def describe(self) -> list[str]:
        """Return what it waits for, a line each."""
        if self.sends:
            ranks = sorted(self.sends)
            return [f"waits for rank{'s' * (len(ranks) > 1)} {spans(ranks)} to receive an array"]
        return self.barrier.describe()

    def waited_for(self) -> tuple[int, ...]:
        """Return the ranks that have not received what this one sends them, else those that it meets in the barrier."""
        return tuple(sorted(self.sends)) or self.barrier.waited_for()


@lru_cache(maxsize=64)
def _barrier(p: int, rank: int) -> RolledPlan:
    return rolled(lower(schedule("barrier", "dissemination", p), rank, 0, 1))


def operation(channel: Channel, parts: Arrays, received: Arrays, form: str, name: str) -> Operation:
    """Return the operation that sends parts, and fills received when it is complete. It is not launched yet."""
    sequence, engine = channel.next_sequence(), channel.overrides.engine or channel.agreed.engine
    if engine == "auto":
        engine = channel.agreed.engine
    choice = Choice(COLLECTIVE, ALGORITHM, None, WINDOW, engine, "the only algorithm")
    exchange: list[SparseExchange] = []

    def start() -> Stage:
        exchange.append(SparseExchange(channel, sequence, parts, engine))
        return exchange[0]

    def finish() -> None:
        if sequence in channel.inbox.arrivals:  # else an interrupt came later than this, or there were none
            received.update(channel.inbox.take(sequence))
        if channel.traces:
            messages, nbytes, _ = exchange[0].progress
            incoming = sum(array.nbytes for array in received.values())
            channel.record(
                Record(
                    COLLECTIVE, form, ALGORITHM, engine, nbytes, None, 1, messages, nbytes, sequence, choice.why,
                    received=incoming,
                )
            )  # fmt: skip

    stages: list[Callable[[], Stage]] = [start]
    if channel.compares(sequence):  # now, in the order of calls
        compared = Exchange(channel.comm, {"sequence": sequence, "collective": COLLECTIVE})
        stages.insert(0, lambda: compared)
    return Operation(choice, sequence, stages, finish, (parts, exchange), form, name)
