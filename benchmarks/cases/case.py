"""Buffers for one call of a collective, filled so that the right answer is known exactly."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from mpicoll.kernels.rules import low
from mpicoll.schedules.blocks import offsets
from mpicoll.schedules.collectives import at_namesake, at_root

from .contents import contributed, dtype_of, moved, reduced, wrong
from .forms import FORMS, Operation
from .patterns import Shape, Side


class Memory:
    """Buffers that cases share, so that one made later finds memory that is mapped and in cache."""

    def __init__(self) -> None:
        self.kept: dict[str, np.ndarray] = {}

    def hold(self, name: str, contents: np.ndarray | None) -> np.ndarray | None:
        """Return the contents in the buffer of that name."""
        if contents is None:
            return None
        if name not in self.kept or len(self.kept[name]) < len(contents):
            self.kept[name] = contents
        held = self.kept[name][: len(contents)]
        held[:] = contents
        return held


class Case:
    """One rank's buffers for one shape at one size, and what must be in them afterwards.

    in_place: the argument that is MPI.IN_PLACE on this rank, "send" or "recv", or "". The shape's root is a rank.
    """

    def __init__(self, shape: Shape, nbytes: int, rank: int, p: int, memory: Memory | None = None) -> None:
        self.shape, self.rank, self.p = shape, rank, p
        memory = memory or Memory()
        self.pattern, self.meaning = shape.pattern, shape.pattern.meaning
        self.root = int(shape.root)
        self.dtype = dtype_of(shape.dtype)
        self.count = shape.elements(nbytes)
        self.lengths = self.pattern.lengths(self.count, p, shape.counts)
        whole = self.meaning.reduces and bool(self.lengths)
        self.nbytes = (sum(self.lengths) if whole else self.count) * self.dtype.itemsize
        self.sends, self.receives = self.pattern.sides(self.lengths, p, rank, self.root)
        here = rank == self.root or not self.meaning.rooted
        self.in_place = self.pattern.in_place if shape.in_place and here else ""
        one_buffer = self.pattern.send is None
        self.send = memory.hold("recv" if one_buffer else "send", self._sent())
        self.recv = self.send if one_buffer and self.send is not None else memory.hold("recv", self._room())
        self.refill()

    def _sent(self) -> np.ndarray | None:
        """Return what this rank contributes."""
        if not self.sends.blocks:
            return None
        if self.meaning.reduces:
            return np.resize(contributed(self.rank, self.p, self.shape.op, self.dtype), self.sends.total)
        return self._moved(self.sends)

    def _moved(self, side: Side) -> np.ndarray:
        ways = (self.pattern.way(block, self.root) for block in side.blocks)
        return np.concatenate([moved(*way, n, self.dtype) for way, n in zip(ways, side.counts)])

    def _room(self) -> np.ndarray | None:
        """Return where this rank's result goes; exscan's rank 0, which gets none, must pass a buffer all the same."""
        off_root = self.meaning.ends is at_root and not self.receives.blocks
        if self.pattern.recv is None or off_root or self.in_place == "recv":
            return None
        as_sent = self.in_place == "send" or not self.receives.blocks
        return np.zeros(max(self.receives.total, self.sends.total if as_sent else 0), self.dtype)

    def expected(self) -> np.ndarray | None:
        """Return the right answer on this rank; None where there is none."""
        if self.recv is None or not self.receives.blocks:
            return None
        if not self.meaning.reduces:
            return self._moved(self.receives)
        ranks = range(*self.meaning.covers(self.p, self.rank))
        everything = np.resize(reduced(ranks, self.p, self.shape.op, self.dtype), sum(self.lengths))
        (block,) = self.receives.blocks
        first = offsets(self.lengths)[block]
        return everything[first : first + self.lengths[block]]

    def poison(self) -> None:
        """Put a wrong value wherever the answer must come."""
        answer = self.expected()
        if answer is None or self.recv is self.send:
            return
        self.recv[: len(answer)] = wrong(answer)  # type: ignore[index]
        self.refill()

    def refill(self) -> None:
        """Put this rank's contribution back in place; nothing to do where it has a buffer of its own."""
        if self.in_place == "send":
            own = self.receives.places[self.rank] if self.meaning.starts is at_namesake else 0
            self.recv[own : own + len(self.send)] = self.send  # type: ignore[index, arg-type]

    def is_right(self) -> bool:
        """Return whether the answer is the right one, exactly."""
        answer = self.expected()
        return answer is None or bool(np.array_equal(self.recv[: len(answer)], answer))  # type: ignore[index]

    def arguments(self, mpi: Any) -> tuple[Any, ...]:
        """Return the method's positional arguments; mpi is the module mpi4py.MPI."""
        pattern = self.pattern
        sides = (
            ("send", pattern.send, self.send, self.sends),
            ("recv", pattern.recv, self.recv, self.receives),
        )
        buffers = [
            mpi.IN_PLACE if name == self.in_place else None if array is None else form(array, side, mpi)
            for name, form, array, side in sides
            if form is not None
        ]
        more = {"counts": self.lengths, "op": getattr(mpi, self.shape.op.upper()), "root": self.root}
        return (*buffers, *(more[word] for word in pattern.then))

    def ready(self, comm: Any, mpi: Any) -> AbstractContextManager[Operation]:
        """Return the operation on a communicator, in the shape's form."""
        return FORMS[self.shape.form].ready(comm, self.shape.collective, self._for(comm, mpi))

    def _for(self, comm: Any, mpi: Any) -> tuple[Any, ...]:
        """Return the arguments as a communicator takes them: MPI's own has no types of less than 32 bits."""
        arguments = self.arguments(mpi)
        if low(self.dtype) is None or hasattr(comm, "using"):
            return arguments
        from mpicoll.buffers.datatypes import facts_of_dtype
        from mpicoll.buffers.operators import native
        from mpicoll.buffers.parse import for_mpi

        known = facts_of_dtype(self.dtype)
        assert known is not None
        return tuple(native(x, known) if isinstance(x, mpi.Op) else for_mpi(x) for x in arguments)

    def next(self, operation: Operation, comm: Any, mpi: Any) -> Operation:
        """Return the operation for one more call.

        This rank's contribution is in place, and arrays are new if so wanted.
        """
        if self.shape.fresh:
            is_shared = self.send is self.recv
            self.send = None if self.send is None else self.send.copy()
            self.recv = self.send if is_shared else None if self.recv is None else self.recv.copy()
            operation, _ = FORMS[self.shape.form].bound(comm, self.shape.collective, self._for(comm, mpi))
        self.refill()
        return operation


class Cases:
    """The case of every round: always the same, or another for each root in turn."""

    def __init__(self, shape: Shape, nbytes: int, rank: int, p: int) -> None:
        self.shape, self.wanted, self.rank, self.p = shape, nbytes, rank, p
        self.turns, self.memory = len(shape.roots(p)), Memory()
        self.current = self._made(0)

    def _made(self, number: int) -> Case:
        return Case(self.shape.turn(number, self.p), self.wanted, self.rank, self.p, self.memory)

    @property
    def nbytes(self) -> int:
        """Return the size, in whole elements."""
        return self.current.nbytes

    def __call__(self, number: int) -> Case:
        """Return the case of a round; a new one is filled with its numbers before it is timed."""
        if self.turns > 1 and number % self.turns != self.current.root:
            self.current = self._made(number)
        return self.current
