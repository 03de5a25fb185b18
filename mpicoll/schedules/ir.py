"""The IR a collective algorithm is written in.

An algorithm is a function of (p, rank) that yields the steps of that one rank. A step is one operation or a
tuple of operations done at once:

    Send(peer, blocks)              reads the state before the step
    Recv(peer, blocks)              overwrites; may not target what the step sends
    RecvReduce(peer, blocks, side)  lands in scratch, reduced when the step ends; "left" is received∘local, and
                                    several into one place are reduced from left to right
    Reduce(dst, src, side)          local, when the step ends; an undefined dst becomes a copy of src
    Copy(dst, src)                  local, when the step ends, in the place of what was there

Blocks live in named buffers: "value" starts as the rank's contribution and ends as its result, "input" is the
contribution itself and read-only, any other name is an accumulator that starts undefined. A message of no
blocks is a token. Nothing here knows of counts, data types or tags.

In the buffers "codes" and "codes of results" blocks are encoded by the codec of the schedule (see mpicoll/compression).
A Copy into one encodes, a Copy out of it decodes. Send and Recv move codes as they are; a RecvReduce that is `coded`
receives codes, decodes them and reduces the result. "rest" is the place of a rank's own contribution after it was read:
the residual left there is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, get_args

from .collectives import Block

VALUE, INPUT, REST = "value", "input", "rest"
CODES, RESULTS = "codes", "codes of results"
CODED = (CODES, RESULTS)


class Loc(NamedTuple):
    """A place a block can be in: a buffer's name and the block."""

    buffer: str
    block: Block


class Send(NamedTuple):
    """Send blocks, in this order, to a peer."""

    peer: int
    blocks: tuple[Block, ...]
    buffer: str = VALUE


class Recv(NamedTuple):
    """Receive blocks, in this order, from a peer, in the place of what was there."""

    peer: int
    blocks: tuple[Block, ...]
    buffer: str = VALUE


class RecvReduce(NamedTuple):
    """Receive blocks from a peer and reduce them into the local ones: side "left" is received∘local.

    coded: the peer sends codes of the blocks.
    """

    peer: int
    blocks: tuple[Block, ...]
    side: str = "right"
    buffer: str = VALUE
    coded: bool = False


class Reduce(NamedTuple):
    """Reduce a local block into another: side "left" is src∘dst, "right" is dst∘src."""

    dst: Loc
    src: Loc
    side: str = "right"


class Copy(NamedTuple):
    """Put a local block in the place of another: of a decoded one in "codes" that encodes, the other way it decodes."""

    dst: Loc
    src: Loc


Local = Reduce | Copy
Op = Send | Recv | RecvReduce | Local
_OPS, _LOCAL = frozenset(get_args(Op)), (Reduce, Copy)  # isinstance() is faster with a tuple
Message = Send | Recv | RecvReduce
Step = tuple[Op, ...]
Strand = tuple[Step, ...]
Steps = Iterable[Op | Sequence[Op]]


def is_coded(op: Message) -> bool:
    """Return whether a message carries codes."""
    return bool(op.blocks) and (op.coded if isinstance(op, RecvReduce) else op.buffer in CODED)


class Strands(tuple[Strand, ...]):
    """Independent sequences of steps that one rank runs side by side."""


def strands(body: Steps | Strands) -> Strands:
    """Return what an algorithm returned, in the one form everything else reads: tuples all the way down."""
    if isinstance(body, Strands):
        return body
    return Strands((tuple(map(_step, body)),))


def _step(step: Op | Sequence[Op]) -> Step:
    return (_op(step),) if type(step) in _OPS else tuple(map(_op, step))  # type: ignore[arg-type]


def _op(op: Op) -> Op:
    return op if isinstance(op, _LOCAL) or type(op.blocks) is tuple else op._replace(blocks=tuple(op.blocks))
