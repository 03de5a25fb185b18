"""The graphs of neighbourhood collectives: which rank sends to which, and the name of every block that travels.

An edge (source, destination, k) is the name of one block: the k-th of those that the source sends to the destination,
in the order of the source's list. Messages of one sender match in that order, so both ends have one name for a block
though each knows only its own lists. A rank may be its own neighbour, and a neighbour several times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple, overload

from .collectives import Block

Edge = tuple[int, int, int]
ABSENT = -1  # a place in a list whose neighbour does not exist: at the border of a grid
KEPT = 4096  # ranks whose edges a graph remembers


class Ends(NamedTuple):
    """One rank's edges: those it sends along, and those it receives along, each in the order of its buffer.

    `sends` and `receives` have None for a place of the buffer whose neighbour does not exist.
    """

    sends: tuple[Edge | None, ...]
    receives: tuple[Edge | None, ...]


class Graph(Sequence[Block]):
    """The edges of p ranks; those of a rank are computed when asked for, so that no rank needs to know them all.

    words: what pictures and errors call it. As a sequence it has all edges, sender by sender.
    """

    def __init__(self, p: int, words: str, ends: Callable[[int], Ends]) -> None:
        self.p, self.words = p, words
        self.ends = lru_cache(KEPT)(ends)

    def __repr__(self) -> str:
        return self.words

    def leaving(self, rank: int) -> tuple[Edge, ...]:
        """Return the edges along which a rank sends, in the order of its send buffer."""
        return tuple(edge for edge in self.ends(rank).sends if edge is not None)

    def entering(self, rank: int) -> tuple[Edge, ...]:
        """Return the edges along which a rank receives, in the order of its receive buffer."""
        return tuple(edge for edge in self.ends(rank).receives if edge is not None)

    @cached_property
    def most_sent(self) -> int:
        """Return the most blocks that any rank sends, itself included."""
        return max(len(self.leaving(rank)) for rank in range(self.p))

    @property
    def degree(self) -> int:
        """Return the most messages that any rank sends, or receives; what it sends itself is none."""
        most = 0
        for rank in range(self.p):
            for edges in (self.leaving(rank), self.entering(rank)):
                most = max(most, sum(source != destination for source, destination, _ in edges))
        return most

    @property
    def has_equal_blocks(self) -> bool:
        """Return whether all ranks' neighbours are at the same offsets, so that all blocks are equally long."""
        return False

    @property
    def most_forwarded(self) -> int:
        """Return the most blocks that a message can carry."""
        return len(self)

    def __len__(self) -> int:
        return sum(len(self.leaving(rank)) for rank in range(self.p))

    @overload
    def __getitem__(self, index: int) -> Block: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Block]: ...
    def __getitem__(self, index: int | slice) -> Block | Sequence[Block]:
        return list(self)[index]

    def __iter__(self) -> Iterator[Block]:
        return (edge for rank in range(self.p) for edge in self.leaving(rank))


def numbered(rank: int, sources: Sequence[int], destinations: Sequence[int]) -> Ends:
    """Return the edges of a rank whose lists are those of a graph: blocks of one sender arrive in the order of both.

    >>> numbered(0, (1, 0), (1, 1, 0, ABSENT))
    Ends(sends=((0, 1, 0), (0, 1, 1), (0, 0, 0), None), receives=((1, 0, 0), (0, 0, 0)))
    """
    to, of = defaultdict[int, int](int), defaultdict[int, int](int)
    sends: list[Edge | None] = []
    for other in destinations:
        sends.append(None if other == ABSENT else (rank, other, to[other]))
        to[other] += 1
    receives: list[Edge | None] = []
    for other in sources:
        receives.append(None if other == ABSENT else (other, rank, of[other]))
        of[other] += 1
    return Ends(tuple(sends), tuple(receives))


def listed(p: int, words: str, lists: Callable[[int], tuple[Sequence[int], Sequence[int]]]) -> Graph:
    """Return the graph in which a rank has these (sources, destinations)."""
    return Graph(p, words, lambda rank: numbered(rank, *lists(rank)))


def cartesian(dims: Sequence[int], periods: Sequence[bool]) -> Graph:
    """Return the graph of a grid: in every dimension the neighbour before, then the one behind.

    What a rank sends one way arrives from the other way. In a periodic dimension of 1 or 2 ranks both neighbours are
    one rank, so the blocks of two of its places change places on the way.

    >>> ring = cartesian((2,), (True,))
    >>> ring.leaving(0), ring.entering(1)
    (((0, 1, 0), (0, 1, 1)), ((0, 1, 1), (0, 1, 0)))
    """
    dims, periods = tuple(dims), tuple(map(bool, periods))
    around = [prod(dims[d + 1 :]) for d in range(len(dims))]  # how far apart neighbours' ranks are

    def neighbours(rank: int) -> list[int]:
        ranks: list[int] = []
        for n, periodic, apart in zip(dims, periods, around, strict=True):
            at = rank // apart % n
            ranks += [
                rank + (there % n - at) * apart if periodic or 0 <= there < n else ABSENT
                for there in (at - 1, at + 1)
            ]
        return ranks

    def ends(rank: int) -> Ends:
        near = neighbours(rank)
        receives = [None if other == ABSENT else numbered(other, (), neighbours(other)).sends[i ^ 1]
                    for i, other in enumerate(near)]  # fmt: skip
        return Ends(numbered(rank, (), near).sends, tuple(receives))

    kind = "periodic" if all(periods) else "partly periodic" if any(periods) else "bounded"
    return Graph(prod(dims), f"{kind} {'x'.join(map(str, dims)) or 'empty'} grid", ends)


# -- graphs that algorithms are proved on, by the number of ranks


def ring(p: int) -> Graph:
    """Return a periodic grid of one dimension."""
    return cartesian((p,), (True,))


def line(p: int) -> Graph:
    """Return a grid of one dimension that ends at both sides."""
    return cartesian((p,), (False,))


def torus(p: int) -> Graph:
    """Return a periodic grid of three dimensions, of 1 and 2 ranks too."""
    first = next(n for n in (2, 3, 1) if p % n == 0)
    second = next(n for n in (2, 3, 1) if p // first % n == 0)
    return cartesian((first, p // first // second, second), (True, True, True))


def mixed(p: int) -> Graph:
    """Return a grid of two dimensions, of which one is periodic."""
    first = next(n for n in (3, 2, 1) if p % n == 0)
    return cartesian((first, p // first), (True, False))


def several(p: int) -> Graph:
    """Return a graph with ranks that are neighbours several times, or their own, and one that has none to send to."""

    def destinations(rank: int) -> list[int]:
        if rank == p - 1:
            return []
        return [(rank + 1) % p, rank, (rank * rank + 2) % p, (rank + 1) % p, rank][: 2 + rank % 4]

    def sources(rank: int) -> list[int]:
        senders = [other for other in range(p) for to in destinations(other) if to == rank]
        return senders[rank % 2 :] + senders[: rank % 2]

    return listed(p, "graph with repeated neighbours", lambda rank: (sources(rank), destinations(rank)))
