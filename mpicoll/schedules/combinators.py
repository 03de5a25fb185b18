"""Schedules out of schedules: combinators on one rank's steps.

Each takes and returns what an algorithm returns, so that an algorithm may be nothing but a
composition: allreduce.ring is then(reduce_scatter.ring, mirror(reduce_scatter.ring)).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from typing import Any

from .blocks import power_of_two_floor
from .collectives import Block
from .ir import RESULTS, VALUE, Copy, Loc, Local, Op, Recv, RecvReduce, Send, Step, Steps, Strands, strands

Program = Callable[[int, int], Steps | Strands]
Rename = Callable[[Any], Sequence[Block]]


def then(*parts: Steps | Strands) -> Strands:
    """Return the parts one after the other, strand by strand."""
    every = [strands(part) for part in parts]
    return Strands(tuple(sum(column, ())) for column in zip_longest(*every, fillvalue=()))


def parallel(*parts: Steps | Strands) -> Strands:
    """Return the parts side by side, as strands of their own."""
    return Strands(strand for part in parts for strand in strands(part))


def mirror(part: Steps | Strands) -> Strands:
    """Return a part reversed in time: sends become receives, receives (reducing or not) become sends.

    Turns reduce_scatter into allgather, reduce into bcast, gather into scatter. Raises ValueError for a
    local operation, which has no reverse.
    """
    return Strands(tuple(tuple(_reverse(op) for op in step) for step in reversed(strand)) for strand in strands(part))


def _reverse(op: Op) -> Op:
    match op:
        case Send(peer, blocks, buffer):
            return Recv(peer, blocks, buffer)
        case Recv(peer, blocks, buffer) | RecvReduce(peer, blocks, _, buffer):
            return Send(peer, blocks, buffer)
    raise ValueError(f"{op} cannot be mirrored: a local operation has no reverse")


def coded(part: Steps | Strands) -> Strands:
    """Return a part that sends codes in the place of values; ranks decode received codes at the end of the step.

    Raises ValueError for reductions and local operations: codes cannot be reduced.
    """

    def step(ops: Step) -> Step:
        if not all(isinstance(op, Send | Recv) for op in ops):
            raise ValueError(f"{ops} does more than send and receive, and codes cannot be reduced")
        moved = [op._replace(buffer=RESULTS) for op in ops if isinstance(op, Send | Recv)]
        arrived = [block for op in moved if isinstance(op, Recv) for block in op.blocks]
        return (*moved, *(Copy(Loc(VALUE, block), Loc(RESULTS, block)) for block in arrived))

    return Strands(tuple(map(step, strand)) for strand in strands(part))


def same(block: Block) -> tuple[Block]:
    """Return a block under its own name."""
    return (block,)


def relabel(part: Steps | Strands, peer: Callable[[int], int], blocks: Rename) -> Strands:
    """Return the same steps with peers and blocks renamed; a block may become several, or none.

    A message all of whose blocks become none is left out, at both its ends.
    """

    def spread(names: tuple[Block, ...]) -> tuple[Block, ...]:
        return names if blocks is same else tuple(chain.from_iterable(map(blocks, names)))

    def renamed(op: Op) -> Sequence[Op]:
        if isinstance(op, Local):
            return [
                op._replace(dst=Loc(op.dst.buffer, d), src=Loc(op.src.buffer, s))
                for d, s in zip(blocks(op.dst.block), blocks(op.src.block), strict=True)
            ]
        new = spread(op.blocks)
        return [type(op)(peer(op.peer), new, *op[2:])] if new or not op.blocks else []

    def step(ops: Step) -> Step:
        return tuple(new for op in ops for new in renamed(op))

    return Strands(tuple(new for ops in strand if (new := step(ops))) for strand in strands(part))


def rotate(program: Program, p: int, rank: int, by: int, blocks_turn: bool) -> Strands:
    """Rotate the ranks of a program: rank `by` does the steps of rank 0. Moves a root; for commutative operators only.

    blocks_turn says whether blocks are named after ranks and so turn with them.
    """

    def turn(x: int) -> int:
        return (x + by) % p

    def turned(block: Block) -> tuple[Block]:
        return (turn(block),)  # type: ignore[arg-type]

    return relabel(program(p, (rank - by) % p), turn, turned if blocks_turn else same)


def forward(blocks: Sequence[Block], rank: int, source: int, destination: int) -> Steps:
    """Return a rank's steps if one rank sends the blocks to another; none on other ranks."""
    if rank == source:
        return [Send(destination, tuple(blocks))]
    if rank == destination:
        return [Recv(source, tuple(blocks))]
    return []


