"""Calls of collectives with counts for every rank, as values: what each rank passes, and all it must hold afterwards.

Every block says in its numbers where it comes from and where it goes, so what must arrive is worked out here and not
asked of the MPI. Receive buffers are whole arrays: guard zones and the gaps between blocks must come back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from mpicoll.dispatch import methods
from mpicoll.schedules.collectives import base_collective
from mpicoll.schedules.registry import exact_algorithms, find
from support import cases
from support.arranged import Arranged

METHODS = {
    "scatterv": "Scatterv", "gatherv": "Gatherv", "allgatherv": "Allgatherv", "alltoallv": "Alltoallv",
    "alltoallw": "Alltoallw",
}
ROOTED = ("scatterv", "gatherv")
PAIRS = ("alltoallv", "alltoallw")
PAD, NOTHING = 3, -1.0                  # numbers in a guard zone, and what is in them and in gaps
Counts = Callable[[int, int, int], int]         # (p, source, destination) → numbers

COUNTS: dict[str, Counts] = {
    "nothing": lambda p, s, d: 0,
    "uneven": lambda p, s, d: (3 * s + 5 * d + 2) % 7,
    "one has all": lambda p, s, d: 11 * (s == d == p - 1) + 9 * (s == 0 and d == p - 1),
    "a long one": lambda p, s, d: 40 if (s + d) % p == 1 % p else (s + d) % 3,
}
SYMMETRIC = {name: lambda p, s, d, f=f: f(p, min(s, d), max(s, d)) for name, f in COUNTS.items()}


def specs() -> Iterator[tuple[str, str]]:
    """Every (collective, algorithm) that suits these ranks."""
    for collective in METHODS:
        for name in names(collective):
            yield collective, name


def names(collective: str) -> list[str]:
    """Its algorithms that suit these ranks."""
    return [x for x in exact_algorithms(collective) if find(collective, x).serves(MPI.COMM_WORLD.size)]


def variants() -> Iterator[tuple[str, str]]:
    """Algorithms with parameters."""
    for served, spec in cases.variants():
        for collective in METHODS:
            if base_collective(collective) == served:
                yield collective, spec


def packed(sizes: Sequence[int]) -> list[int]:
    """One behind the other."""
    return [sum(sizes[:i]) for i in range(len(sizes))]


def strewn(sizes: Sequence[int]) -> list[int]:
    """The last first, with gaps."""
    return [2 + sum(n + 1 + i % 2 for i, n in enumerate(sizes) if i > own) for own in range(len(sizes))]


ORDERS = {"packed": packed, "strewn": strewn}


def block(source: int, destination: int, n: int) -> np.ndarray:
    """What one rank sends another."""
    return 1 + source * 10_000.0 + destination * 100 + np.arange(n)


def laid(blocks: dict[int, np.ndarray], at: Sequence[int]) -> np.ndarray:
    """Blocks in their places, with guard zones around and NOTHING between."""
    end = max((at[i] + len(data) for i, data in blocks.items()), default=0)
    made = np.full(end + 2 * PAD, NOTHING)
    for i, data in blocks.items():
        made[PAD + at[i] : PAD + at[i] + len(data)] = data
    return made


@dataclass(frozen=True)
class Call:
    """A call: how many numbers go where, and how they lie."""

    collective: str
    counts: str
    order: str
    root: int = 0
    in_place: bool = False

    def size(self, p: int, source: int, destination: int) -> int:
        """Numbers from one rank to another; in gatherv and its like a rank's share is its own matter."""
        if self.collective in ("gatherv", "allgatherv"):
            destination = p - 1
        elif self.collective == "scatterv":
            source = 0
        return (SYMMETRIC if self.in_place else COUNTS)[self.counts](p, source, destination)

    def run(self, comm: MPI.Intracomm, message: Callable[..., Any] | None = None) -> tuple[Any, Any, bool]:
        """(receive buffer, what it must be, whether the send buffer is as it was); None for what is not here."""
        made = self.arrange(comm, message)
        made.run(comm)
        return made.memory, made.want, made.unchanged

    def arrange(self, comm: MPI.Intracomm, message: Callable[..., Any] | None = None) -> Arranged:
        """The call, ready to be made in any form."""
        p, rank, name = comm.size, comm.rank, self.collective
        message = message or (of_types if name == "alltoallw" else full)
        out = {d: block(rank, d if name in (*PAIRS, "scatterv") else 0, self.size(p, rank, d)) for d in range(p)}
        into = {s: block(s, rank if name in (*PAIRS, "scatterv") else 0, self.size(p, s, rank)) for s in range(p)}
        order = ORDERS[self.order]
        here = name not in ROOTED or rank == self.root
        in_place = self.in_place and here
        wide_send, wide_receive = name in (*PAIRS, "scatterv"), name != "scatterv"
        if name == "scatterv":
            into = {self.root: block(self.root, rank, self.size(p, self.root, rank))}
        send = receive = want = None
        if not wide_send:
            send = laid({0: out[self.root]}, [0])
        elif here:
            at = order([len(out[d]) for d in range(p)])
            send = laid(out, at)
            sent = (send[PAD : len(send) - PAD], [len(out[d]) for d in range(p)], at)
        if not wide_receive:
            want = laid({0: into[self.root]}, [0])
            receive = np.full(len(want), NOTHING)
        elif here:
            at = order([len(into[s]) for s in range(p)])
            want = laid(into, at)
            before = {s: block(rank, s, len(into[s])) for s in range(p)} if name in PAIRS else {rank: into[rank]}
            receive = np.full(len(want), NOTHING)
            if in_place:
                filled = laid(before, at)
                receive[: len(filled) - PAD] = filled[: len(filled) - PAD]
            got = (receive[PAD : len(receive) - PAD], [len(into[s]) for s in range(p)], at)
        first: Any = message(*sent) if wide_send and here else None if wide_send else send[PAD : len(send) - PAD]
        second: Any = message(*got) if wide_receive and here else None if wide_receive else receive[PAD:-PAD]
        if in_place and name == "scatterv":
            second, receive, want = MPI.IN_PLACE, None, None
        elif in_place:
            first = MPI.IN_PLACE
        arguments = (first, second, *[self.root] * (name in ROOTED))
        return Arranged(methods.METHODS[METHODS[name]], arguments, receive, want, send)


def full(data: np.ndarray, counts: Sequence[int], at: Sequence[int]) -> list[Any]:
    """The longest form."""
    return [data, counts, at, MPI.DOUBLE]


def of_types(data: np.ndarray, counts: Sequence[int], at: Sequence[int]) -> list[Any]:
    """Alltoallw's longest form."""
    return [data, counts, [8 * x for x in at], [MPI.DOUBLE] * len(counts)]


FORMS: dict[str, Callable[..., Any]] = {         # those without displacements are for packed blocks
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
FORMS_OF_TYPES: dict[str, Callable[..., Any]] = {
    "four": of_types,
    "three": lambda data, counts, at: (data, (counts, [8 * x for x in at]), [MPI.DOUBLE] * len(counts)),
    "NumPy": lambda data, counts, at: [data, np.array(counts), 8 * np.array(at), (MPI.DOUBLE,) * len(counts)],
    "bytes": lambda data, counts, at: [
        data.view("u1"), [8 * n for n in counts], [8 * x for x in at], [MPI.BYTE] * len(counts)],
    "no type for nothing": lambda data, counts, at: [
        data, counts, [8 * x for x in at], [MPI.DOUBLE if n else MPI.DATATYPE_NULL for n in counts]],
}
