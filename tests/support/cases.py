"""Calls of collectives with equal blocks: what each rank sends, what it must receive, and checks of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.dispatch.methods import Method
from mpicoll.schedules import blocks
from mpicoll.schedules.collectives import at_namesake, at_root
from mpicoll.schedules.registry import parse_spec
from support import ops
from support.buffer_forms import ARRAY, FILLER, Argument, BufferForm, array_of
from support.collectives import meaning, method_of
from support.prepared import PreparedCall

AGAIN = 3                       # the first call that takes the fast path


def data(n: int, rank: int, dtype: Any = "d") -> np.ndarray:
    """Return small whole numbers, different at every place and mostly on every rank; 8 ranks' sums fit any dtype."""
    return ((np.arange(n) * 3 + rank * 11 + 1) % (61 if np.dtype(dtype).itemsize > 1 else 13)).astype(dtype)


Maker = Callable[[int, int], np.ndarray]     # (elements, rank) → what that rank contributes


@dataclass(frozen=True)
class Case:
    """A call with equal blocks, whatever the communicator.

    - name: of the method, or of the collective; "reduce_scatter" is Reduce_scatter_block.
    - n: the count as mpi4py has it, of one block if there are several.
    - op: a name that support/ops.py combines by; empty if the form says it, or if a handle has no name.
    - make: what ranks contribute; data() if None.
    - handle: the operator, if it is not MPI's and not one of support/ops.py.
    """

    name: str
    n: int = 3
    root: int = 0
    in_place: bool = False
    op: str = ""
    make: Maker | None = None
    form: BufferForm = ARRAY
    handle: Any = field(default=None, compare=False)

    def __str__(self) -> str:
        op = f" {self.operator}" if meaning(self.name).reduces else ""
        return f"{self.name} n={self.n} root={self.root}{op}{' in place' if self.in_place else ''}"

    @property
    def method(self) -> Method:
        """The method that is called."""
        return method_of(self.name)

    @property
    def collective(self) -> str:
        """The collective as using() and records name it."""
        return self.method.collective

    @property
    def operator(self) -> str:
        """The name of the operator; empty if it has none."""
        return self.op or ("" if self.handle else self.form.op)

    def contribution(self, p: int, rank: int) -> np.ndarray:
        """Return what a rank sends, which is empty where it sends nothing."""
        what = meaning(self.name)
        n = self.n * len(what.starts(what.blocks(p, 1), p, rank, self.root))
        return self.make(n, rank) if self.make else data(n, rank, self.form.dtype)

    def run(self, comm: MPI.Intracomm) -> PreparedCall:
        """Make the call with new buffers."""
        prepared = self.prepare(comm)
        prepared.run(comm)
        return prepared

    def prepare(self, comm: MPI.Intracomm) -> PreparedCall:
        """Return the call with new buffers on this rank. An argument that counts at the root only is None elsewhere."""
        p, rank, n, what, takes = comm.size, comm.rank, self.n, meaning(self.name), self.method.takes.split()
        if not takes:
            return PreparedCall(self.method, ())
        here = not what.rooted or rank == self.root
        wide = n * p if "counts" in takes else n      # the count of Reduce_scatter's vector is of all blocks
        sent, received = self._send(p, rank, here, wide), self._receive(p, rank, here, wide)
        arguments = {
            "send": sent.value if sent else MPI.IN_PLACE if self.in_place and here else None,
            "recv": received.value if received else MPI.IN_PLACE if self.in_place and here else None,
            "counts": [n] * p, "op": self.handle or ops.operator(self.operator), "root": self.root,
        }
        datatypes = [datatype for argument in (sent, received) if argument for datatype in argument.datatypes]
        call = PreparedCall(self.method, tuple(arguments[name] for name in takes), sent and sent.memory,
                            received and received.memory, datatypes=datatypes)
        if received is not None:
            width = n * len(what.ends(what.blocks(p, 1), p, rank, self.root))
            call.expected = received.memory.copy()
            call.where = received.where(width or n)             # an exscan has a receive buffer on rank 0 too
            if self.operator and width:
                call.expected[call.where] = expected(self, p, rank)
            elif not self.operator or not isinstance(comm, mpicoll.Comm):       # ours leaves that buffer as it is
                call.undefined = call.where
            if self.operator and what.reduces and what.naming == "rank" and self.in_place:
                call.undefined = slice(received.start + n, received.start + n * p)
        return call

    def _send(self, p: int, rank: int, here: bool, wide: int) -> Argument | None:
        """Return the send buffer; None if the rank has none."""
        what = meaning(self.name)
        absent = what.starts is at_root and not here
        if "send" not in self.method.takes or absent or (self.in_place and here and what.starts is not at_root):
            return None
        return self.form.build(self.contribution(p, rank), wide)

    def _receive(self, p: int, rank: int, here: bool, wide: int) -> Argument | None:
        """Return the receive buffer; None if the rank has none. In place it holds what the rank contributes."""
        what, own = meaning(self.name), self.contribution(p, rank)
        form = self.form if self.form.receives else array_of(self.form.dtype)
        if "send" not in self.method.takes and here:
            return self.form.build(own, self.n)
        if (what.ends is at_root and not here) or (self.in_place and here and what.starts is at_root):
            return None
        if self.in_place and here and what.starts is not at_namesake:
            return form.build(own, wide)
        room = len(what.ends(what.blocks(p, 1), p, rank, self.root)) or 1
        values = np.full(self.n * room, FILLER).astype(own.dtype)
        if self.in_place and here:
            values[rank * self.n : (rank + 1) * self.n] = own
        return form.build(values, self.n)


