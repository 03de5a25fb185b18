"""Bine trees and butterflies: swing's peers instead of binomial ones, so that ranks are a third nearer to each other.

"Bine" is for binomial and negabinary: the ranks of a subtree are those whose numbers share digits in base -2.

The paper's allreduce of whole vectors is not here. Its ranks combine the same contributions in different orders, so the
bits of a float sum would differ from rank to rank. allreduce's swing is the paper's for long vectors.
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any

from ..schedules.blocks import power_of_two_floor
from ..schedules.combinators import mirror, then
from ..schedules.grids import over
from ..schedules.ir import Recv, RecvReduce, Send, Steps, Strands
from ..schedules.parameters import YesOrNo
from ..schedules.registry import algorithm
from . import reduce as reducing
from . import reduce_scatter as scattering
from .swing import distances, halving, moves, peer, peers, places, reach


@lru_cache(maxsize=64)
def tree(p: int) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """Return (child, parent, the child and all ranks below it) of a Bine tree of a power of two, the nearest last.

    >>> tree(4)
    ((3, 0, (2, 3)), (1, 0, (1,)), (2, 3, (2,)))
    """
    reached, edges = [0], []
    for distance in reversed(distances(p)):
        further = [(peer(p, parent, distance), parent) for parent in reached]
        edges += further
        reached += [child for child, _ in further]
    below = {rank: [rank] for rank in range(p)}
    for child, parent in reversed(edges):
        below[parent] += below[child]
    return tuple((child, parent, tuple(sorted(below[child]))) for child, parent in edges)


def _bine(p: int, rank: int) -> Steps:
    """Yield the reduce of a power of two: the messages of a broadcast down a Bine tree, reversed in time."""
    for child, parent, _ in reversed(tree(p)):
        if rank in (child, parent):
            yield (RecvReduce(child, (0,), "left") if rank == parent else Send(parent, (0,)),)


@algorithm("reduce", name="bine")
def reduce(p: int, rank: int) -> Strands:
    """A binomial tree whose ranks are a third nearer to each other, on both sides; extra ranks fold into a neighbour.

    Steps: lg(q) + (p > q)
    Bytes per rank: n * (lg(q) + (p > q))
    Scratch: n * ((p > 1) + (p > 7))
    Cost: lg(p) (α + n β + n γ)
    Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, 2025

    >>> [[op.peer for op in step] for step in reduce(8, 0)[0]]
    [[1], [7], [3]]
    """
    return reducing.folded(_bine, p, rank, (0,))


@algorithm("bcast", name="bine")
def bcast(p: int, rank: int) -> Strands:
    """Down a binomial tree whose ranks are a third nearer to each other, on both sides: reduce's reversed in time.

    Steps: lg(q) + (p > q)
    Bytes per rank: n * (lg(q) + (p > q))
    Scratch: 0
    Cost: lg(p) (α + n β)
    Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, 2025

    >>> [[op.peer for op in step] for step in bcast(8, 0)[0]]
    [[3], [7], [1]]
    """
    return mirror(reduce(p, rank))


@algorithm("gather", name="bine")
def gather(p: int, rank: int) -> Steps:
    """Up a binomial tree whose ranks are a third nearer to each other, on both sides; extra ranks send to a neighbour.

    Steps: lg(q) + (p > q)
    Bytes per rank: n * (p - 1) / p
    Scratch: at most 3 * n / 2
    Cost: lg(p) α + n (p - 1)/p β
    Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, 2025

    >>> [(op.peer, op.blocks) for step in gather(8, 0)[0] for op in step]
    [(1, (1,)), (7, (6, 7)), (3, (2, 3, 4, 5))]
    """
    extra = p - power_of_two_floor(p)
    pair, number = rank - rank % 2, rank // 2 if rank < 2 * extra else rank - extra
    if rank < 2 * extra:
        yield Recv(rank + 1, (rank + 1,)) if rank == pair else Send(pair, (rank,))
        if rank != pair:
            return
    ranks = [(2 * x, 2 * x + 1) if x < extra else (x + extra,) for x in range(p - extra)]  # the first is in the tree
    for child, parent, below in reversed(tree(p - extra)):
        if number in (child, parent):
            blocks = tuple(block for x in below for block in ranks[x])
            yield Recv(ranks[child][0], blocks) if number == parent else Send(ranks[parent][0], blocks)


@algorithm("scatter", name="bine")
def scatter(p: int, rank: int) -> Strands:
    """Down a binomial tree whose ranks are a third nearer to each other, on both sides: gather's reversed in time.

    Steps: lg(q) + (p > q)
    Bytes per rank: n * (p - 1) / p
    Scratch: at most n
    Cost: lg(p) α + n (p - 1)/p β
    Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, 2025

    >>> [(op.peer, op.blocks) for step in scatter(8, 0)[0] for op in step]
    [(3, (2, 3, 4, 5)), (7, (6, 7)), (1, (1,))]
    """
    return mirror(gather(p, rank))


# -- butterflies ----------------------------------------------------------------------------------------------

PROVED = [over((*range(1, 18), 31, 33, 64), remap=("yes",))]


def runs(blocks: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return ascending blocks cut where they are not consecutive, so that no message is packed.

    >>> runs((0, 1, 6, 7))
    [(0, 1), (6, 7)]
    """
    cuts = [0, *(i for i in range(1, len(blocks)) if blocks[i] > blocks[i - 1] + 1), len(blocks)]
    return [blocks[first:end] for first, end in pairwise(cuts)]


