"""Allocate tags for persistent collectives, which may be started in any order.

Each has a slot, the tags of one sequence number, on communicators that only persistent collectives use. Ranks free
their requests at different times, garbage collection included. So taking a slot is collective, as making the request
is: the ranks agree on a slot that is free on all of them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from ..plans.plan import SEQUENCES
from ..progress.operation import Operation
from ..progress.queue import Queue
from ..progress.stages import AllgatherStage, RequestStage, Stage
from ..selection.select import native_choice
from . import duplicate


class FastStart(Protocol):
    """The fast path of a persistent collective."""

    def close(self) -> None:
        """Serve no more starts."""


class Communicator(Protocol):
    """The state of the communicator to which the slots belong."""

    comm: MPI.Intracomm
    queue: Queue

    def next_sequence(self) -> int:
        """Count a call, and return its number."""


class TagOwner(Protocol):
    """A persistent collective, which takes a slot."""

    @property
    def fast_start(self) -> FastStart | None:
        """Return the fast path of its starts, None if they take the slow path."""

    @property
    def name(self) -> str:
        """Return the name of the method that made it."""

    def free_requests(self) -> None:
        """Free MPI's persistent requests at the end of the program."""

    def close(self) -> None:
        """Free the requests on the slot's communicator, which is about to be freed."""


class TagSlot(NamedTuple):
    """The tags of a sequence number on a communicator; `used` has a word for every sequence number."""

    comm: MPI.Intracomm
    sequence: int
    used: np.ndarray

    def free(self) -> None:
        """Mark the tags as free."""
        self.used[self.sequence] = 0


class TagPool:
    """The communicators for the persistent collectives of a communicator, and the slots that this rank uses on them."""

    def __init__(self, state: Communicator) -> None:
        self.state: Any = weakref.proxy(state)
        self.comms: list[MPI.Intracomm] = []
        self.used: list[np.ndarray] = []
        self.owners: weakref.WeakSet[TagOwner] = weakref.WeakSet()

    def take(self, owner: TagOwner) -> TagSlot:
        """Return a slot that is free on every rank. Collective; operations in flight progress meanwhile."""
        mine = np.concatenate([np.zeros(1, np.uint8), *self.used])  # not empty: MPICH would wait for no rank
        gathered = self._wait(lambda: AllgatherStage(self.state.comm, mine, "the tags in use"), owner.name)
        free = np.flatnonzero(~gathered.all[:, 1:].any(axis=0))
        if not len(free):
            self._add_communicator(owner.name)
            free = np.array([len(mine) - 1])
        index, sequence = divmod(int(free[0]), SEQUENCES)
        self.used[index][sequence] = 1
        return TagSlot(self.comms[index], sequence, self.used[index])

    def _add_communicator(self, name: str) -> None:
        copy = duplicate.Duplicate(self.state.comm)
        self._wait(lambda: RequestStage(copy, "a communicator"), name)
        comm = copy.comm
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.comms.append(comm)
        self.used.append(np.zeros(SEQUENCES, np.uint8))

    def _wait(self, begin: Callable[[], Any], name: str) -> Any:
        stage: Stage = begin()  # now, in the order of calls
        choice = native_choice("a persistent collective", "allocating tags for it")
        sequence = self.state.next_sequence()
        self.state.queue.run(Operation(choice, sequence, [lambda: stage], lambda: None, stage, name=name))
        return stage

    def close(self) -> None:
        """Close the fast path of every persistent collective."""
        for owner in list(self.owners):
            if owner.fast_start is not None:
                owner.fast_start.close()

    def free_requests(self) -> None:
        """Free MPI's persistent requests, since MPICH prints a line for every request that a program leaves."""
        for owner in list(self.owners):
            owner.free_requests()

    def free(self) -> None:
        """Free the communicators."""
        for owner in list(self.owners):
            owner.close()
        for comm in self.comms:
            with suppress(MPI.Exception):  # as in CommState.free
                comm.Free()
        self.comms.clear()
