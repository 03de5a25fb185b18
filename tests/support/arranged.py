"""A call of any method as a value: what this rank passes, however it is spelt, and what it must hold afterwards.

What must arrive is worked out here and not asked of the MPI, so that the same can be asserted of MPI's own methods
and of ours. Memory around and between the data must come back unchanged.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

import mpicoll
from mpicoll.dispatch.methods import METHODS, Method

ROOTED = ("Bcast", "Scatter", "Gather", "Reduce", "Scatterv", "Gatherv")
REDUCING = ("Reduce", "Allreduce", "Reduce_scatter_block", "Reduce_scatter", "Scan", "Exscan")
PLAIN = ("Bcast", "Scatter", "Gather", "Allgather", "Alltoall", *REDUCING)
IN_PLACE = PLAIN[1:]
WIDE_SEND = ("Scatter", "Alltoall", "Reduce_scatter_block", "Reduce_scatter")   # a block for every rank
WIDE_RECEIVE = ("Gather", "Allgather", "Alltoall")
NOTHING = 77                # what memory holds in which nothing has arrived
PAD = 2                     # elements around the data, in the forms that leave room


@dataclass
class Arranged:
    """A call that is ready to be made, in any form. memory and want are whole: data, and what lies around it."""

    method: Method
    arguments: tuple[Any, ...]
    memory: np.ndarray | None = None        # what is received into
    want: np.ndarray | None = None
    sent: np.ndarray | None = None
    compared: int | None = None             # elements of what is received; MPI leaves the rest undefined
    datatypes: list[MPI.Datatype] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = None if self.sent is None else self.sent.copy()

    def run(self, comm: MPI.Intracomm) -> None:
        """Make the call in the blocking form."""
        getattr(comm, self.method.name)(*self.arguments)

    def begin(self, comm: MPI.Intracomm, form: str) -> MPI.Request:
        """Make the call in another form: its request."""
        return getattr(comm, self.method.spelled(form))(*self.arguments)

    @property
    def unchanged(self) -> bool:
        """Whether what was sent is as it was."""
        return self.sent is None or self.sent.tobytes() == self.before.tobytes()

    @property
    def wrong(self) -> str:
        """What is not as it must be; nothing where all is well."""
        if self.memory is not None and not np.array_equal(self.memory[: self.compared], self.want[: self.compared]):
            return f"got {self.memory[: self.compared]}, expected {self.want[: self.compared]}"
        return "" if self.unchanged else f"sent {self.before}, and then it was {self.sent}"

    def free(self) -> None:
        """Let go of the datatypes made for it."""
        while self.datatypes:
            self.datatypes.pop().Free()


# -- one buffer, spelt in every way mpi4py takes


@dataclass
class Spelt:
    """A buffer argument: its memory, and where in it the data begins, or where its elements lie."""

    argument: Any
    memory: np.ndarray
    at: int = 0
    datatypes: Sequence[MPI.Datatype] = ()
    places: np.ndarray | None = None

    def where(self, n: int) -> slice | np.ndarray:
        """Where the first elements are."""
        return slice(self.at, self.at + n) if self.places is None else self.places[:n]


@dataclass(frozen=True)
class Spelling:
    """A way to say (values, elements of one block); not every way suits receiving, or reductions."""

    spell: Callable[[np.ndarray, int], Spelt]
    dtype: str = "d"
    op: str = "SUM"
    receives: bool = True
    reduces: bool = True
    empty: bool = True          # whether it can say nothing

    def values(self, n: int, rank: int) -> np.ndarray:
        """What a rank contributes: whole numbers of which those of eight ranks fit any type."""
        return ((np.arange(n) * 3 + rank * 5 + 1) % 11).astype(self.dtype)

    def folded(self, contributions: Sequence[np.ndarray]) -> np.ndarray:
        """What the operator makes of them."""
        fold = {"SUM": np.add, "BXOR": np.bitwise_xor, "LOR": np.logical_or}[self.op]
        return fold.reduce(contributions, axis=0).astype(self.dtype)


class Packed:
    """An object with DLPack and no buffer interface."""

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def __dlpack__(self, **options: Any) -> Any:
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.data.__dlpack_device__()


def view(made: Any, dtype: str) -> np.ndarray:
    """The memory of an object that is no array."""
    return np.frombuffer(made, dtype) if len(made) else np.zeros(0, dtype)


def itself(values: np.ndarray, n: int) -> Spelt:
    """An array."""
    made = values.copy()
    return Spelt(made, made)


def of(wrap: Callable[[np.ndarray, int], Any]) -> Callable[[np.ndarray, int], Spelt]:
    """Spell by what a function makes of an array."""

    def spell(values: np.ndarray, n: int) -> Spelt:
        made = values.copy()
        return Spelt(wrap(made, n), made)

    return spell


def by(make: Callable[[np.ndarray], Any]) -> Callable[[np.ndarray, int], Spelt]:
    """Spell by an object that has the values in memory of its own."""

    def spell(values: np.ndarray, n: int) -> Spelt:
        made = make(values)
        return Spelt(made, view(made, values.dtype.char))

    return spell


def within(wrap: Callable[[np.ndarray, int], Any], before: int = 0) -> Callable[[np.ndarray, int], Spelt]:
    """Spell by what a function makes of an array that has room around the values."""

    def spell(values: np.ndarray, n: int) -> Spelt:
        made = np.full(before + len(values) + PAD, NOTHING).astype(values.dtype)
        made[before : before + len(values)] = values
        return Spelt(wrap(made, n), made, before)

    return spell


def frozen(values: np.ndarray, n: int) -> Spelt:
    """A read-only array."""
    made = values.copy()
    made.flags.writeable = False
    return Spelt(made, made)


def absolute(values: np.ndarray, n: int) -> Spelt:
    """MPI.BOTTOM and a datatype made of addresses, one element of it to a block."""
    made = values.copy()
    block = MPI.DOUBLE.Create_hindexed([n], [MPI.Get_address(made)])
    resized = block.Create_resized(0, 8 * n).Commit()
    block.Free()
    return Spelt([MPI.BOTTOM, 1, resized], made, 0, [resized])


def columns(values: np.ndarray, n: int) -> Spelt:
    """A matrix with a block in every column, and a column more: the next block begins 8 bytes further on."""
    width = len(values) // n + 1
    made = np.full(n * width, NOTHING).astype(values.dtype)
    places = np.arange(n * width).reshape(n, width)[:, :-1].T.ravel()
    made[places] = values
    vector = MPI.DOUBLE.Create_vector(n, 1, width)
    column = vector.Create_resized(0, 8).Commit()
    vector.Free()
    return Spelt([made, 1, column], made, 0, [column], places)


def by_address(values: np.ndarray, n: int) -> Spelt:
    """A column of a matrix by its address and how many bytes of data it has, which goes on behind them: as torch's
    tensors are given by programs such as Heat."""
    made, places = np.full(3 * len(values), NOTHING).astype(values.dtype), np.arange(1, 3 * len(values), 3)
    made[places] = values
    one = MPI.DOUBLE.Create_resized(0, 24).Commit()
    return Spelt([MPI.buffer.fromaddress(made[1:].ctypes.data, values.nbytes), n, one], made, 0, [one], places)


SPELLINGS: dict[str, Spelling] = {
    "array": Spelling(itself),
    "two dimensions": Spelling(of(lambda a, n: a.reshape(-1, 1))),
    "memoryview": Spelling(of(lambda a, n: memoryview(a))),
    "DLPack": Spelling(of(lambda a, n: Packed(a))),
    "array.array": Spelling(by(lambda a: array.array("i", a.tolist())), "i"),
    "ctypes": Spelling(by(lambda a: (ctypes.c_double * len(a))(*a))),
    "bytearray": Spelling(by(lambda a: bytearray(a.tobytes())), "B"),
    "bytearray and type": Spelling(of(lambda a, n: [memoryview(a), MPI.BYTE]), "B", "BXOR"),
    "MPI.buffer": Spelling(of(lambda a, n: MPI.buffer.frombuffer(a)), "B"),
    "bytes": Spelling(by(lambda a: a.tobytes()), "B", receives=False),
    "read-only": Spelling(frozen, receives=False),
    "type": Spelling(of(lambda a, n: [a, MPI.DOUBLE])),
    "typecode": Spelling(of(lambda a, n: (a, "d"))),
    "type and no count": Spelling(of(lambda a, n: [a, None, MPI.DOUBLE])),
    "count": Spelling(within(lambda a, n: [a, n])),
    "NumPy count": Spelling(within(lambda a, n: (a, np.int32(n)))),
    "count and type": Spelling(within(lambda a, n: [a, n, MPI.DOUBLE])),
    "count and displacement": Spelling(within(lambda a, n: [a, (n, PAD)], PAD)),
    "count, displacement, type": Spelling(within(lambda a, n: (a, (n, PAD), MPI.DOUBLE), PAD)),
    "both in a list": Spelling(within(lambda a, n: [a, [n, PAD], MPI.DOUBLE], PAD)),
    "bytes of doubles": Spelling(within(lambda a, n: [a.view("u1"), n, MPI.DOUBLE])),
    "four": Spelling(within(lambda a, n: [a, n, PAD, MPI.DOUBLE], PAD)),
    "four of a memoryview": Spelling(within(lambda a, n: [memoryview(a), n, PAD, "d"], PAD)),
    "absolute addresses": Spelling(absolute, reduces=False, empty=False),
    "columns": Spelling(columns, reduces=False, empty=False),
    "address of a column": Spelling(by_address, reduces=False, empty=False),
}
DERIVED = ("columns", "address of a column")
ARRAY = SPELLINGS["array"]


def spelling_of(dtype: str) -> Spelling:
    """An array of a dtype of which mpi4py finds the datatype itself."""
    return Spelling(itself, dtype, "LOR" if dtype == "?" else "SUM")


# -- calls


def arrange(name: str, comm: MPI.Intracomm, spelling: Spelling = ARRAY, n: int = 3, root: int = 0,
            in_place: bool = False) -> Arranged:
    """A call of a method whose blocks are all of n elements; None is passed for what counts at the root only."""
    p, rank, method = comm.size, comm.rank, METHODS[name]
    if name == "Barrier":
        return Arranged(method, ())
    ours = isinstance(comm, mpicoll.Comm)
    here, own = name not in ROOTED or rank == root, slice(rank * n, (rank + 1) * n)
    every = [spelling.values(n * (p if name in WIDE_SEND else 1), r) for r in range(p)]
    got = result(name, spelling, every, rank, root, own)
    into = spelling if spelling.receives else Spelling(itself, spelling.dtype)
    nothing = np.full(n * (p if name in WIDE_RECEIVE else 1), NOTHING).astype(spelling.dtype)
    after = (*([n] * p,) * (name == "Reduce_scatter"), *(getattr(MPI, spelling.op),) * (name in REDUCING),
             *(root,) * (name in ROOTED))
    if name == "Bcast":
        spelt = (spelling if here else into).spell(every[root] if here else nothing, n)
        return received(ours, method, (spelt.argument, *after), None, spelt, got)
    if in_place and here:
        if name == "Scatter":
            sent = spelling.spell(every[rank], n)
            return received(ours, method, (sent.argument, MPI.IN_PLACE, *after), sent, None, got)
        memory = nothing if name in ("Gather", "Allgather") else every[rank].copy()
        memory[own if name in ("Gather", "Allgather") else slice(len(every[rank]))] = every[rank]
        spelt = into.spell(memory, n * p if name == "Reduce_scatter" else n)
        return received(ours, method, (MPI.IN_PLACE, spelt.argument, *after), None, spelt, got)
    sends, receives = name != "Scatter" or here, name not in ("Gather", "Reduce") or here
    sent = spelling.spell(every[rank], n * p if name == "Reduce_scatter" else n) if sends else None
    spelt = into.spell(nothing, n) if receives else None
    return received(ours, method, (sent and sent.argument, spelt and spelt.argument, *after), sent, spelt, got)


def result(name: str, spelling: Spelling, every: Sequence[np.ndarray], rank: int, root: int,
           own: slice) -> np.ndarray:
    """What a rank receives of what all contribute."""
    if name in ("Bcast", "Scatter"):
        return every[root] if name == "Bcast" else every[root][own]
    if name in ("Gather", "Allgather", "Alltoall"):
        return np.concatenate([each[own] if name == "Alltoall" else each for each in every])
    if name == "Exscan" and rank == 0:
        return every[0][:0]
    last = {"Scan": rank + 1, "Exscan": rank}.get(name, len(every))
    return spelling.folded(every[:last])[own if name.startswith("Reduce_scatter") else slice(None)]


def received(ours: bool, method: Method, arguments: tuple[Any, ...], sent: Spelt | None, into: Spelt | None,
             got: np.ndarray) -> Arranged:
    """The call, whose receive buffer must hold what it holds now but for what arrives.

    MPI leaves that of rank 0 in an Exscan undefined, which ours leaves alone."""
    made = Arranged(method, arguments, sent=None if sent is None else sent.memory)
    made.datatypes = [datatype for spelt in (sent, into) if spelt for datatype in spelt.datatypes]
    if into is not None:
        made.memory, made.want = into.memory, into.memory.copy()
        made.want[into.where(len(got))] = got
        if method.name == "Exscan" and not len(got) and not ours:
            made.compared = 0
        elif method.name.startswith("Reduce_scatter") and arguments[0] is MPI.IN_PLACE:
            made.compared = into.at + len(got)
    return made


def by_name(name: str, comm: MPI.Intracomm, n: int = 3) -> Arranged:
    """A call of any method, with the last rank as its root."""
    from support import vectors

    root = comm.size - 1
    if name.lower() in vectors.METHODS:
        return vectors.Call(name.lower(), "uneven", "strewn", root).arrange(comm)
    return arrange(name, comm, ARRAY, n, root)


def every(comm: MPI.Intracomm, n: int = 3) -> list[Arranged]:
    """A call of every method."""
    return [by_name(name, comm, n) for name in METHODS]


def spellings(name: str) -> Iterator[tuple[str, Spelling]]:
    """The ways that suit a method."""
    for words, spelling in SPELLINGS.items():
        if spelling.reduces or name not in REDUCING:
            yield words, spelling
