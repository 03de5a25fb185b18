"""A call that is ready to be made, and its right answer: the model of all tests of collective calls.

support/cases.py prepares calls with equal blocks, support/vectors.py those with counts, support/neighbors.py those of
neighbourhoods. The right answer is computed in NumPy, so that the same is asserted of MPI's own methods and of ours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.dispatch.methods import Method
from mpicoll.schedules.collectives import BLOCKING, PERSISTENT

Index = slice | np.ndarray


@dataclass
class PreparedCall:
    """A method, its arguments, and the whole memory of its buffers on this rank, with guard zones and gaps.

    - sent, received: memory of the send and the receive buffer; None if the rank has no such buffer.
    - expected: what `received` must hold afterwards.
    - where: the place of the result in `received`.
    - undefined: the place in `received` of which MPI leaves the content undefined.
    - datatypes: what free() frees.
    """

    method: Method
    arguments: tuple[Any, ...]
    sent: np.ndarray | None = None
    received: np.ndarray | None = None
    expected: np.ndarray | None = None
    where: Index = field(default_factory=lambda: slice(None))
    undefined: Index = field(default_factory=lambda: slice(0))
    datatypes: list[MPI.Datatype] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.sent_before = None if self.sent is None else self.sent.tobytes()       # a copy leaves out padding
        self.received_before = None if self.received is None else self.received.copy()

    def start(self, comm: MPI.Intracomm, form: str) -> MPI.Request | None:
        """Call the method in a form; return its request, None in the blocking form."""
        return getattr(comm, self.method.spelled(form))(*self.arguments)

    def run(self, comm: MPI.Intracomm, form: str = BLOCKING, times: int = 1) -> None:
        """Make the call in a form and wait for it, `times` times from the same memory."""
        request = self.start(comm, form) if form == PERSISTENT else None
        for _ in range(times):
            if self.received is not None and self.received.flags.writeable:
                self.received[:] = self.received_before
            if form == PERSISTENT:
                request.Start()
            else:
                request = self.start(comm, form)
            if form != BLOCKING:
                request.Wait()
        if form == PERSISTENT:
            request.Free()

    @property
    def result(self) -> np.ndarray | None:
        """The elements that the rank received; None if it has no receive buffer."""
        return None if self.received is None else self.received[self.where]

    @property
    def difference(self) -> str:
        """Return how memory differs from what it must hold; empty if it does not."""
        if self.received is not None:
            expected = self.expected.copy()
            expected[self.undefined] = self.received[self.undefined]
            if not np.array_equal(self.received, expected):
                return f"received {self.received}, expected {expected}"
        if self.sent is not None and self.sent.tobytes() != self.sent_before:
            before = np.frombuffer(self.sent_before, self.sent.dtype)
            return f"sent {before}, and the send buffer is {self.sent} afterwards"
        return ""

    def free(self) -> None:
        """Free the datatypes of the arguments."""
        while self.datatypes:
            self.datatypes.pop().Free()