@lru_cache(maxsize=16)
def expected(case: Case, p: int, rank: int) -> np.ndarray:
    """Return what a rank must receive, computed in NumPy from what all contribute."""
    what, n = meaning(case.name), case.n
    all_blocks = what.blocks(p, 1)
    ends, pieces = what.ends(all_blocks, p, rank, case.root), []
    if what.reduces:
        with np.errstate(all="ignore"):
            whole = ops.combined(case.operator, [case.contribution(p, r) for r in range(*what.covers(p, rank))])
        pieces = [whole[block * n : (block + 1) * n] for block in ends]
    else:
        for block in ends:
            source = what.source(block, case.root)
            at = list(what.starts(all_blocks, p, source, case.root)).index(block)
            pieces.append(case.contribution(p, source)[at * n : (at + 1) * n])
    return np.concatenate(pieces)


class Checks:
    """Failures of a test, raised together at its end, so that no rank leaves the others in the middle of it."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def that(self, holds: Any, *context: object) -> None:
        """Note a failure unless a condition holds."""
        if not holds:
            self.wrong.append(" ".join(map(str, context)))

    def equal(self, got: Any, expected: Any, *context: object) -> None:
        """Note a difference, bit for bit but for the sign of zero."""
        same = np.array_equal(got, expected) if isinstance(expected, np.ndarray) else got == expected
        self.that(same, *context, f": got {got}, expected {expected}")

    def call(self, prepared: PreparedCall, *context: object) -> None:
        """Note how the memory of a call that was made differs from what it must hold."""
        self.that(not prepared.difference, prepared.method.name, *context, prepared.difference)

    def __enter__(self) -> Checks:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            assert not self.wrong, "\n".join([f"{len(self.wrong)} wrong:", *self.wrong[:8]])


def lanes(case: Case, spec: str, p: int, chunk_bytes: int | None) -> int:
    """Return how many chunks a call must be cut into, computed here: of doubles, or of bytes if nothing is reduced."""
    entry, parameters = parse_spec(case.collective, spec)
    if case.collective == "barrier":
        return 1
    unit, share = (8, case.n) if meaning(case.name).reduces else (1, case.n * 8)
    one_node = (tuple(range(p)),)                       # the tests run on one machine
    nbytes = blocks.sizes(share, entry.blocks(p, one_node, **dict(parameters)))[0] * unit
    if chunk_bytes is None:
        return 1
    slice_ = max(unit, chunk_bytes // unit * unit)
    return max(1, -(-nbytes // slice_))


def check(checks: Checks, comm: mpicoll.Comm, case: Any, spec: str, engine: str, times: int = 0,
          **how: Any) -> list[Any]:
    """Make the call of a Case or a VectorCase by an algorithm on an engine; check memory and records, return these.

    A Case is called until a call takes the fast path, which has cached no such call before, or `times`.
    """
    context, of_blocks = (case, spec, engine, how), isinstance(case, Case)
    times = times or (AGAIN if of_blocks and engine == "compiled" and type(comm) is mpicoll.Comm else 1)
    with comm.using(engine=engine, **{case.collective: spec}, **how), comm.trace() as records:
        if type(comm) is mpicoll.Comm and of_blocks:
            comm._open().fast_path.clear()
        for _ in range(times):
            checks.call(case.run(comm), *context)
    checks.equal([(r.collective, r.algorithm, r.engine) for r in records],
                 [(case.collective, spec, engine)] * getattr(comm, "times", times), *context, "trace")
    if of_blocks:
        for record in records:
            _check_record(checks, record, case, comm.size, context)
        slow = case.in_place or comm.explain(case.collective).slow      # in place, some rank may have to copy
        if not slow and case.n * comm.size < 4000 and times == AGAIN:
            checks.equal([r.fast_path for r in records], [False] * (AGAIN - 1) + [engine == "compiled"], *context)
    return records


def _check_record(checks: Checks, record: Any, case: Case, p: int, context: tuple[object, ...]) -> None:
    """Check the chunks and messages of a traced call."""
    checks.equal(record.lanes, lanes(case, record.algorithm, p, record.chunk_bytes), *context, "lanes")
    has_messages = p > 1 and (case.n > 0 or case.collective == "barrier")
    checks.that(record.messages > 0 if has_messages else record.bytes == 0, *context, f"messages: {record}")
