"""Count the bytes, calls, waiting time and memory of a training step, by a communicator that records its calls.

    account = Account()
    comm = account.of(mpicoll.Comm(MPI.COMM_WORLD))     # used as any other; Split returns one with the same account
    with account.step(): trainer.step(x, labels)
    account.sent, account.received, account.calls, account.waited

Bytes are those of messages, from the trace of each communicator. `waited` is the time in seconds inside blocking calls
and Wait: communication that no computation hides.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..diagnostics.groups import world_ranks
from . import memory

_COLLECTIVES = (
    *("Barrier", "Bcast", "Scatter", "Gather", "Allgather", "Alltoall", "Scatterv", "Gatherv", "Allgatherv"),
    *("Alltoallv", "Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter"),
)
MESSAGES = ("Send", "Recv", "Isend", "Irecv")
BLOCKING = (*_COLLECTIVES, *MESSAGES[:2])
STARTING = (*(f"I{name.lower()}" for name in _COLLECTIVES), *MESSAGES[2:])


class Event(NamedTuple):
    """A call: its start, the start and end of the caller's wait for it, in seconds, and its name.

    moves: the kind of memory of its first counted buffer, "" if it has none. For a message between two ranks, peer is a
    rank of COMM_WORLD and nbytes its size; for a collective, they are -1 and 0.
    """

    began: float
    waited: float
    ended: float
    name: str
    moves: str = ""
    peer: int = -1
    nbytes: int = 0


class Account:
    """The counts and times of one rank, over all its communicators."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.calls: Counter[str] = Counter()
        self.sent = self.received = 0
        self.steps = 0
        self.seconds = self.waited = 0.0
        self.events: list[Event] = []  # of the last step
        self.watch = memory.Watch()  # of the last step
        self._records: list[list[Any]] = []
        self._open = False

    def of(self, comm: Any) -> Metered:
        """Return a metered communicator. One of MPI's own has no trace: bytes of its collectives are not counted."""
        if hasattr(comm, "trace"):
            self._records.append(self.stack.enter_context(comm.trace()))
        return Metered(comm, self)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Count the calls of the block as one step."""
        for records in self._records:
            records.clear()
        self.events.clear()
        began, self._open = time.perf_counter(), True
        with memory.watched() as self.watch:
            yield
        self._open = False
        self.seconds += time.perf_counter() - began
        self.steps += 1
        for records in self._records:
            self.sent += sum(record.bytes for record in records)
            self.received += sum(record.received for record in records)
            records.clear()

    def note(self, event: Event) -> None:
        """Record a call, if a step is open."""
        if self._open:
            self.events.append(event)
            self.calls[event.name] += 1
            self.waited += event.ended - event.waited

    def message(self, name: str, nbytes: int) -> None:
        """Record a message between two ranks, if a step is open."""
        if self._open:
            if name.lower().endswith("send"):
                self.sent += nbytes
            else:
                self.received += nbytes

    def close(self) -> None:
        """Stop recording."""
        self.stack.close()


class Metered:
    """A communicator whose calls an account records; all else is delegated to the communicator."""

    def __init__(self, comm: Any, account: Account) -> None:
        self.comm, self.account, self.ranks = comm, account, world_ranks(comm)

    def __getattr__(self, name: str) -> Any:
        own = getattr(self.comm, name)
        if name in BLOCKING:
            return self._blocking(name, own)
        return self._starting(name, own) if name in STARTING else own

    def _blocking(self, name: str, own: Callable[..., Any]) -> Callable[..., None]:
        def call(*arguments: Any, **named: Any) -> None:
            facts, began = self._facts(name, arguments), time.perf_counter()
            own(*arguments, **named)
            self.account.note(Event(began, began, time.perf_counter(), name, *facts))

        return call

    def _starting(self, name: str, own: Callable[..., Any]) -> Callable[..., Pending]:
        def call(*arguments: Any, **named: Any) -> Pending:
            facts, began = self._facts(name, arguments), time.perf_counter()
            return Pending(own(*arguments, **named), began, name, facts, self.account)

        return call

    def _facts(self, name: str, arguments: tuple[Any, ...]) -> tuple[str, int, int]:
        """Return an event's kind of memory, peer and bytes, and count the bytes of a message between two ranks."""
        buffers = [argument[0] if isinstance(argument, (list, tuple)) else argument for argument in arguments]
        moves = next(filter(None, map(memory.kind_of, buffers)), "")
        if name not in MESSAGES:
            return moves, -1, 0
        nbytes = np.asarray(buffers[0]).nbytes
        self.account.message(name, nbytes)
        return moves, self.ranks[arguments[1]], nbytes

    def Split(self, color: int = 0, key: int = 0) -> Metered:
        """Return a part of the communicator, with the same account."""
        return self.account.of(self.comm.Split(color, key))


class Pending:
    """A request of a metered communicator."""

    def __init__(
        self, request: MPI.Request, began: float, name: str, facts: tuple[str, int, int], account: Account
    ) -> None:
        self.request, self.began, self.name, self.facts, self.account = request, began, name, facts, account
        self.is_over = False

    def Wait(self) -> None:
        """Wait, and record the call in the account."""
        if not self.is_over:
            waited = time.perf_counter()
            self.request.Wait()
            self.account.note(Event(self.began, waited, time.perf_counter(), self.name, *self.facts))
            self.is_over = True
