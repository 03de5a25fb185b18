"""One call of a collective as a value: run on ours and on MPI's own communicator, it must give the same.

Receive buffers lie between guard zones, which nothing may touch; send buffers must come back unchanged.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.errors import PreconditionError
from mpicoll.schedules import blocks
from mpicoll.schedules.grouping import uneven
from mpicoll.schedules.nested import Of
from mpicoll.schedules.parameters import Groups
from mpicoll.schedules.registry import Algorithm, exact_algorithms, parse_spec, registered

PAD = 64                        # bytes of a guard zone
GUARD = 0xA5
ENGINES = ("mpi4py", "compiled")
AGAIN = 3                       # the first call that goes the fast path
METHODS = {
    "barrier": "Barrier", "bcast": "Bcast", "scatter": "Scatter", "gather": "Gather", "allgather": "Allgather",
    "reduce": "Reduce", "reduce_scatter": "Reduce_scatter_block", "allreduce": "Allreduce",
    "alltoall": "Alltoall", "scan": "Scan", "exscan": "Exscan",
}
ROOTED = ("bcast", "scatter", "gather", "reduce")
REDUCING = ("reduce", "reduce_scatter", "allreduce", "scan", "exscan")
IN_PLACE = (*REDUCING, "scatter", "gather", "allgather", "alltoall")
WHOLE = ("bcast", "reduce", "allreduce", "scan", "exscan")      # every rank has the whole vector
WIDE_SEND = ("scatter", "reduce_scatter", "alltoall")       # a block for every rank
WIDE_RECEIVE = ("gather", "allgather", "alltoall")


class Guarded:
    """An array between two guard zones."""

    def __init__(self, n: int, dtype: Any = "d") -> None:
        nbytes = n * np.dtype(dtype).itemsize
        self.whole = np.full(nbytes + 2 * PAD, GUARD, np.uint8)
        self.view = self.whole[PAD : PAD + nbytes].view(dtype)

    @property
    def intact(self) -> bool:
        """Whether both guard zones are as they were."""
        return bool((self.whole[:PAD] == GUARD).all() and (self.whole[-PAD:] == GUARD).all())


def data(n: int, rank: int, dtype: Any = "d") -> np.ndarray:
    """Small integers of any dtype, different at every place and mostly on every rank."""
    return ((np.arange(n) * 3 + rank * 11 + 1) % 61).astype(dtype)


Maker = Callable[[int, int], np.ndarray]     # (elements, rank) → what that rank contributes


@dataclass(frozen=True)
class Case:
    """A call: n is what mpi4py calls the count, of one block where there are several."""

    collective: str
    n: int = 0
    root: int = 0
    in_place: bool = False
    op: str = "SUM"
    make: Maker = data
    user: Any = field(default=None, compare=False)          # an MPI.Op to use in the place of op
    datatype: Any = field(default=None, compare=False)      # an MPI.Datatype, if not by the array's dtype

    def __str__(self) -> str:
        place = " in place" if self.in_place else ""
        return f"{self.collective} n={self.n} root={self.root}{place}"

    def run(self, comm: MPI.Intracomm) -> Outcome:
        """Make the call with fresh buffers."""
        if self.collective == "barrier":
            comm.Barrier()
            return Outcome(None, True, True)
        has_root = self.collective in ROOTED
        send, receive = self._bcast(comm) if self.collective == "bcast" else self._buffers(comm)
        before = None if send is None else send.copy()
        arguments = [self._typed(MPI.IN_PLACE if send is None and self._here(comm) else send),
                     self._typed(receive.view if receive else self._nowhere(comm))]
        if self.collective == "bcast":
            arguments = [self._typed(receive.view)]
        arguments += [self.user or getattr(MPI, self.op)] * (self.collective in REDUCING) + [self.root] * has_root
        getattr(comm, METHODS[self.collective])(*arguments)
        result = receive.view if receive else None
        if self.collective == "reduce_scatter" and self.in_place:
            result = result[: self.n]
        return Outcome(result, before is None or bool((send == before).all()), not receive or receive.intact)

    def untouched(self, comm: MPI.Intracomm) -> np.ndarray:
        """The receive buffer before the call: rank 0's of an exscan, of which MPI says nothing, stays so."""
        _, receive = self._buffers(comm)
        return receive.view.copy()

    def _typed(self, buffer: Any) -> Any:
        return [buffer, self.datatype] if self.datatype and isinstance(buffer, np.ndarray) else buffer

    def _here(self, comm: MPI.Intracomm) -> bool:
        """Whether MPI.IN_PLACE stands for this rank's contribution."""
        return self.in_place and self.collective != "scatter" and self._at_root(comm)

    def _at_root(self, comm: MPI.Intracomm) -> bool:
        return self.collective not in ROOTED or comm.rank == self.root

    def _nowhere(self, comm: MPI.Intracomm) -> Any:
        return MPI.IN_PLACE if self.collective == "scatter" else None

    def _bcast(self, comm: MPI.Intracomm) -> tuple[None, Guarded]:
        mine = self.make(self.n, comm.rank)
        receive = Guarded(self.n, mine.dtype)
        if comm.rank == self.root:
            receive.view[:] = mine
        return None, receive

    def _buffers(self, comm: MPI.Intracomm) -> tuple[np.ndarray | None, Guarded | None]:
        """(what is sent, where the result goes), None for a side that is not here or in place."""
        p, name, at_root = comm.size, self.collective, self._at_root(comm)
        mine = self.make(self.n * (p if name in WIDE_SEND else 1), comm.rank)
        width = self.n * (p if name in WIDE_RECEIVE or (name == "reduce_scatter" and self.in_place) else 1)
        if name == "scatter":
            receive = None if at_root and self.in_place else Guarded(width, mine.dtype)
            return (mine if at_root else None), receive
        receive = Guarded(width, mine.dtype) if at_root else None
        if not self._here(comm):
            return mine, receive
        own = slice(comm.rank * self.n, (comm.rank + 1) * self.n) if name in ("gather", "allgather") else slice(None)
        receive.view[own] = mine
        return None, receive


