"""Schedules out of schedules: combinators on one rank's steps.

Each takes and returns what an algorithm returns, so that an algorithm may be nothing but a
composition: allreduce.ring is then(reduce_scatter.ring, mirror(reduce_scatter.ring)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest

from .blocks import power_of_two_floor
from .collectives import Block
from .ir import Loc, Op, Recv, RecvReduce, Reduce, Send, Step, Steps, Strands, strands

Program = Callable[[int, int], Steps | Strands]
Rename = Callable[[Block], Sequence[Block]]


def then(*parts: Steps | Strands) -> Strands:
    """One after the other, strand by strand."""
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
    """The same steps with peers and blocks renamed; a block may become several."""

    def spread(names: Sequence[Block]) -> tuple[Block, ...]:
        return tuple(new for old in names for new in blocks(old))

    def one(op: Op) -> Sequence[Op]:
        if isinstance(op, Reduce):
            return [
                Reduce(Loc(op.dst.buffer, d), Loc(op.src.buffer, s), op.side)
                for d, s in zip(blocks(op.dst.block), blocks(op.src.block), strict=True)
            ]
        return [op._replace(peer=peer(op.peer), blocks=spread(op.blocks))]

    def step(ops: Step) -> Step:
        return tuple(new for op in ops for new in one(op))

    return Strands(tuple(step(ops) for ops in strand) for strand in strands(part))


def rotate(program: Program, p: int, rank: int, by: int, blocks_turn: bool) -> Strands:
    """The program with rank 0's part played by rank `by`: moves a root, for commutative operators only.

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
    """A program for len(ranks) played by the given ranks; no steps for any other.

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
) -> Strands:
    """Run a program for a power of two ranks on any p: the extra ranks fold into a neighbour first.

    With e = p - q extra ranks, ranks 2i < 2e hand their blocks to 2i + 1, which stands for both (so operand
    order is kept), and get their result back at the end: all blocks, or those `keep` names for the rank.
    `inner` maps the inner program's blocks to ours.
    """
    q = power_of_two_floor(p)
    extra = p - q
    ranks = [2 * i + 1 for i in range(extra)] + list(range(2 * extra, p))
    core = embed(program, ranks, rank, inner)
    if rank >= 2 * extra:
        return core
    low, high = rank & ~1, rank | 1
    back = tuple(keep(low)) if keep else tuple(blocks)
    if rank == low:
        return then([Send(high, tuple(blocks))], [Recv(high, back)])
    return then([RecvReduce(low, tuple(blocks), "left")], core, [Send(low, back)])
