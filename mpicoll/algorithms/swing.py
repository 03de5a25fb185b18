"""Halving and doubling with peers that take turns on both sides: 1, 1, 3, 5, 11 … away on a ring, for shorter ways."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import zip_longest
from math import prod

from ..schedules.blocks import power_of_two_floor, powers_of_two
from ..schedules.combinators import fold, mirror, then
from ..schedules.ir import RecvReduce, Send, Steps, Strands, strands
from ..schedules.registry import algorithm
from . import reduce_scatter as scattering


def distances(p: int) -> list[int]:
    """Return (1 - (-2)^i)/3 for i = 1, 2 … lg p: how far a rank's peers are; even ranks add them, odd ones subtract.

    >>> distances(32)
    [1, -1, 3, -5, 11]
    """
    return [(1 - (-2) ** (i + 1)) // 3 for i in range(len(powers_of_two(p)))]


def peer(p: int, rank: int, distance: int) -> int:
    """Return the peer at such a distance.

    >>> [peer(8, rank, 3) for rank in range(4)]
    [3, 6, 5, 0]
    """
    return (rank - distance if rank & 1 else rank + distance) % p


def moves(dims: Sequence[int]) -> list[tuple[int, int]]:
    """Return (dimension, distance) of a torus's steps: dimensions take turns, so the far peers get the least data.

    >>> moves((8, 2))
    [(0, 1), (1, 1), (0, -1), (0, 3)]
    """
    columns = ([(axis, distance) for distance in distances(size)] for axis, size in enumerate(dims))
    return [move for turn in zip_longest(*columns) for move in turn if move]


@lru_cache
def peers(dims: tuple[int, ...], axis: int, distance: int) -> Sequence[int]:
    """Return every rank's peer at a distance in a dimension, consecutive ranks along the last one.

    >>> peers((4, 2), 0, 1)
    [2, 3, 0, 1, 6, 7, 4, 5]
    """
    stride, size = prod(dims[axis + 1 :]), dims[axis]
    shifts = [(peer(size, place, distance) - place) * stride for place in range(size)]
    return [rank + shifts[rank // stride % size] for rank in range(prod(dims))]


def reach(dims: tuple[int, ...], rank: int, steps: Sequence[tuple[int, int]]) -> list[int]:
    """Return the ranks that a rank reaches by these moves, in this order, each taken or not.

    >>> reach((8,), 0, [(0, -1), (0, 3)]), reach((8,), 3, [(0, -1), (0, 3)])
    ([0, 3, 7, 4], [3, 0, 4, 7])
    """
    ranks = [rank]
    for move in steps:
        peer_of = peers(dims, *move)
        ranks = [place for start in ranks for place in (start, peer_of[start])]
    return ranks


def halving(
    dims: tuple[int, ...],
    rank: int,
    place: Callable[[int], int] = int,
    steps: Sequence[tuple[int, int]] | None = None,
) -> Iterator[tuple[Send, RecvReduce]]:
    """Yield the core, dimensions being powers of two: swap halves with a peer, reduce, and repeat in the own half.

    steps: the moves to the peers, by default those of `moves`.
    """
    steps = moves(dims) if steps is None else steps
    for i, move in enumerate(steps):
        other, rest = peers(dims, *move)[rank], steps[i + 1 :]
        sent, kept = (tuple(sorted(map(place, reach(dims, x, rest)))) for x in (other, rank))
        yield Send(other, sent), RecvReduce(other, kept, "left" if other < rank else "right")


@lru_cache(maxsize=64)
def places(dims: tuple[int, ...]) -> dict[int, int]:
    """Return every block's place in an order in which the blocks of each message are contiguous.

    >>> places((8,))
    {0: 0, 3: 1, 7: 2, 4: 3, 1: 4, 6: 5, 2: 6, 5: 7}
    """
    return {block: place for place, block in enumerate(reach(dims, 0, moves(dims)))}


def there_and_back(dims: tuple[int, ...], rank: int) -> Strands:
    """Return the steps of an allreduce on a torus: halving, then the same reversed in time."""
    there = strands(halving(dims, rank, places(dims).__getitem__))
    return then(there, mirror(there))


def _core(p: int, rank: int) -> Steps:
    return halving((p,), rank)


@algorithm("reduce_scatter", name="swing")
def reduce_scatter(p: int, rank: int) -> Strands:
    """Halve with a peer 1, 1, 3, 5, 11 … away on one side and the other by turns; extra ranks fold into a neighbour.

    Steps: lg(q) + 2 * (p > q)
    Bytes per rank: at most n / p * (p - 1 if p == q else 2 * p + q)
    Scratch: n / p * ((0, 0, 1, 5)[p] if p < 4 else p if p == q else 8 if p == 5 else 2 * p)
    Cost: lg(q) α + n (q - 1)/q (β + γ), and 2 α + n (β + γ) where p is not a power of two
    Source: De Sensi et al., Swing: short-cutting rings for higher bandwidth allreduce, 2024

    >>> [(op.peer, op.blocks) for step in reduce_scatter(8, 0)[0] for op in step if isinstance(op, Send)]
    [(1, (1, 2, 5, 6)), (7, (4, 7)), (3, (3,))]
    """
    return scattering.folded(_core, p, rank)


@algorithm("allgather", name="swing")
def allgather(p: int, rank: int) -> Strands:
    """Swap all blocks with a peer … 11, 5, 3, 1, 1 away: reduce_scatter's swing reversed in time.

    Steps: lg(q) + 2 * (p > q)
    Bytes per rank: at most n / p * (p - 1 if p == q else 2 * p + q)
    Scratch: n * (p > 2)
    Cost: lg(q) α + n (p - 1)/p β, and 2 α + n β where p is not a power of two
    Source: De Sensi et al., Swing: short-cutting rings for higher bandwidth allreduce, 2024
    Excess: where p is not a power of two, about n for the ranks that send their neighbour all at the end

    >>> [op.blocks for step in allgather(8, 0)[0] for op in step if isinstance(op, Send)]
    [(0,), (0, 3), (0, 3, 4, 7)]
    """
    return mirror(scattering.folded(_core, p, rank))


@algorithm("allreduce", name="swing", blocks=power_of_two_floor, divides_at_owner=True)
def allreduce(p: int, rank: int) -> Strands:
    """Reduce-scatter with peers 1, 1, 3, 5 … away on both sides by turns, and the same reversed in time.

    Steps: 2 * lg(q) + 2 * (p > q)
    Bytes per rank: 2 * n * (q - 1) / q + n * (p > q)
    Scratch: n if p > q else n / 2 * (p > 1)
    Cost: 2 lg(q) α + 2 n (q - 1)/q β + n (q - 1)/q γ, and 2 α + 2 n β + n γ where p is not a power of two
    Source: De Sensi et al., Swing: short-cutting rings for higher bandwidth allreduce, 2024

    >>> [op.peer for step in allreduce(8, 0)[0] for op in step if isinstance(op, Send)]
    [1, 7, 3, 3, 7, 1]
    """
    return fold(lambda p, rank: there_and_back((p,), rank), p, rank, range(power_of_two_floor(p)))
