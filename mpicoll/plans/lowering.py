"""Lowers one rank's program to a plan: where every block is at every step, and the rows that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..schedules import blocks as parts
from ..schedules.collectives import Block
from ..schedules.ir import INPUT, VALUE, Loc, Recv, RecvReduce, Reduce, Send, Step, Strand
from ..schedules.liveness import due, last, read, written
from ..schedules.schedule import Schedule
from .allocator import Pool, Region
from .plan import (
    ALIGN,
    FOLD,
    IN,
    LAST,
    MAX_STRANDS,
    MAX_WINDOW,
    OUT,
    RECV,
    SCRATCH,
    SEND,
    WINDOW,
    Counts,
    Layout,
    Plan,
    cut,
    layout,
)
from .rows import Row, Segment, joined, merged, tables


class _Home(NamedTuple):
    """Where a block is now."""

    base: int
    offset: int
    region: Region | None = None


def lower(
    schedule: Schedule,
    rank: int,
    counts: Counts,
    itemsize: int,
    *,
    in_place: bool = False,
    chunk_bytes: int | None = None,
    window: int = WINDOW,
    averaged: bool = False,
) -> Plan:
    """Return the plan of one rank.

    in_place: the contribution lies in the output buffer, at the block's own place (for scatter: the root
    keeps its block where it is). chunk_bytes: the most of each block that one message carries; None: all.
    window: how many chunks are in flight. averaged: results are divided by the number of
    ranks. Raises ValueError for a chunk or window of zero or less.
    """
    if not all(isinstance(x, int) and x > 0 for x in (window, 1 if chunk_bytes is None else chunk_bytes)):
        raise ValueError(f"chunk_bytes is {chunk_bytes} and window {window}; both must be whole numbers of at least 1")
    memory = layout(schedule, counts, itemsize, in_place, rank)
    slice_, lanes = cut(schedule, memory, counts, itemsize, chunk_bytes)
    lowering = _Lowering(schedule, rank, memory, slice_, lanes, averaged and schedule.p > 1)
    return lowering.plan(min(window, lanes, MAX_WINDOW), itemsize)


def is_staged(schedule: Schedule, rank: int) -> bool:
    """Return whether a result in place would overwrite what is still to be read, so that it needs memory of its own.

    reduce_scatter and alltoall lay their results across their input, and some programs go back to their
    contribution.
    """
    if schedule.collective.name in ("reduce_scatter", "alltoall"):
        return True
    ops = (op for strand in schedule.program(rank) for step in strand for op in step)
    return any(INPUT in ((op.dst.buffer, op.src.buffer) if isinstance(op, Reduce) else (op.buffer,)) for op in ops)


class _Lowering:
    """The state of one lowering: where each block is, and the rows so far."""

    def __init__(
        self, schedule: Schedule, rank: int, memory: Layout, slice_: int, lanes: int, averaged: bool
    ) -> None:
        self.schedule, self.rank, self.memory = schedule, rank, memory
        self.slice, self.lanes = slice_, lanes
        self.averaged, self.early = averaged, schedule.algorithm.finishes_where_kept(schedule.p, schedule.resolved)
        self.kept = set(schedule.ends(rank))
        self.homes: dict[Loc, _Home] = {}
        for b in schedule.starts(rank):
            self.homes[Loc(VALUE, b)] = self.homes[Loc(INPUT, b)] = self._own_home(b)
        self.steps: list[tuple[list[Row], list[Row]]] = []  # (to post, to finish)
        self.spans: list[tuple[int, int]] = []

    def _own_home(self, block: Block) -> _Home:
        if self.memory.in_place and self.schedule.collective.name != "scatter":
            return _Home(OUT, self.memory.output_at(block))
        return _Home(IN, self.memory.input_at(block))

    def plan(self, window: int, itemsize: int) -> Plan:
        """Lower every strand and lay the tables out."""
        peak, program = 0, self.schedule.program(self.rank)
        if len(program) > MAX_STRANDS:
            raise ValueError(f"{self.schedule.title} has {len(program)} strands; there are tags for {MAX_STRANDS}")
        for strand in program:
            first = len(self.steps)
            peak = self._strand(strand, peak)
            self.spans.append((first, len(self.steps)))
        self.spans = self.spans or [(0, 0)]
        self._keep_untouched()
        return tables(
            self.steps,
            self.spans,
            slice_=self.slice,
            lanes=self.lanes,
            window=window,
            lane_scratch=-(-peak // ALIGN) * ALIGN,
            itemsize=itemsize,
        )

    # -- strands and steps ------------------------------------------------------------------------------

    def _strand(self, strand: Strand, start: int) -> int:
        self.pool, self.last_read, self.last_write = Pool(start), last(strand, read), last(strand, written)
        self.unread_after: dict[int, list[Loc]] = {}  # by step: what no later step reads
        for loc, at in self.last_read.items():
            self.unread_after.setdefault(at, []).append(loc)
        kept = [loc for loc in self.last_write if self._is_kept(loc) and self._length(loc)] if self.averaged else []
        divided = due(kept, self.last_read, self.last_write, self.early)
        for index, step in enumerate(strand):
            self.index, self.released, self.moved = index, [], []  # type: ignore[var-annotated]
            self.finish: list[Row] = []
            self.wrote: dict[Loc, int] = {}  # the last of these rows that writes a place
            operands: dict[Loc, list[_Home]] = {}
            whole: dict[Loc, bool] = {}
            receives = [  # in the step's order, in which messages from one peer match
                self._receive(op) if isinstance(op, Recv) else self._land(op, operands, whole)
                for op in step
                if isinstance(op, Recv | RecvReduce)
            ]
            sends = [self._send(op) for op in step if isinstance(op, Send)]
            for loc, sources in operands.items():
                self._fold(loc, sources, whole[loc])
            for op in step:
                if isinstance(op, Reduce):
                    self._reduce(op)
            if index in divided:
                self._divide(divided[index], step)
            self._release(index)
            self.steps.append(([row for row in receives + sends if row], self._merged(self.finish)))
        return self.pool.peak

    def _length(self, loc: Loc) -> int:
        return self.memory.size(loc.block)

    def _piece(self, loc: Loc) -> int:
        return min(self._length(loc), self.slice)

    def _segment(self, loc: Loc, home: _Home) -> Segment:
        return home.base, home.offset, self._length(loc)

    def _is_kept(self, loc: Loc) -> bool:
        return loc.buffer == VALUE and loc.block in self.kept

    def _move(self, loc: Loc, home: _Home) -> None:
        """Note that the block is in `home` from the end of this step on."""
        old = self.homes.get(loc)
        if old and old.region:
            self.released.append(old.region)
        if home.region:
            home.region.refs += 1
            self.moved.append(loc)
        self.homes[loc] = home

    def _release(self, index: int) -> None:
        """Give back what nobody reads after this step."""
        for loc in dict.fromkeys((*self.unread_after.get(index, ()), *self.moved)):
            if self.homes[loc].region and self.last_read.get(loc, -1) <= index:
                self.released.append(self.homes.pop(loc).region)
        for region in self.released:
            region.refs -= 1
            if region.refs <= 0:
                self.pool.give(region)

    def _borrow(self, size: int) -> Region:
        """Scratch for this step alone, unless a block moves in."""
        region = self.pool.take(size)
        region.refs = 1
        self.released.append(region)
        return region

    # -- messages ---------------------------------------------------------------------------------------

    def _message(self, kind: int, peer: int, segments: list[Segment], stage: int, token: bool) -> Row | None:
        """Return one row; none for a message that both ends know to be empty. Its segments are joined."""
        if not segments and not token:
            return None
        return kind, peer, segments, stage if len(segments) > 1 else -1

    def _joined(self, locs: list[Loc], homes: list[_Home]) -> list[Segment]:
        """Return the segments of these blocks, but for empty ones; neighbours are one where no chunk cuts them."""
        segments = [s for s in map(self._segment, locs, homes) if s[2]]
        return joined(segments) if self.lanes == 1 else segments

    def _send(self, op: Send) -> Row | None:
        locs = [Loc(op.buffer, b) for b in op.blocks]
        segments = self._joined(locs, [self.homes[x] for x in locs])
        stage = self._borrow(sum(map(self._piece, locs))).offset if len(segments) > 1 else -1
        return self._message(SEND, op.peer, segments, stage, not op.blocks)

    def _receive(self, op: Recv) -> Row | None:
        locs = [Loc(op.buffer, b) for b in op.blocks]
        if all(map(self._is_kept, locs)):
            homes = [_Home(OUT, self.memory.output_at(x.block)) for x in locs]
            direct = self._joined(locs, homes)
            if len(direct) < 2:
                for loc, home in zip(locs, homes, strict=True):
                    self._move(loc, home)
                return self._message(RECV, op.peer, direct, -1, not op.blocks)
        row, pieces = self._landing(op.peer, locs)
        for loc, piece in zip(locs, pieces, strict=True):
            if self._is_kept(loc):
                self._write(loc, [piece], _Home(OUT, self.memory.output_at(loc.block)))
            else:
                self._move(loc, piece)
        return row

    def _landing(self, peer: int, locs: list[Loc]) -> tuple[Row | None, list[_Home]]:
        """Receive blocks one behind the other in scratch."""
        region = self._borrow(sum(map(self._piece, locs)))
        at = parts.offsets([self._piece(x) for x in locs])
        pieces = [_Home(SCRATCH, region.offset + a, region) for a in at]
        row = self._message(RECV, peer, self._joined(locs, pieces), region.offset, not locs)
        return row, pieces

    # -- local work -------------------------------------------------------------------------------------

    def _land(self, op: RecvReduce, operands: dict[Loc, list[_Home]], whole: dict[Loc, bool]) -> Row | None:
        locs = [Loc(op.buffer, b) for b in op.blocks]
        row, pieces = self._landing(op.peer, locs)
        all_kept = all(map(self._is_kept, locs))
        for loc, piece in zip(locs, pieces, strict=True):
            sources = operands.setdefault(loc, [self.homes[loc]])
            sources.insert(0, piece) if op.side == "left" else sources.append(piece)
            whole[loc] = all_kept
        return row

    def _fold(self, loc: Loc, sources: list[_Home], all_kept: bool) -> None:
        """Fold what landed; the result stays where it landed while the block is only passing through."""
        last = self.last_write[loc] == self.index
        landed = next(h for h in sources if h.region and h is not self.homes[loc])
        keep = self._is_kept(loc) and (last or all_kept)
        self._write(loc, sources, _Home(OUT, self.memory.output_at(loc.block)) if keep else landed)

    def _reduce(self, op: Reduce) -> None:
        src, dst = self.homes[op.src], self.homes.get(op.dst)
        sources = [src] if dst is None else [src, dst] if op.side == "left" else [dst, src]
        if self._is_kept(op.dst):
            place = _Home(OUT, self.memory.output_at(op.dst.block))
        elif dst is not None and dst.region:
            place = dst
        else:
            region = self._borrow(self._piece(op.dst))
            place = _Home(SCRATCH, region.offset, region)
        self._write(op.dst, sources, place)

    def _write(self, loc: Loc, sources: list[_Home], place: _Home) -> None:
        if self._length(loc):
            self.wrote[loc] = len(self.finish)
            self.finish.append((FOLD, 0, [self._segment(loc, h) for h in (place, *sources)], -1))
        self._move(loc, place)

    def _merged(self, rows: list[Row]) -> list[Row]:
        """Return the rows with those as one whose segments all follow on, where no chunk cuts them."""
        return merged(rows) if self.lanes == 1 else rows

    def _divide(self, locs: Sequence[Loc], step: Step) -> None:
        """Make the rows that write these results divide them too, or add rows that do; see liveness.due."""
        read = {op.src for op in step if isinstance(op, Reduce)}
        for loc in locs:
            row = self.wrote.get(loc)
            if self.early and (row is None or len(self.finish[row][2]) == 2):
                continue  # received, or copied from where it was received: by then it is divided
            if row is not None and (self.early or loc not in read):
                self.finish[row] = (LAST, *self.finish[row][1:])
            else:
                here = self._segment(loc, self.homes[loc])
                self.finish.append((LAST, 0, [here, here], -1))

    def _keep_untouched(self) -> None:
        """Blocks that end here and were never written go from input to output while the first messages travel."""
        if self.memory.in_place:
            return
        rows: list[Row] = []
        for block in self.schedule.ends(self.rank):
            loc = Loc(VALUE, block)
            if (home := self.homes[loc]).base == IN and self._length(loc):
                rows.append(
                    (FOLD, 0, [(OUT, self.memory.output_at(block), self._length(loc)), self._segment(loc, home)], -1)
                )
        if not rows:
            return
        first, end = self.spans[0]
        if first == end:
            self.steps.insert(0, ([], []))
            self.spans = [(0, 1)] + [(a + 1, b + 1) for a, b in self.spans[1:]]
        self.steps[0][0].extend(self._merged(rows))
