"""Calls of collectives with counts for each rank: what each rank sends, and all that its memory must hold afterwards.

Each block says in its numbers where it comes from and where it goes. Guard zones and the gaps between blocks must come
back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.dispatch.methods import METHODS, Method
from mpicoll.schedules.collectives import at_namesake, at_root
from support.cases import Case
from support.collectives import VECTOR, meaning, method_of
from support.prepared import PreparedCall

PAD, FILLER = 3, -1.0                   # numbers in a guard zone, and what is in them and in gaps
Counts = Callable[[int, int, int], int]         # (p, source, destination) → numbers

COUNTS: dict[str, Counts] = {
    "nothing": lambda p, s, d: 0,
    "uneven": lambda p, s, d: (3 * s + 5 * d + 2) % 7,
    "one has all": lambda p, s, d: 11 * (s == d == p - 1) + 9 * (s == 0 and d == p - 1),
    "a long one": lambda p, s, d: 40 if (s + d) % p == 1 % p else (s + d) % 3,
}
SYMMETRIC = {name: lambda p, s, d, f=f: f(p, min(s, d), max(s, d)) for name, f in COUNTS.items()}


def packed(sizes: Sequence[int]) -> list[int]:
    """Return displacements of blocks one behind the other."""
    return [sum(sizes[:i]) for i in range(len(sizes))]


def with_gaps(sizes: Sequence[int]) -> list[int]:
    """Return displacements of blocks in reverse order, with gaps."""
    return [2 + sum(n + 1 + i % 2 for i, n in enumerate(sizes) if i > own) for own in range(len(sizes))]


PLACEMENTS = {"packed": packed, "with gaps": with_gaps}


def block(source: int, destination: int, n: int) -> np.ndarray:
    """Return what one rank sends another."""
    return 1 + source * 10_000.0 + destination * 100 + np.arange(n)


def placed(blocks: dict[int, np.ndarray], displacements: Sequence[int]) -> np.ndarray:
    """Return memory with blocks at displacements, guard zones around them and FILLER between."""
    end = max((displacements[i] + len(data) for i, data in blocks.items()), default=0)
    memory = np.full(end + 2 * PAD, FILLER)
    for i, data in blocks.items():
        memory[PAD + displacements[i] : PAD + displacements[i] + len(data)] = data
    return memory


@dataclass(frozen=True)
class VectorCase:
    """A call with counts, whatever the communicator: names in COUNTS and PLACEMENTS."""

    collective: str
    counts: str = "uneven"
    placement: str = "with gaps"
    root: int = 0
    in_place: bool = False

    @property
    def method(self) -> Method:
        """The method that is called."""
        return method_of(self.collective)

    def size(self, p: int, source: int, destination: int) -> int:
        """Return the numbers from one rank to another; they depend on one of them only if just one has blocks."""
        what = meaning(self.collective)
        if what.starts is at_namesake:
            destination = p - 1
        elif what.starts is at_root:
            source = 0
        return (SYMMETRIC if self.in_place else COUNTS)[self.counts](p, source, destination)

    def run(self, comm: MPI.Intracomm) -> PreparedCall:
        """Make the call with new buffers."""
        prepared = self.prepare(comm)
        prepared.run(comm)
        return prepared

    def prepare(self, comm: MPI.Intracomm, form: Callable[..., Any] | None = None) -> PreparedCall:
        """Return the call with new buffers on this rank; form is one of VECTOR_FORMS or TYPED_FORMS."""
        p, rank, what, displacements = comm.size, comm.rank, meaning(self.collective), PLACEMENTS[self.placement]
        form = form or (typed if self.method.name == "Alltoallw" else full)
        wide_send, wide_receive = what.starts is not at_namesake, what.ends is not at_namesake
        out = {d: block(rank, d if wide_send else 0, self.size(p, rank, d)) for d in range(p)}
        into = {s: block(s, rank if wide_send else 0, self.size(p, s, rank)) for s in range(p)}
        here = not what.rooted or rank == self.root

        def argument(memory: np.ndarray, blocks: dict[int, np.ndarray], is_wide: bool) -> Any:
            """Return the buffer argument of memory from placed()."""
            data, sizes = memory[PAD : len(memory) - PAD], [len(values) for values in blocks.values()]
            return form(data, sizes, displacements(sizes)) if is_wide else data

        def memory_of(blocks: dict[int, np.ndarray], is_wide: bool) -> np.ndarray:
            sizes = [len(values) for values in blocks.values()]
            return placed(blocks, displacements(sizes)) if is_wide else placed({0: blocks[self.root]}, [0])

        send = memory_of(out, wide_send) if here or not wide_send else None
        expected = memory_of(into, wide_receive) if here or not wide_receive else None
        received = None if expected is None else np.full(len(expected), FILLER)
        first = None if send is None else argument(send, out, wide_send)
        second = None if received is None else argument(received, into, wide_receive)
        if self.in_place and here:
            if not wide_receive:
                second, received, expected = MPI.IN_PLACE, None, None
            else:
                own = {s: block(rank, s, len(into[s])) for s in range(p)} if wide_send else {rank: into[rank]}
                filled = placed(own, displacements([len(values) for values in into.values()]))
                received[: len(filled) - PAD] = filled[: len(filled) - PAD]
                first = MPI.IN_PLACE
        arguments = {"send": first, "recv": second, "root": self.root}
        return PreparedCall(self.method, tuple(arguments[name] for name in self.method.takes.split()), send, received,
                            expected)


def prepare(name: str, comm: MPI.Intracomm, n: int = 3, root: int | None = None) -> PreparedCall:
    """Return a call of any method of MPI.Intracomm; n is the count of equal blocks. The root is the last rank."""
    root = comm.size - 1 if root is None else root
    case = VectorCase(name.lower(), root=root) if name.lower() in VECTOR else Case(name, n, root)
    return case.prepare(comm)


def prepare_all(comm: MPI.Intracomm, n: int = 3) -> list[PreparedCall]:
    """Return a call of each method."""
    return [prepare(name, comm, n) for name in METHODS]


# -- forms of a buffer argument with counts


def full(data: np.ndarray, counts: Sequence[int], at: Sequence[int]) -> list[Any]:
    """Return the longest form."""
    return [data, counts, at, MPI.DOUBLE]


def typed(data: np.ndarray, counts: Sequence[int], at: Sequence[int]) -> list[Any]:
    """Return Alltoallw's longest form."""
    return [data, counts, [8 * x for x in at], [MPI.DOUBLE] * len(counts)]