@dataclass(frozen=True)
class Outcome:
    """What a call left behind on this rank."""

    result: np.ndarray | None
    send_unchanged: bool
    guards_intact: bool


class Checks:
    """Collects what is wrong, so that no rank leaves the others alone in the middle of a test."""

    def __init__(self) -> None:
        self.wrong: list[str] = []

    def that(self, fine: Any, *said: object) -> None:
        """Note what is said unless it is fine."""
        if not fine:
            self.wrong.append(" ".join(map(str, said)))

    def equal(self, got: Any, expected: Any, *said: object) -> None:
        """Note a difference, bit for bit but for the sign of zero."""
        same = np.array_equal(got, expected) if isinstance(expected, np.ndarray) else got == expected
        self.that(same, *said, f": got {got}, expected {expected}")

    def __enter__(self) -> Checks:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            assert not self.wrong, "\n".join([f"{len(self.wrong)} wrong:", *self.wrong[:8]])


_expected: dict[Case, np.ndarray | None] = {}


def expected(comm: MPI.Intracomm, case: Case) -> np.ndarray | None:
    """What MPI's own collective gives; asked once per case. comm is a plain communicator of all ranks."""
    if case.user is not None or case.datatype is not None:
        got = case.run(comm).result
        return case.untouched(comm) if case.collective == "exscan" and comm.rank == 0 else got
    if case not in _expected:
        got = case.run(comm).result
        _expected[case] = case.untouched(comm) if case.collective == "exscan" and comm.rank == 0 else got
    return _expected[case]


def specs() -> Iterator[tuple[str, str]]:
    """Every (collective, algorithm) of the registry that suits these ranks, by name; but neighbourhoods."""
    for entry in registered():
        if entry.collective.name in METHODS and entry.is_exact and entry.serves(MPI.COMM_WORLD.size):
            yield entry.collective.name, entry.name


