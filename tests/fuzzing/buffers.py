"""One call on one rank: its arguments, what its memory holds before, and what it must hold afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI
from support import ops
from support.vectors import packed, with_gaps

from . import kinds
from .memory import Area
from .program import GATHERING, NEIGHBOURING, PAIRWISE, PARTS, SCATTERING, TYPED, WITH_COUNTS, Call

Edge = tuple[int, int]                      # a block's sender, and its place in the send buffer
Edges = tuple[list["Edge | None"], int]     # of the blocks that a rank receives, and how many places it sends from
SIDED = {"both": (True, True), "send": (True, False), "receive": (False, True)}


class Block(NamedTuple):
    """The block of one rank or of one edge: `count` elements from `at` bytes on."""

    peer: Any
    at: int
    count: int
    layout: str


class Side:
    """A send or a receive buffer: blocks in memory, and the arguments that describe them to MPI."""

    def __init__(self, call: Call, blocks: Iterable[tuple[Any, int, str]], wide: bool) -> None:
        """Allocate blocks of (peer, elements of the call's layout, layout); the peer is None if nothing is sent."""
        scaled = [(peer, n * _numbers(call.layout) // _numbers(lies), lies) for peer, n, lies in blocks]
        size = kinds.DTYPES[call.type].itemsize
        widths = [kinds.LAYOUTS[lies].width for _, _, lies in scaled]
        with_counts = wide and call.method in WITH_COUNTS
        order = with_gaps if call.with_gaps and with_counts else packed
        if call.method in TYPED:
            at = order([n * width for (_, n, _), width in zip(scaled, widths)])
            self.displacements = [x * size for x in at]
            self.types: Any = [kinds.datatype(call.type, lies) for _, _, lies in scaled]
            places = self.displacements
        else:
            self.displacements = order([n for _, n, _ in scaled])
            self.types = kinds.datatype(call.type, scaled[0][2] if scaled else "plain")
            places = [x * width * size for x, width in zip(self.displacements, widths)]
        self.blocks = [Block(peer, at, n, lies) for (peer, n, lies), at in zip(scaled, places)]
        ends = [b.at + b.count * width * size for b, width in zip(self.blocks, widths)]
        self.area = Area(max(ends, default=0), call.type)
        self.counts = [b.count for b in self.blocks] if with_counts else self.blocks[0].count if self.blocks else 0

    @property
    def argument(self) -> list[Any]:
        """As mpi4py takes it."""
        if isinstance(self.counts, list):
            return [self.area.view, self.counts, self.displacements, self.types]
        return [self.area.view, self.counts, self.types]

    def put(self, data: Callable[[Any], np.ndarray], only: int | None = None) -> None:
        """Fill in what belongs to each peer, or to one only."""
        for block in self.blocks:
            if only in (None, block.peer):
                self.area.put(block.at, kinds.LAYOUTS[block.layout], data(block.peer))

    def expect(self, data: Callable[[Any], np.ndarray]) -> None:
        """Expect each peer's block."""
        for block in self.blocks:
            if block.peer is not None:
                self.area.expect(block.at, kinds.LAYOUTS[block.layout], data(block.peer))


def _numbers(layout: str) -> int:
    return len(kinds.LAYOUTS[layout].picks)


class Moving:
    """A call that moves blocks."""

    def __init__(self, call: Call, p: int, rank: int) -> None:
        self.call, self.p, self.rank = call, p, rank
        self.here = not call.rooted or rank == call.root
        self.in_place = call.in_place and self.here
        bcast, root = call.method == "Bcast", call.root
        all_to_one, one_to_all = call.method in GATHERING, call.method in SCATTERING
        ranks = range(p)
        self.send = self.receive = None
        if all_to_one or bcast:
            self.send = self._side([(root, call.count(rank, root))], 0, False)
        elif self.here:
            self.send = self._side([(d, call.count(rank, d)) for d in ranks], 0, True)
        if one_to_all or bcast:
            self.receive = self._side([(root, call.count(root, rank))], 1, False)
        elif self.here:
            self.receive = self._side([(s, call.count(s, rank)) for s in ranks], 1, True)
        if bcast:
            self.send, self.receive = (self.send, None) if self.here else (None, self.receive)
        elif self.in_place and one_to_all:
            self.receive = None
        elif self.in_place:
            self.send = None

    def _side(self, blocks: Sequence[tuple[Any, int]], which: int, wide: bool) -> Side:
        call = self.call
        if call.side == "odd":              # an affair of each rank
            derived = [self.rank % 2 == 1] * len(blocks)
        elif call.side == "each":           # an affair of each block
            derived = [(i + self.rank) % 2 == 1 for i in range(len(blocks))]
        else:
            derived = [SIDED[call.side][which]] * len(blocks)
        lies = [call.layout if is_derived else "plain" for is_derived in derived]
        return Side(call, [(peer, n, how) for (peer, n), how in zip(blocks, lies)], wide)

    @property
    def arguments(self) -> list[Any]:
        """The buffers as the method takes them."""
        if self.call.method == "Bcast":
            return [(self.send or self.receive).argument]       # type: ignore[union-attr]
        first, second = (side.argument if side else None for side in (self.send, self.receive))
        if self.in_place:
            first, second = (first, MPI.IN_PLACE) if self.call.method in SCATTERING else (MPI.IN_PLACE, second)
        return [first, second]

    def load(self, salt: int) -> None:
        """Fill the memory."""
        for side in (self.send, self.receive):
            if side:
                side.area.clear()
        if self.send:
            self.send.put(lambda peer: self._data(self.rank, peer, salt))
        if self.receive and self.in_place:
            own = None if self.call.method in PAIRWISE else self.rank
            self.receive.put(lambda peer: self._data(self.rank, peer, salt), own)
        if self.receive:
            self.receive.expect(lambda peer: self._data(peer, self.rank, salt))

    def _data(self, source: int, destination: int, salt: int) -> np.ndarray:
        method, n = self.call.method, self.call.count(source, destination) * _numbers(self.call.layout)
        if method in GATHERING or method == "Bcast":
            destination = 0
        return kinds.moved(self.call.type, n, source, destination, salt)

    def wrong(self) -> str:
        """Return how memory differs from what it must hold; empty if it does not."""
        sides = {"the send buffer": self.send, "the result": self.receive}
        return "; ".join(f"{name}: {error}" for name, side in sides.items() if side and (error := side.area.wrong()))


class Neighbouring(Moving):
    """A call that moves blocks along the edges of a graph."""

    def __init__(self, call: Call, rank: int, edges: Edges) -> None:
        self.call, self.rank, self.in_place = call, rank, False
        arriving, places = edges
        to_all = call.method in GATHERING
        sent = [(rank, i) for i in range(1 if to_all else places)]
        self.send = self._side([(edge, call.count(*edge)) for edge in sent], 0, not to_all)
        self.receive = self._side([(edge, call.count(*(edge or (rank, 0)))) for edge in arriving], 1, True)

    def load(self, salt: int) -> None:
        """Fill the memory."""
        for side in (self.send, self.receive):
            side.area.clear()           # type: ignore[union-attr]
        self.send.put(lambda edge: self._data(*edge, salt))             # type: ignore[union-attr]
        self.receive.expect(lambda edge: self._data(*edge, salt))       # type: ignore[union-attr]


class Reducing:
    """A call that combines."""

    def __init__(self, call: Call, p: int, rank: int) -> None:
        self.call, self.p, self.rank = call, p, rank
        self.here = call.method != "Reduce" or rank == call.root
        self.in_place = call.in_place and self.here
        self.shares = [call.count(0, r) for r in range(p)] if call.method in PARTS else [call.count(0, 0)]
        self.own = self.shares[rank] if call.method in PARTS else self.shares[0]
        size = kinds.DTYPES[call.type].itemsize
        self.send = None if self.in_place else Area(sum(self.shares) * size, call.type)
        wide = self.in_place and call.method in PARTS
        self.receive = Area((sum(self.shares) if wide else self.own) * size, call.type) if self.here else None

    @property
    def arguments(self) -> list[Any]:
        """The buffers as the method takes them."""
        datatype, total = kinds.datatype(self.call.type, "plain"), sum(self.shares)
        if self.call.method == "Reduce_scatter_block":
            total = self.own                                    # mpi4py's count is that of a block
        send = MPI.IN_PLACE if self.send is None else [self.send.view, total, datatype]
        count = total if self.in_place else self.own
        receive = None if self.receive is None else [self.receive.view, count, datatype]
        counts = [self.shares if self.call.has_recvcounts else None] * (self.call.method == "Reduce_scatter")
        return [send, receive, *counts, ops.operator(self.call.op)]

    def load(self, salt: int) -> None:
        """Fill the memory."""
        call, plain, total = self.call, kinds.LAYOUTS["plain"], sum(self.shares)
        parts = [kinds.contributed(call.type, call.op, total, r, salt) for r in range(self.p)]
        for area in (self.send, self.receive):
            if area:
                area.clear()
        source = self.send or self.receive
        assert source is not None
        source.put(0, plain, parts[self.rank])
        if self.receive is None:
            return
        if self.in_place and call.method in PARTS:
            self.receive.ignore()
        parts = parts[: {"Scan": self.rank + 1, "Exscan": self.rank}.get(call.method, self.p)]
        if parts:
            result = np.ascontiguousarray(ops.combined(call.op, parts))
            if call.method in PARTS:
                numbers = len(result) // max(1, total)          # four to an element of MATRIX
                first = sum(self.shares[: self.rank])
                result = result[first * numbers : (first + self.own) * numbers]
            self.receive.expect(0, plain, result)

    @property
    def nothing_said(self) -> bool:
        """Return whether MPI leaves the result undefined, which mpicoll leaves as it is."""
        return self.call.method == "Exscan" and self.rank == 0

    def wrong(self) -> str:
        """Return how memory differs from what it must hold; empty if it does not."""
        sides = {"the send buffer": self.send, "the result": self.receive}
        return "; ".join(f"{name}: {error}" for name, area in sides.items() if area and (error := area.wrong()))


class Nothing:
    """A barrier."""

    arguments: list[Any] = []       # noqa: RUF012

    def load(self, salt: int) -> None:
        """Load nothing: a barrier has no memory."""

    def wrong(self) -> str:
        """Return an empty text: a barrier has no memory."""
        return ""


Buffers = Moving | Reducing | Nothing


def buffers(call: Call, p: int, rank: int, edges: Edges) -> Buffers:
    """Return the memory of a call on one rank, which has these edges if the call is a neighborhood collective."""
    if call.method == "Barrier":
        return Nothing()
    if call.method in NEIGHBOURING:
        return Neighbouring(call, rank, edges)
    return (Reducing if call.reduces else Moving)(call, p, rank)
