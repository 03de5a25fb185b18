"""Allreduce on a grid of the ranks, along one dimension after the other; by several links of a rank at once."""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Annotated

from ..schedules.blocks import power_of_two_floor
from ..schedules.collectives import Block
from ..schedules.combinators import Layer, Program, Stack, parallel, relabel
from ..schedules.grids import over
from ..schedules.grouping import itself
from ..schedules.ir import Strands
from ..schedules.parameters import ALL, AtMost, Grid, OneOf
from ..schedules.registry import Requirement, algorithm
from . import split, swing
from .allreduce import ring

MOST = 8  # parts of the vector, which are strands


def _is_torus(p: int, dims: tuple[int, ...], form: str, ports: int) -> bool:
    return prod(dims) == p and (form == "bucket" or all(size == power_of_two_floor(size) for size in dims))


def parts(dims: tuple[int, ...], ports: int) -> int:
    """Return the number of parts of the vector: one for each direction of each dimension, of those that ports allow."""
    return max(1, min(ports, 2 * len(dims), MOST))


def turned(dims: tuple[int, ...], part: int) -> tuple[tuple[int, ...], list[int]]:
    """Return the sizes of the grid in the order of dimensions that a part takes, and its ranks so ordered.

    The order begins with dimension `part`. The second half of the parts go along all dimensions in the other direction.

    >>> turned((2, 3), 1), turned((2, 3), 2)
    (((3, 2), [0, 3, 1, 4, 2, 5]), ((2, 3), [0, 2, 1, 3, 5, 4]))
    """
    d = len(dims)
    first, sign = part % d, 1 if part < d else -1
    sizes = dims[first:] + dims[:first]
    ranks = []
    for place in product(*map(range, sizes)):
        rank = 0
        for size, x in zip(dims, place[d - first :] + place[: d - first]):
            rank = rank * size + sign * x % size
        ranks.append(rank)
    return sizes, ranks


def one_part(p: int, dims: tuple[int, ...], form: str) -> list[Layer]:
    """Return the layers of an allreduce on p blocks."""
    if form == "swing":
        return [Layer(lambda _, rank: swing.there_and_back(dims, rank), range(p), itself)]
    if len(dims) == 1:
        return [Layer(ring, range(p), itself)]
    names = {"inner": "ring", "middle": f"torus(dims={dims[:-1]})", "allgather": "ring", "groups": dims[-1]}
    layers: list[Layer] = split.split_rail.body(p, **split.split_rail.resolve(p, **names))
    return layers


@algorithm(
    "allreduce",
    layered=True,
    blocks=lambda p, dims, form, ports: p * parts(dims, ports),
    divides_at_owner=True,
    requires=Requirement("dims that multiply to p, all powers of two with form=swing", _is_torus),
    grid=[
        over((2, 4, 6, 8, 12, 24, 30, 64), dims=(2, 3), form=("bucket", "swing"), ports=(1, ALL)),
        over((16,), dims=((2, 8), (2, 2, 4)), form=("bucket", "swing"), ports=(1, 3, ALL)),
    ],
)
def torus(
    p: int, *, dims: Grid = 2, form: Annotated[str, OneOf(("bucket", "swing"))] = "bucket", ports: AtMost = 1
) -> list[Layer]:
    """Reduce-scatter along every dimension of a grid of the ranks, then allgather along the same in reverse order.

    form=bucket: a ring along the last dimension, then rings of what is left along the one before: as many bytes as one
    ring in far fewer steps. form=swing: halves go to a peer 1, 1, 3, 5 … away, and the dimensions take turns. With
    several ports so many parts of the vector, at most two for each dimension, begin with other dimensions, and half of
    them go in the other direction: a rank uses all its links at once.

    Steps: 2 * (sum(size - 1 for size in dims) if form == "bucket" else lg(p))
    Bytes per rank: 2 * n * (p - 1) / p
    Scratch: (p > 1) * (n / 2 if form == "swing" else sum(n / m / dims[i % len(dims) - 1]
        for m in [min(ports, 2 * len(dims), 8)] for i in range(m)))
    Cost: 2 Σ(d - 1) α, or 2 lg(p) α with form=swing, + 2 n (p - 1)/p β + n (p - 1)/p γ for dimensions d; of β only \
β/ports where a rank has so many links
    Source: Jain, Sabharwal, Optimal bucket algorithms for large MPI collectives on torus interconnects, 2010; for \
form=swing De Sensi et al., Swing: short-cutting rings for higher bandwidth allreduce, 2024

    >>> [(step[0].peer, len(step[0].blocks)) for step in torus(6, 0, dims=(3, 2))[0]]
    [(1, 3), (2, 1), (2, 1), (2, 1), (2, 1), (1, 3)]
    >>> [strand[0][0].peer for strand in torus(9, 0, dims=(3, 3), ports="all")]
    [1, 3, 2, 6]
    """
    if parts(dims, ports) == 1:
        return one_part(p, dims, form)
    programs: list[Program] = []
    for part in range(parts(dims, ports)):
        sizes, ranks = turned(dims, part)
        programs.append(_of_part(Stack(range(p), one_part(p, sizes, form)), part * p, ranks))
    side_by_side = lambda p, rank: parallel(*(program(p, rank) for program in programs))
    strands: dict[Block, int] = {block: block // p for block in range(p * len(programs))}
    return [Layer(side_by_side, range(p), itself, strands)]


def _of_part(stack: Stack, first_block: int, ranks: list[int]) -> Program:
    """Return the program that moves a part of the vector, which begins with a block, with these ranks in its places."""

    def program(p: int, rank: int) -> Strands:
        return relabel(stack(ranks.index(rank)), ranks.__getitem__, lambda block: (first_block + block,))

    return program