def _ranges(p: int, rank: int) -> Steps:
    """Yield the power-of-two core with the farthest peer first: a rank keeps the blocks around its own."""
    for step in halving((p,), rank, steps=moves((p,))[::-1]):
        yield [op._replace(blocks=run) for op in step for run in runs(op.blocks)]


def _remapped(p: int, rank: int) -> Steps:
    """Yield the power-of-two core with the nearest peer first; each rank reduces the block of another, and sends it."""
    order = places((p,))
    yield from halving((p,), rank, order.__getitem__)
    if order[rank] != rank:
        source = next(other for other, place in order.items() if place == rank)
        yield Send(order[rank], (order[rank],)), Recv(source, (rank,))


@algorithm("reduce_scatter", name="bine", grid=PROVED)
def reduce_scatter(p: int, rank: int, *, remap: YesOrNo = "no") -> Strands:
    """Halve with peers … 5, 3, 1, 1 away on both sides by turns: messages are consecutive blocks, 0 after p - 1.

    With remap=yes the nearest peer is the first, so that most bytes take the shortest way. For contiguous messages
    every rank then reduces the block of another rank, and sends it there in one more step.

    Steps: lg(q) + 2 * (p > q) + (remap == "yes") * (q > 2) * (p != q + 1)
    Bytes per rank: at most n / p * (p - 1 + (remap == "yes") * (q > 2) if p == q else 2 * p + q)
    Scratch: at most n * (3 / 4 if p == q else 2)
    Cost: lg(q) α + n (q - 1)/q (β + γ), with remap=yes α + n/q β more, and 2 α + n (β + γ) if p is no power of two
    Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, 2025

    >>> [(op.peer, op.blocks) for step in reduce_scatter(8, 0)[0] for op in step if isinstance(op, Send)]
    [(3, (2, 3, 4, 5)), (7, (6, 7)), (1, (1,))]
    >>> [(op.peer, op.blocks) for step in reduce_scatter(8, 3, remap="yes")[0] for op in step if isinstance(op, Send)]
    [(2, (4, 5, 6, 7)), (4, (2, 3)), (0, (0,)), (1, (1,))]
    """
    return scattering.folded(_remapped if remap == "yes" else _ranges, p, rank)


@algorithm("allgather", name="bine", grid=PROVED)
def allgather(p: int, rank: int, *, remap: YesOrNo = "no") -> Strands:
    """Swap all blocks with peers 1, 1, 3, 5 … away on both sides by turns: reduce_scatter's bine reversed in time.

    With remap=yes a rank starts from the block of another one, and its farthest peer is the first.

    Steps: lg(q) + 2 * (p > q) + (remap == "yes") * (q > 2) * (p != q + 1)
    Bytes per rank: at most n / p * (p - 1 + (remap == "yes") * (q > 2) if p == q else 2 * p + q)
    Scratch: n * (p > 2) / (2 if p == q else 1)
    Cost: lg(q) α + n (p - 1)/p β, with remap=yes α + n/q β more, and 2 α + n β if p is no power of two
    Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, 2025

    >>> [op.blocks for step in allgather(8, 0)[0] for op in step if isinstance(op, Send)]
    [(0,), (0, 1), (0, 1), (6, 7)]
    """
    return mirror(reduce_scatter(p, rank, remap=remap))


def _halve_and_gather(p: int, rank: int) -> Strands:
    """Return the power-of-two core of a reduce: halving, then a gather by those of its messages that lead to rank 0."""
    steps = moves((p,))
    parts = places((p,))
    up = []
    for i in reversed(range(len(steps))):
        other, near = peers((p,), *steps[i])[rank], reach((p,), 0, steps[:i])
        if rank in near or other in near:
            child = other if rank in near else rank
            blocks = tuple(sorted(parts[x] for x in reach((p,), child, steps[i + 1 :])))
            up.append(Recv(child, blocks) if rank in near else Send(other, blocks))
    return then(halving((p,), rank, parts.__getitem__), up)


@algorithm("reduce", name="bine_rabenseifner", blocks=power_of_two_floor)
def reduce_halves(p: int, rank: int) -> Strands:
    """Reduce-scatter by swing's peers, then gather by a Bine tree; extra ranks fold into a neighbour first.

    Steps: 2 * lg(q) + (p > q)
    Bytes per rank: 2 * n * (q - 1) / q + n * (p > q)
    Scratch: n / 2 * ((p > 1) + (p > 2) + (p > q + 1))
    Cost: 2 lg(q) α + 2 n (q - 1)/q β + n (q - 1)/q γ, and α + n β + n γ where p is not a power of two
    Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, 2025

    >>> [(op.peer, op.blocks) for step in reduce_halves(8, 0)[0] for op in step if isinstance(op, Recv)]
    [(3, (1,)), (7, (2, 3)), (1, (4, 5, 6, 7))]
    """
    return reducing.folded(_halve_and_gather, p, rank, range(power_of_two_floor(p)))


@algorithm("bcast", name="bine_scatter_allgather", blocks=power_of_two_floor)
def bcast_halves(p: int, rank: int) -> Strands:
    """Scatter by a Bine tree, then allgather by swing's peers: reduce's bine_rabenseifner reversed in time.

    Steps: 2 * lg(q) + (p > q)
    Bytes per rank: 2 * n * (q - 1) / q + n * (p > q)
    Scratch: 0
    Cost: 2 lg(q) α + 2 n (q - 1)/q β, and α + n β where p is not a power of two
    Source: De Sensi et al., Bine trees: enhancing collective operations by optimizing communication locality, 2025

    >>> [len(step[0].blocks) for step in bcast_halves(8, 0)[0]]
    [4, 2, 1, 1, 2, 4]
    """
    return mirror(reduce_halves(p, rank))