VECTOR_FORMS: dict[str, Callable[..., Any]] = {         # those without displacements are for packed blocks
    "counts": lambda data, counts, at: [data, counts],
    "counts in a tuple of lists": lambda data, counts, at: (data, list(counts)),
    "NumPy counts": lambda data, counts, at: [data, np.array(counts, "i4")],
    "counts and type": lambda data, counts, at: [data, counts, MPI.DOUBLE],
    "counts and typecode": lambda data, counts, at: [data, counts, "d"],
    "counts, no displacements": lambda data, counts, at: [data, counts, None, "d"],
    "four, no type": lambda data, counts, at: [data, counts, at, None],
    "four, int32": lambda data, counts, at: [data, np.array(counts, "i4"), np.array(at, "i4"), MPI.DOUBLE],
    "both": lambda data, counts, at: [data, (counts, at)],
    "both and type": lambda data, counts, at: (data, (counts, at), MPI.DOUBLE),
    "NumPy both": lambda data, counts, at: [data, (np.array(counts), np.array(at)), "d"],
    "tuples": lambda data, counts, at: [data, tuple(counts), tuple(at), MPI.DOUBLE],
    "bytes": lambda data, counts, at: [data.view("u1"), [8 * n for n in counts], [8 * x for x in at], MPI.BYTE],
    "memoryview": lambda data, counts, at: [memoryview(data), (counts, at)],
}
PACKED_ONLY = ("counts", "counts in a tuple of lists", "NumPy counts", "counts and type", "counts and typecode",
               "counts, no displacements")
TYPED_FORMS: dict[str, Callable[..., Any]] = {          # of Alltoallw
    "four": typed,
    "three": lambda data, counts, at: (data, (counts, [8 * x for x in at]), [MPI.DOUBLE] * len(counts)),
    "NumPy": lambda data, counts, at: [data, np.array(counts), 8 * np.array(at), (MPI.DOUBLE,) * len(counts)],
    "bytes": lambda data, counts, at: [
        data.view("u1"), [8 * n for n in counts], [8 * x for x in at], [MPI.BYTE] * len(counts)],
    "no type for nothing": lambda data, counts, at: [
        data, counts, [8 * x for x in at], [MPI.DOUBLE if n else MPI.DATATYPE_NULL for n in counts]],
}


def forms_for(name: str) -> dict[str, Callable[..., Any]]:
    """Return the forms of a method's buffer arguments with counts, by name."""
    return TYPED_FORMS if name.lower() == "alltoallw" else VECTOR_FORMS