def variants() -> Iterator[tuple[str, str]]:
    """Algorithms with parameters: a few choices of the grids they are proved on, and of algorithms as parameters."""
    p = MPI.COMM_WORLD.size
    for entry in filter(attrgetter("is_exact"), registered()):
        if entry.collective.name not in METHODS:
            continue
        rows = [row for grid in entry.grid for row in grid.rows(p)]
        rows = rows[:: max(1, len(rows) // 3)][:3] + list(drawn(entry, p))
        for spec in dict.fromkeys(spelled(entry.name, row) for row in rows):
            with suppress(PreconditionError):
                mpicoll.schedule(entry.collective.name, spec, p)
                yield entry.collective.name, spec


def drawn(entry: Algorithm, p: int, number: int = 3) -> Iterator[dict[str, Any]]:
    """Choices for parameters that are algorithms, on groups of unequal size where there are groups."""
    kinds = {name: parameter.kind for name, parameter in entry.parameters.items()}
    draw = random.Random(f"{entry.title} {p}")
    for _ in range(number if any(isinstance(kind, Of) for kind in kinds.values()) else 0):
        yield {name: draw.choice(exact_algorithms(kind.collective)) if isinstance(kind, Of) else uneven(p)
               for name, kind in kinds.items() if isinstance(kind, Of | Groups)}


def spelled(name: str, row: dict[str, Any]) -> str:
    """An algorithm and its parameters as using() takes them."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in row.items())})"


def lanes(case: Case, spec: str, p: int, chunk_bytes: int | None) -> int:
    """How many chunks a call must be cut into, worked out anew: doubles, or bytes where nothing is reduced."""
    entry, parameters = parse_spec(case.collective, spec)
    if case.collective == "barrier":
        return 1
    reduces = case.collective in REDUCING
    unit, share = (8, case.n) if reduces else (1, case.n * 8)
    if case.collective in WHOLE:
        one_node = (tuple(range(p)),)                   # the tests run on one machine
        share = blocks.sizes(share, entry.blocks(p, one_node, **dict(parameters)))[0]
    nbytes = share * unit
    if chunk_bytes is None:
        return 1
    slice_ = max(unit, chunk_bytes // unit * unit)
    return max(1, -(-nbytes // slice_))


def check(checks: Checks, comm: mpicoll.Comm, plain: MPI.Intracomm, case: Case, spec: str, engine: str,
          times: int = 0, **how: int) -> None:
    """Run a case by one algorithm on one engine, and hold it against MPI's own.

    So often that the last call goes the fast path where there is one, which has seen no such call; or `times`.
    """
    said = (case, spec, engine, how)
    times = times or (AGAIN if engine == "compiled" and type(comm) is mpicoll.Comm else 1)
    with comm.using(engine=engine, **{case.collective: spec}, **how), comm.trace() as records:
        if type(comm) is mpicoll.Comm:
            comm._open().fast_path.clear()
        outcomes = [case.run(comm) for _ in range(times)]
    want = expected(plain, case)
    for outcome in outcomes:
        checks.that((outcome.result is None) == (want is None), *said, "has a result")
        if want is not None:
            checks.equal(outcome.result, want, *said)
        checks.that(outcome.send_unchanged, *said, "changed its send buffer")
        checks.that(outcome.guards_intact, *said, "wrote outside its receive buffer")
    checks.equal([(r.collective, r.algorithm, r.engine) for r in records],
                 [(case.collective, spec, engine)] * getattr(comm, "times", times), *said, "trace")
    for record in records:
        check_record(checks, record, case, comm.size, said)
    if is_direct(case, comm) and engine == "compiled" and times == AGAIN and not comm._state.settings.check:
        checks.equal([r.fast_path for r in records], [False] * (AGAIN - 1) + [True], *said, "the short way")


def is_direct(case: Case, comm: MPI.Intracomm) -> bool:
    """Whether calls must go the fast path from the third on. In place, some rank may have to go by a copy."""
    return not case.in_place and case.n * comm.size < 4000 and case.user is None and case.datatype is None


def check_record(checks: Checks, record: Any, case: Case, p: int, said: tuple[object, ...]) -> None:
    """Chunks and messages of one traced call."""
    checks.equal(record.lanes, lanes(case, record.algorithm, p, record.chunk_bytes), *said, "lanes")
    talks = p > 1 and (case.n > 0 or case.collective == "barrier")
    checks.that(record.messages > 0 if talks else record.bytes == 0, *said, f"messages: {record}")