def embed(program: Program, ranks: Sequence[int], rank: int, blocks: Rename = same) -> Strands:
    """Return a program for len(ranks) ranks, run by these ranks; no steps for any other.

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
    inner: Rename = same,
    keep: Rename | None = None,
    core: int | None = None,
) -> Strands:
    """Run a program for `core` ranks on any p: extra ranks fold into a neighbour first.

    `core` is by default the largest power of two up to p.
    The ranks are split into as many runs of neighbours, as evenly as can be, the longer ones first. The last rank of a
    run takes the others' blocks and stands for them all (so operand order is kept), and returns their result at the
    end: all blocks, or those `keep` names for the rank. `inner` maps the inner program's blocks to ours.
    """
    core = core or power_of_two_floor(p)
    if p == core and inner is same:
        return strands(program(p, rank))
    run, first, last = run_of(p, core, rank)
    everything = tuple(blocks)

    def back(to: int) -> tuple[Block, ...]:
        return tuple(keep(to)) if keep else everything

    if rank != last:
        return then([Send(last, everything)], [Recv(last, back(rank))])
    others = range(last - 1, first - 1, -1)
    taken = [tuple(RecvReduce(other, everything, "left") for other in others)]
    result_sends = [tuple(Send(other, back(other)) for other in others)]
    middle = relabel(program(core, run), lambda other: run_end(p, core, other) - 1, inner)
    return then(taken if others else [], middle, result_sends if others else [])


def run_end(p: int, runs: int, run: int) -> int:
    """Return the first rank behind one of the runs that p ranks are split into, the longer ones first.

    >>> [run_end(7, 3, run) for run in range(3)]
    [3, 5, 7]
    """
    share, longer = divmod(p, runs)
    return (run + 1) * share + min(run + 1, longer)


def run_of(p: int, runs: int, rank: int) -> tuple[int, int, int]:
    """Return the run that a rank is in, and that run's first and last rank.

    >>> run_of(7, 3, 4)
    (1, 3, 4)
    """
    share, longer = divmod(p, runs)
    in_longer = longer * (share + 1)  # ranks
    run = rank // (share + 1) if rank < in_longer else longer + (rank - in_longer) // share
    return run, run_end(p, runs, run - 1), run_end(p, runs, run) - 1


# -- layers: programs of other sizes, one after the other -----------------------------------------------------


class Layer:
    """A program that some of the ranks run on its own, coarser blocks.

    parts maps one of the program's blocks to the blocks of ours that make it up. strands says for each of our blocks
    which of the program's strands moves it; it is empty for a program of one strand.
    """

    def __init__(
        self, program: Program, ranks: Sequence[int], parts: Rename, strands: Mapping[Block, int] | None = None
    ) -> None:
        self.program, self.ranks, self.parts, self.strands = program, ranks, parts, strands or {}
        self.places = {rank: index for index, rank in enumerate(ranks)}


class Stack:
    """Layers one after the other, as one schedule over the given blocks.

    Strands of a schedule do not wait for each other, but blocks go their ways independently. So blocks that the
    same strands of every layer move share a strand here, in which those strands follow each other. A
    rank's program is made of the layers that the rank is in; the layers of others take no time.
    """

    def __init__(self, blocks: Sequence[Block], layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.mine: dict[int, list[int]] = {}  # by rank: the layers that it is in
        for i, layer in enumerate(layers):
            for rank in layer.ranks:
                self.mine.setdefault(rank, []).append(i)
        self.chosen: list[dict[int, int]] = [{}]  # by strand: the inner strand of each layer that has several
        self.strands: dict[Block, int] = {}
        if apart := {i: layer for i, layer in enumerate(layers) if layer.strands}:
            self._split(blocks, apart)

    def _split(self, blocks: Sequence[Block], apart: dict[int, Layer]) -> None:
        """Put blocks that other strands of these layers move into strands of their own."""
        own: dict[tuple[int, ...], int] = {}
        for block in blocks:
            which = tuple(layer.strands.get(block, 0) for layer in apart.values())
            self.strands[block] = own.setdefault(which, len(own))
        self.chosen = [dict(zip(apart, which, strict=True)) for which in own] or [{}]

    def strand(self, block: Block) -> int:
        """Return the strand in which a block moves."""
        return self.strands.get(block, 0)

    def __call__(self, rank: int) -> Strands:
        """Return one rank's program."""
        mine = [(i, self.layers[i]) for i in self.mine.get(rank, ())]
        programs = {i: strands(layer.program(len(layer.ranks), layer.places[rank])) for i, layer in mine}
        return parallel(*(self._strand(own, programs) for own in range(len(self.chosen))))

    def _strand(self, own: int, programs: dict[int, Strands]) -> Strands:
        out: list[Strands] = []
        for i, program in programs.items():
            which = self.chosen[own].get(i, 0)
            strand = Strands(program[which : which + 1]) or Strands(((),))
            parts = self.layers[i].parts if len(self.chosen) == 1 else partial(self._parts, own, i)
            out.append(relabel(strand, self.layers[i].ranks.__getitem__, parts))
        return then(*out) or Strands(((),))

    def _parts(self, own: int, i: int, inner: Block) -> Sequence[Block]:
        """Return our blocks of a strand that make up a block of a layer."""
        return [block for block in self.layers[i].parts(inner) if self.strands[block] == own]
