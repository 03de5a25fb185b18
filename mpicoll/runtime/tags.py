"""Tags for persistent collectives, which may be started in any order: a slot on a communicator of their own for each.

Ranks free their requests when they like, garbage collection included, so which slot is free everywhere is agreed on
when one is taken; that is collective, as making a persistent request is.
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
from ..progress.stages import Gathering, RequestStage, Stage
from ..selection.select import native_choice
from . import duplicate


class FastStart(Protocol):
    """The fast path of a persistent collective."""

    def close(self) -> None:
        """Serve no more starts."""


class Communicator(Protocol):
    """The communicator that slots belong to."""

    comm: MPI.Intracomm
    queue: Queue

    def next_sequence(self) -> int:
        """Return the number of a call."""


class TagOwner(Protocol):
    """A persistent collective, which takes a slot; name is the method that made it."""

    @property
    def fast_start(self) -> FastStart | None:
        """Its fast path."""

    @property
    def name(self) -> str:
        """The method's name."""

    def free_requests(self) -> None:
        """Free MPI's persistent requests, since the program ends."""

    def close(self) -> None:
        """Free the requests on the slot's communicator, which is about to be freed."""


class TagSlot(NamedTuple):
    """Tags on a communicator; `used` is where they are marked as taken."""

    comm: MPI.Intracomm
    sequence: int
    used: np.ndarray

    def free(self) -> None:
        """Mark the tags as free."""
        self.used[self.sequence] = 0


class TagPool:
    """The communicators that one has beside it for persistent collectives, and which of their tags this rank uses."""

    def __init__(self, state: Communicator) -> None:
        self.state: Any = weakref.proxy(state)
        self.comms: list[MPI.Intracomm] = []
        self.used: list[np.ndarray] = []
        self.owners: weakref.WeakSet[TagOwner] = weakref.WeakSet()

    def take(self, owner: TagOwner) -> TagSlot:
        """Return a slot that is free on every rank. Collective; operations in flight progress meanwhile."""
        mine = np.concatenate([np.zeros(1, np.uint8), *self.used])  # one more: of no bytes, MPICH's waits for no rank
        gathered = self._wait(lambda: Gathering(self.state.comm, mine, "the tags in use"), owner.name)
        free = np.flatnonzero(~gathered.all[:, 1:].any(axis=0))
        if not len(free):
            self._add(owner.name)
            free = np.array([len(mine) - 1])
        which, sequence = divmod(int(free[0]), SEQUENCES)
        self.used[which][sequence] = 1
        return TagSlot(self.comms[which], sequence, self.used[which])

    def _add(self, name: str) -> None:
        copy = duplicate.Duplicate(self.state.comm)
        self._wait(lambda: RequestStage(copy, "a communicator"), name)
        comm = copy.comm
        comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.comms.append(comm)
        self.used.append(np.zeros(SEQUENCES, np.uint8))

    def _wait(self, begin: Callable[[], Any], name: str) -> Any:
        stage: Stage = begin()  # now, in the order of calls
        choice = native_choice("a persistent collective", "finding tags for it")
        sequence = self.state.next_sequence()
        self.state.queue.run(Operation(choice, sequence, [lambda: stage], lambda: None, stage, name=name))
        return stage

    def close(self) -> None:
        """Close the fast path of every persistent collective."""
        for owner in list(self.owners):
            if owner.fast_start is not None:
                owner.fast_start.close()

    def free_requests(self) -> None:
        """Free MPI's persistent requests: MPICH prints a line for each that is left when a program ends."""
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
