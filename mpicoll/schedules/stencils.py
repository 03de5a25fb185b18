"""Stencils: graphs of a grid in which every rank has its neighbours at the same offsets, as a 9-point stencil has.

Every rank knows all edges, so that it can forward the blocks of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from math import prod

from .graphs import KEPT, Edge, Graph, numbered

Offset = tuple[int, ...]


class Stencil(Graph):
    """The graph in which a rank sends to the rank at each offset, and receives from the rank at each offset's opposite.

    Neighbours beyond the border of a dimension that is not periodic do not exist, and have no place in the buffers.
    Offsets are in the order of the buffers. One that leads back to the rank itself is an edge, too.

    >>> upwind = Stencil((3, 2), (False, True), ((1, 0), (1, 1)))
    >>> upwind.leaving(0), upwind.entering(3), upwind.leaving(4)
    (((0, 2, 0), (0, 3, 0)), ((1, 3, 0), (0, 3, 0)), ())
    """

    def __init__(self, dims: Sequence[int], periods: Sequence[bool], offsets: Sequence[Offset]) -> None:
        self.dims, self.periods = tuple(dims), tuple(map(bool, periods))
        self.offsets = tuple(tuple(map(int, offset)) for offset in offsets)
        self.strides = tuple(prod(self.dims[d + 1 :]) for d in range(len(self.dims)))
        words = f"stencil of {len(self.offsets)} neighbours on a {'x'.join(map(str, self.dims)) or 'empty'} grid"
        super().__init__(prod(self.dims), words, lambda rank: numbered(rank, *self.lists(rank)))
        self.edges = lru_cache(KEPT)(self._edges)

    def lists(self, rank: int) -> tuple[list[int], list[int]]:
        """Return (sources, destinations) of a rank, in the order of the offsets."""
        sources = [self.at(rank, tuple(-x for x in offset)) for offset in self.offsets]
        destinations = [self.at(rank, offset) for offset in self.offsets]
        return [r for r in sources if r is not None], [r for r in destinations if r is not None]

    def at(self, rank: int, offset: Offset) -> int | None:
        """Return the rank at an offset from another; None beyond a border."""
        other = 0
        for x, n, periodic, stride in zip(offset, self.dims, self.periods, self.strides, strict=True):
            there = rank // stride % n + x
            if not (periodic or 0 <= there < n):
                return None
            other += there % n * stride
        return other

    def shift(self, d: int, x: int) -> int:
        """Return a distance in dimension d; all of a periodic dimension that lead to one rank are one number."""
        return x % self.dims[d] if self.periods[d] else x

    def along(self, rank: int, d: int, shift: int) -> int:
        """Return the rank at a distance in dimension d, within its borders."""
        n, stride = self.dims[d], self.strides[d]
        here = rank // stride % n
        return rank + ((here + shift) % n - here) * stride

    def towards(self, rank: int, other: int) -> int:
        """Return the first other rank on the way from a rank to another, along one dimension after the other.

        >>> Stencil((2, 3), (True, True), ((1, 0),)).towards(0, 5)
        3
        """
        for n, stride in zip(self.dims, self.strides, strict=True):
            if apart := other // stride % n - rank // stride % n:
                return rank + apart * stride
        return rank

    def passing(self, rank: int, dimensions: int) -> Iterator[tuple[int, Edge]]:
        """Yield (index of the offset, edge) of each block that a rank holds after steps in so many dimensions."""
        rest = (0,) * (len(self.dims) - dimensions)
        for i, offset in enumerate(self.offsets):
            source = self.at(rank, (*(-x for x in offset[:dimensions]), *rest))
            edge = None if source is None else self.edges(source).get(i)
            if edge is not None:
                yield i, edge

    @property
    def most_forwarded(self) -> int:
        """Return the most blocks that a message can carry: a rank has one for each offset at a time."""
        return len(self.offsets)

    def _edges(self, rank: int) -> dict[int, Edge]:
        """Return the edges along which a rank sends, by the number of the offset; none beyond a border."""
        there = [i for i, offset in enumerate(self.offsets) if self.at(rank, offset) is not None]
        return dict(zip(there, self.leaving(rank), strict=True))

    @cached_property
    def has_equal_blocks(self) -> bool:
        """Return whether each rank has the next rank of every dimension as a neighbour, on one side or the other.

        Then equal blocks have one length on all ranks, since MPI requires equal counts at both ends of an edge.
        """
        along = {d for offset in self.offsets if sum(map(abs, offset)) == 1 for d, x in enumerate(offset) if x}
        return all(n == 1 or d in along for d, n in enumerate(self.dims))


def moore(p: int) -> Graph:
    """Return the stencil of all 8 ranks around one on a periodic grid, near square."""
    first = next(n for n in range(int(p**0.5), 0, -1) if p % n == 0)
    return Stencil((first, p // first), (True, True), _around(2))


def bounded_moore(p: int) -> Graph:
    """Return the stencil of all 26 ranks around one on a grid of three dimensions, of which the first ends."""
    first = next(n for n in (3, 2, 1) if p % n == 0)
    second = next(n for n in (2, 3, 1) if p // first % n == 0)
    return Stencil((first, second, p // first // second), (False, True, False), _around(3))


def far(p: int) -> Graph:
    """Return a stencil with an offset of two ranks, one that is named twice, and the rank itself."""
    first = next(n for n in (3, 2, 1) if p % n == 0)
    return Stencil((p // first, first), (False, True), ((1, 0), (2, -1), (0, 1), (0, 0), (2, -1), (-1, 1)))


def row(p: int) -> Graph:
    """Return the stencil of both neighbours on a ring."""
    return Stencil((p,), (True,), ((-1,), (1,)))


def _around(dimensions: int) -> tuple[Offset, ...]:
    numbers = range(3**dimensions)
    offsets = (tuple(i // 3**d % 3 - 1 for d in reversed(range(dimensions))) for i in numbers)
    return tuple(offset for offset in offsets if any(offset))
