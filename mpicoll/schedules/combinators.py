"""Schedules out of schedules: combinators on one rank's steps.

Each takes and returns what an algorithm returns, so that an algorithm may be nothing but a
composition: allreduce.ring is then(reduce_scatter.ring, mirror(reduce_scatter.ring)).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, zip_longest
from typing import Any

from .blocks import power_of_two_floor, sizes
from .collectives import Block
from .ir import Loc, Op, Recv, RecvReduce, Reduce, Send, Step, Steps, Strands, strands

Program = Callable[[int, int], Steps | Strands]
Rename = Callable[[Any], Sequence[Block]]


def then(*parts: Steps | Strands) -> Strands:
    """Return one after the other, strand by strand."""
    every = [strands(part) for part in parts]
    return Strands(tuple(sum(column, ())) for column in zip_longest(*every, fillvalue=()))


def parallel(*parts: Steps | Strands) -> Strands:
    """Side by side, as strands of their own."""
    return Strands(strand for part in parts for strand in strands(part))


def mirror(part: Steps | Strands) -> Strands:
    """Time reversed: sends become receives, receives (folding or not) become sends.

    Turns reduce_scatter into allgather, reduce into bcast, gather into scatter. Raises ValueError for a
    local Reduce, which has no reverse.
    """
    return Strands(tuple(tuple(_reverse(op) for op in step) for step in reversed(strand)) for strand in strands(part))


def _reverse(op: Op) -> Op:
    match op:
        case Send(peer, blocks, buffer):
            return Recv(peer, blocks, buffer)
        case Recv(peer, blocks, buffer) | RecvReduce(peer, blocks, _, buffer):
            return Send(peer, blocks, buffer)
    raise ValueError(f"{op} cannot be mirrored: a local reduction has no reverse in time")


def relabel(part: Steps | Strands, peer: Callable[[int], int], blocks: Rename) -> Strands:
    """Return the same steps with peers and blocks renamed; a block may become several, or none.

    A message all of whose blocks become none is left out, at both its ends.
    """

    def spread(names: Sequence[Block]) -> tuple[Block, ...]:
        return tuple(new for old in names for new in blocks(old))

    def one(op: Op) -> Sequence[Op]:
        if isinstance(op, Reduce):
            return [
                Reduce(Loc(op.dst.buffer, d), Loc(op.src.buffer, s), op.side)
                for d, s in zip(blocks(op.dst.block), blocks(op.src.block), strict=True)
            ]
        new = spread(op.blocks)
        return [op._replace(peer=peer(op.peer), blocks=new)] if new or not op.blocks else []

    def step(ops: Step) -> Step:
        return tuple(new for op in ops for new in one(op))

    return Strands(tuple(new for ops in strand if (new := step(ops))) for strand in strands(part))


def rotate(program: Program, p: int, rank: int, by: int, blocks_turn: bool) -> Strands:
    """Return the program with rank 0's part played by rank `by`: moves a root, for commutative operators only.

    blocks_turn says whether blocks are named after ranks and so turn with them.
    """

    def turn(x: int) -> int:
        return (x + by) % p

    def same(block: Block) -> tuple[Block]:
        return (block,)

    def turned(block: Block) -> tuple[Block]:
        return (turn(block),)  # type: ignore[arg-type]

    return relabel(program(p, (rank - by) % p), turn, turned if blocks_turn else same)


def forward(blocks: Sequence[Block], rank: int, source: int, destination: int) -> Steps:
    """Hand the blocks from one rank to another."""
    if rank == source:
        return [Send(destination, tuple(blocks))]
    if rank == destination:
        return [Recv(source, tuple(blocks))]
    return []


def embed(program: Program, ranks: Sequence[int], rank: int, blocks: Rename = lambda b: (b,)) -> Strands:
    """Return a program for len(ranks) played by the given ranks; no steps for any other.

    blocks maps an inner block to the outer blocks that make it up.
    """
    if rank not in ranks:
        return Strands(((),))
    return relabel(program(len(ranks), ranks.index(rank)), ranks.__getitem__, blocks)


def fold(
    program: Program,
    p: int,
    rank: int,
    blocks: Sequence[Block],
    inner: Rename = lambda b: (b,),
    keep: Rename | None = None,
    core: int | None = None,
) -> Strands:
    """Run a program for `core` ranks (a power of two if not said) on any p: extra ranks fold into a neighbour first.

    The ranks are split into as many runs of neighbours, as evenly as can be, the longer ones first. The last rank of a
    run takes the others' blocks and stands for them all (so operand order is kept), and returns their result at the
    end: all blocks, or those `keep` names for the rank. `inner` maps the inner program's blocks to ours.
    """
    ends = list(accumulate(sizes(p, core or power_of_two_floor(p))))
    stand_ins = [end - 1 for end in ends]
    own = bisect_right(ends, rank)
    first, last = ends[own - 1] if own else 0, stand_ins[own]
    everything = tuple(blocks)

    def back(to: int) -> tuple[Block, ...]:
        return tuple(keep(to)) if keep else everything

    if rank != last:
        return then([Send(last, everything)], [Recv(last, back(rank))])
    others = range(last - 1, first - 1, -1)
    taken = [tuple(RecvReduce(other, everything, "left") for other in others)]
    given = [tuple(Send(other, back(other)) for other in others)]
    return then(taken if others else [], embed(program, stand_ins, rank, inner), given if others else [])


# -- layers: programs of other sizes, one after the other -----------------------------------------------------


class Layer:
    """A program played by some of the ranks on its own, coarser blocks.

    within(block) is the program's block that one of ours is a part of, None where the program does not move it;
    strand(block) the program's strand that moves a block of its.
    """

    def __init__(
        self,
        program: Program,
        ranks: Sequence[int],
        within: Callable[[Any], Block | None],
        strand: Callable[[Any], int] = lambda block: 0,
    ) -> None:
        self.program, self.ranks, self.within, self.strand = program, ranks, within, strand
        self.places = {rank: index for index, rank in enumerate(ranks)}


class Stack:
    """Layers one after the other, as one schedule over the given blocks.

    Strands of a schedule do not wait for each other, but blocks go their ways independently. So blocks that the
    same strands of every layer move share a strand here, in which those strands follow each other.
    """

    def __init__(self, blocks: Sequence[Block], layers: Sequence[Layer]) -> None:
        self.layers = layers
        classes: dict[tuple[int, ...], int] = {}
        self.strand: dict[Block, int] = {}  # the strand in which a block moves
        self.parts: list[list[dict[Block, list[Block]]]] = []  # by strand and layer: inner block -> our blocks
        self.chosen: list[list[int]] = []  # by strand and layer: the inner strand
        for block in blocks:
            inner = [layer.within(block) for layer in layers]
            strands = tuple(0 if b is None else layer.strand(b) for b, layer in zip(inner, layers, strict=True))
            own = self.strand[block] = classes.setdefault(strands, len(classes))
            if own == len(self.parts):
                self.parts.append([{} for _ in layers])
                self.chosen.append(list(strands))
            for part, b in zip(self.parts[own], inner, strict=True):
                if b is not None:
                    part.setdefault(b, []).append(block)

    def __call__(self, rank: int) -> Strands:
        """Return one rank's program."""
        mine = [
            (i, strands(layer.program(len(layer.ranks), layer.places[rank])), layer)
            for i, layer in enumerate(self.layers)
            if rank in layer.places
        ]
        return parallel(*(self._strand(own, mine) for own in range(len(self.parts)))) or Strands(((),))

    def _strand(self, own: int, mine: list[tuple[int, Strands, Layer]]) -> Strands:
        out: list[Strands] = []
        for i, program, layer in mine:
            part, which = self.parts[own][i], self.chosen[own][i]
            one = Strands(program[which : which + 1]) or Strands(((),))
            out.append(relabel(one, layer.ranks.__getitem__, partial(_of, part)))
        return then(*out) or Strands(((),))


def _of(part: dict[Block, list[Block]], inner: Block) -> Sequence[Block]:
    return part.get(inner, ())
