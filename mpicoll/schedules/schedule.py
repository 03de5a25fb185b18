"""A schedule: an algorithm at one number of ranks, root and choice of parameters, with every rank's program."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property
from importlib import import_module
from typing import Any

from ..compression.codecs import Codec
from ..errors import MpicollError
from .collectives import Block
from .combinators import Stack, forward, parallel, rotate, then
from .grouping import Partition
from .ir import Message, Strands, is_coded
from .registry import Algorithm, check_order, parse_spec

MOST_RANKS = 1 << 24


class Schedule:
    """One algorithm at one p, root and choice of parameters: every rank's program, made when asked for.

    commutative=False asks for the form that combines operands in rank order for every root.
    """

    def __init__(
        self,
        entry: Algorithm,
        p: int,
        root: int = 0,
        *,
        commutative: bool = True,
        nodes: Partition | None = None,
        **parameters: Any,
    ) -> None:
        if not 1 <= p <= MOST_RANKS:
            raise ValueError(f"p is {p}; a schedule has at least 1 rank, and no machine has more than {MOST_RANKS:,}")
        if not 0 <= root < p:
            raise ValueError(f"root is {root}; it must be in 0..{p - 1}")
        self.algorithm, self.p, self.root, self.parameters = entry, p, root, parameters
        self.collective = entry.collective
        self.commutative = commutative
        self.resolved = entry.resolve(p, nodes, **parameters)
        if not commutative and entry.collective.reduces:
            check_order(entry, p, nodes, **parameters)
        self.turn = root if not (entry.collective.reduces and not commutative) else 0
        turned = {n: entry.parameters[n].kind.turned(v, p, self.turn) for n, v in self.resolved.items()}
        self.make = entry.make(p, turned)
        self.codec: Codec | None = entry.codec(self.resolved)
        if "codec" in self.resolved:
            self.resolved["codec"] = self.codec

    def __repr__(self) -> str:
        return f"<Schedule {self.title} p={self.p}>"

    def _repr_svg_(self) -> str | None:
        """Return the space-time picture for notebooks; None if drawsvg is missing."""
        try:
            return str(_describe("svg").svg(self))
        except MpicollError:
            return None

    def _repr_html_(self) -> str | None:
        """Return the page that plays it, in a frame, for notebooks; None if it has too many ranks."""
        frame: str | None = _describe("explore.notebook").frame(self)
        return frame

    @property
    def title(self) -> str:
        """Return collective, algorithm and parameters, and the root where it is not rank 0."""
        parameters = ", ".join(f"{k}={v}" for k, v in self.parameters.items())
        root = f" root {self.root}" if self.root else ""
        order = "" if self.commutative else " in rank order"
        return f"{self.collective.name} {self.algorithm.name}{f'({parameters})' if parameters else ''}{root}{order}"

    @property
    def code_share(self) -> Fraction:
        """Return the bytes of codes per byte, in whole groups; 1 without a codec."""
        return self.codec.share if self.codec is not None else Fraction(1)

    def blocks_moved(self, op: Message) -> float:
        """Return the bytes of a message as a multiple of a block's: codes have fewer than the blocks they stand for."""
        return len(op.blocks) * float(self.code_share) if is_coded(op) else len(op.blocks)

    @property
    def blocks_of_n(self) -> int:
        """Return how many equal blocks make up the n bytes of the docstring's formulas; see claims.py."""
        match self.collective.naming:
            case "pair":
                return self.p
            case "edge":
                return 1
        return max(1, len(self.blocks))

    @cached_property
    def blocks(self) -> Sequence[Block]:
        """Return every block's name."""
        if self.collective.naming == "edge":
            graph: Sequence[Block] = self.resolved["graph"]
            return graph
        return self.collective.blocks(self.p, self.algorithm.share(self.p, **self.resolved))

    @cached_property
    def parts(self) -> int:
        """Return how many blocks a rank's share of the vector is cut in; 1 if blocks are no shares of ranks."""
        return len(self.blocks) // self.p if self.collective.naming == "rank" else 1

    def strand(self, block: Block) -> int:
        """Return the strand in which a block moves."""
        if self.turn and self.collective.naming == "rank":
            block = (block - self.turn) % self.p  # type: ignore[operator]
        if isinstance(self.make, Stack):
            return self.make.strand(block)
        return self.algorithm.strand(block) if self.algorithm.strand is not None else 0

    def program(self, rank: int) -> Strands:
        """Return the strands of one rank, roots and operand order taken care of."""
        if not self.collective.rooted or self.root == 0:
            return self.make(rank)
        if not self.turn:
            program = self.make(rank)
            apart = [[b for b in self.blocks if self.strand(b) == s] for s in range(len(program))]
            return parallel(
                *(then(Strands((s,)), forward(b, rank, 0, self.root)) for s, b in zip(program, apart, strict=True))
            )
        return rotate(lambda _, r: self.make(r), self.p, rank, self.turn, self.collective.naming == "rank")

    def starts(self, rank: int) -> list[Block]:
        """Return the blocks a rank contributes."""
        return list(self.collective.starts(self.blocks, self.p, rank, self.root))

    def source(self, block: Block) -> int:
        """Return the source rank of a block, in a collective that only moves data."""
        return self.collective.source(block, self.root, self.parts)

    def ends(self, rank: int) -> list[Block]:
        """Return the blocks a rank must hold at the end."""
        return list(self.collective.ends(self.blocks, self.p, rank, self.root))


def _describe(module: str) -> Any:
    """Import a module of mpicoll.describe, by its name: that package imports this one, and only pictures need it."""
    return import_module(f"..describe.{module}", __package__)


def schedule(
    collective: str,
    spec: str,
    p: int,
    root: int = 0,
    *,
    commutative: bool = True,
    nodes: Partition | None = None,
    **parameters: Any,
) -> Schedule:
    """Return the schedule of an algorithm, given by name or as "name(key=value, …)", for p ranks."""
    entry, spec_parameters = parse_spec(collective, spec)
    return Schedule(entry, p, root, commutative=commutative, nodes=nodes, **{**dict(spec_parameters), **parameters})
