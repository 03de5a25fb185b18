"""Lowers one rank's program to a plan: where every block is at every step, and the rows that follow from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..schedules.collectives import Block
from ..schedules.ir import CODED as CODED_BUFFERS
from ..schedules.ir import INPUT, REST, VALUE, Copy, Local, Recv, RecvReduce, Reduce, Send, Strand
from ..schedules.liveness import Place, due, last, read, written
from ..schedules.schedule import Schedule
from .allocator import Pool, Region
from .plan import (
    ALIGN,
    CODED,
    FOLD,
    FOLD_SCALE,
    IN,
    MAX_STRANDS,
    MAX_WINDOW,
    OUT,
    RECV,
    SCRATCH,
    SEND,
    WHOLE,
    WINDOW,
    Coding,
    Counts,
    Layout,
    Plan,
    cut,
    layout,
)
from .rows import Row, Segment, Tables, joined, merged

Home = tuple[int, int, "Region | None"]  # where a block is now: base, offset, and the scratch that it is in


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
    codec: Coding | None = None,
    how: type[Lowering] | None = None,
) -> Plan:
    """Return the plan of one rank.

    in_place: the contribution lies in the output buffer, at the block's own place (for scatter: the root
    keeps its block where it is). chunk_bytes: the most of each block that one message carries; None: all.
    window: how many chunks are in flight. averaged: results are divided by the number of
    ranks. codec: what encodes blocks, where the schedule has codes; how: the kind of lowering, where it is another.
    Raises ValueError for a chunk or window of zero or less.
    """
    if not all(isinstance(x, int) and x > 0 for x in (window, 1 if chunk_bytes is None else chunk_bytes)):
        raise ValueError(f"chunk_bytes is {chunk_bytes} and window {window}; both must be whole numbers of at least 1")
    memory = layout(schedule, counts, itemsize, in_place, rank)
    group, widest = itemsize * (codec.group if codec else 1), 1
    if codec is not None:
        widest = max(1, -(-codec.nbytes(codec.group) // group))
    slice_, lanes = cut(schedule, memory, counts, group, chunk_bytes, widest)
    make = how or Lowering
    lowering = make(schedule, rank, memory, slice_, lanes, averaged and schedule.p > 1, itemsize, codec)
    return lowering.plan(min(window, lanes, MAX_WINDOW))


class Lowering:
    """The state of one lowering: where each block is, and the rows so far."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        memory: Layout,
        slice_: int,
        lanes: int,
        averaged: bool,
        itemsize: int,
        codec: Coding | None,
    ) -> None:
        self.schedule, self.rank, self.memory = schedule, rank, memory
        self.slice, self.lanes, self.itemsize, self.codec = slice_, lanes, itemsize, codec
        self.code_slice = WHOLE if lanes == 1 or codec is None else self._codes(slice_)
        self.averaged, self.early = averaged, schedule.algorithm.divides_where_owned(schedule.p, schedule.resolved)
        self.size, self.output_at = memory.size, memory.output_at
        self.kept: set[Place] = {(VALUE, b) for b in schedule.ends(rank)}
        self.homes: dict[Place, Home] = {}
        for b in schedule.starts(rank):
            self.homes[VALUE, b] = self.homes[INPUT, b] = self._own_home(b)
        self.last_write: dict[Place, int] = {}
        self.tables = Tables()

    def _own_home(self, block: Block) -> Home:
        if self.memory.in_place and self.schedule.collective.name != "scatter":
            return OUT, self.output_at(block), None
        return IN, self.memory.input_at(block), None

    def plan(self, window: int) -> Plan:
        """Lower every strand and lay the tables out."""
        peak, program = 0, self.schedule.program(self.rank)
        if len(program) > MAX_STRANDS:
            raise ValueError(f"{self.schedule.title} has {len(program)} strands; there are tags for {MAX_STRANDS}")
        last_writes = [last(strand, written) for strand in program] or [{}]
        copies = self._untouched(last_writes)
        for strand, self.last_write in zip(program or [()], last_writes):
            peak = self._strand(strand or ((),) * bool(copies), peak, copies)
            self.tables.end_strand()
            copies = []
        coding = (self.codec.group, self.codec.nbytes(self.codec.group)) if self.codec else (1, 0)
        lane_scratch = -(-peak // ALIGN) * ALIGN
        return self.tables.plan(self.slice, self.lanes, window, lane_scratch, self.itemsize, *coding)

    def _codes(self, nbytes: int) -> int:
        """Return the bytes of the codes of nbytes bytes of elements."""
        if self.codec is None:
            raise ValueError(f"{self.schedule.title} has codes, and there is no codec")
        return self.codec.nbytes(nbytes // self.itemsize)

    def _length(self, base: int, block: Block) -> int:
        """Return the bytes of a block as it lies at a base."""
        length = self.size(block)
        return self._codes(length) if base == CODED else length

    def _untouched(self, last_writes: Sequence[Mapping[Place, int]]) -> list[Row]:
        """Return the rows that copy results from input to output: blocks that end here and that no strand writes."""
        rows: list[Row] = []
        for block in () if self.memory.in_place else self.schedule.ends(self.rank):
            if any((VALUE, block) in last_write for last_write in last_writes) or not (length := self.size(block)):
                continue
            base, offset, _ = self.homes[VALUE, block]
            rows.append((FOLD, 0, [(OUT, self.output_at(block), length), (base, offset, length)], -1))
        return self._merged(rows)

    # -- strands and steps ------------------------------------------------------------------------------

    def _strand(self, strand: Strand, start: int, copies: list[Row]) -> int:
        """Lower a strand whose scratch begins at `start`, and return its end. `copies` join the first step."""
        self.pool, self.last_read = Pool(start), last(strand, read)
        self.expiring: dict[int, list[Place]] = {}  # by step: places in scratch that no later step reads
        divided = self._due(strand)
        for index, step in enumerate(strand):
            self.index = index
            self.released: list[Region] = []
            self.finish: list[Row] = []
            self.wrote: dict[Place, int] = {}  # the last of these rows that writes a place
            self.operands: dict[Place, list[Home]] = {}
            self.whole: set[Place] = set()  # of these: folded from messages of which this rank keeps all blocks
            post: list[Row | None] = []
            sends: list[Send] = []
            local: list[Local] = []
            for op in step:  # receives in the step's order, in which messages from one peer match
                if isinstance(op, Send):
                    sends.append(op)
                elif isinstance(op, Local):
                    local.append(op)
                else:
                    post.append(self._receive(op) if isinstance(op, Recv) else self._land(op))
            post += map(self._send, sends)
            for place, sources in self.operands.items():
                self._fold(place, sources)
            for op in local:
                self._copy(op) if isinstance(op, Copy) else self._reduce(op)
            if index in divided:
                self._divide(divided[index], local)
            self._release(index)
            self.tables.add_step([row for row in post if row] + copies, self._merged(self.finish))
            copies = []
        return self.pool.peak

    def _due(self, strand: Strand) -> dict[int, list[Place]]:
        """Return the steps of a strand that end with a division of results, and which."""
        results = self.last_write if self.averaged else ()
        kept = [place for place in results if place in self.kept and self.size(place[1])]
        return due(kept, self.last_read, self.last_write, self.early)

    def _segment(self, place: Place, home: Home) -> Segment:
        return home[0], home[1], self._length(home[0], place[1])

    def _move(self, place: Place, home: Home) -> None:
        """Note that the block is in `home` from the end of this step on."""
        old, region = self.homes.get(place), home[2]
        if old is not None and old[2] is not None:
            self.released.append(old[2])
        if region is not None:
            region.refs += 1
            self.expiring.setdefault(max(self.index, self.last_read.get(place, -1)), []).append(place)
        self.homes[place] = home

    def _release(self, index: int) -> None:
        """Free the scratch that no operation reads after this step."""
        for place in self.expiring.pop(index, ()):
            home = self.homes.get(place)
            if home is not None and home[2] is not None:
                self.released.append(home[2])
                del self.homes[place]
        for region in self.released:
            region.refs -= 1
            if region.refs <= 0:
                self.pool.give(region)

    def _borrow(self, size: int) -> Region:
        """Return scratch that is freed after this step, unless a block moves in."""
        region = self.pool.take(size)
        region.refs = 1
        self.released.append(region)
        return region

    # -- messages ---------------------------------------------------------------------------------------

    def _message(self, kind: int, peer: int, segments: list[Segment], stage: int, token: bool) -> Row | None:
        """Return one row with joined segments; None for a message that both ends know to be empty."""
        if not segments and not token:
            return None
        return kind, peer, segments, stage if len(segments) > 1 else -1

    def _joined(self, segments: list[Segment]) -> list[Segment]:
        """Return these segments but for empty ones; neighbours are one where no chunk cuts them."""
        if self.lanes == 1:
            return joined(segments)
        return [segment for segment in segments if segment[2]]

    def _piece(self, base: int, block: Block) -> int:
        """Return the most bytes of a block, as it lies at a base, that one message carries."""
        n, most = self._length(base, block), self.code_slice if base == CODED else self.slice
        return n if n < most else most

    def _coded(self, op: Recv | RecvReduce) -> Sequence[bool]:
        """Return for each block of a message whether codes of it arrive."""
        coded = op.coded if isinstance(op, RecvReduce) else op.buffer in CODED_BUFFERS
        return [coded] * len(op.blocks)

    def _send(self, op: Send) -> Row | None:
        buffer, homes, size = op.buffer, self.homes, self.size
        segments = []
        for block in op.blocks:
            base, offset, _ = homes[buffer, block]
            segments.append((base, offset, size(block) if base != CODED else self._length(CODED, block)))
        segments, stage = self._joined(segments), -1
        if len(segments) > 1:
            stage = self._borrow(sum(self._piece(homes[buffer, block][0], block) for block in op.blocks)).offset
        return self._message(SEND, op.peer, segments, stage, not op.blocks)

    def _receive(self, op: Recv) -> Row | None:
        buffer, blocks = op.buffer, op.blocks
        places, coded = [(buffer, block) for block in blocks], self._coded(op)
        if self.kept.issuperset(places) and not any(coded):
            at = list(map(self.output_at, blocks))
            direct = self._joined([(OUT, offset, self.size(block)) for block, offset in zip(blocks, at)])
            if len(direct) < 2:
                for place, offset in zip(places, at):
                    self._move(place, (OUT, offset, None))
                return self._message(RECV, op.peer, direct, -1, not blocks)
        row, homes = self._landing(op.peer, blocks, coded)
        for place, home in zip(places, homes):
            if place in self.kept and home[0] != CODED:
                self._write(place, [home], (OUT, self.output_at(place[1]), None))
            else:
                self._move(place, home)
        return row

    def _landing(self, peer: int, blocks: Sequence[Block], coded: Sequence[bool]) -> tuple[Row | None, list[Home]]:
        """Receive blocks, or codes of them, one behind the other in scratch."""
        bases = [CODED if is_coded else SCRATCH for is_coded in coded]
        pieces = list(map(self._piece, bases, blocks))
        region = self._borrow(sum(pieces))
        homes: list[Home] = []
        segments: list[Segment] = []
        at = region.offset
        for block, base, piece in zip(blocks, bases, pieces):
            homes.append((base, at, region))
            segments.append((base, at, self._length(base, block)))
            at += piece
        row = self._message(RECV, peer, self._joined(segments), region.offset, not blocks)
        return row, homes

    # -- local work -------------------------------------------------------------------------------------

    def _land(self, op: RecvReduce) -> Row | None:
        row, homes = self._landing(op.peer, op.blocks, self._coded(op))
        places = [(op.buffer, block) for block in op.blocks]
        for place, home in zip(places, homes):
            sources = self.operands.setdefault(place, [self.homes[place]])
            sources.insert(0, home) if op.side == "left" else sources.append(home)
        self.whole.difference_update(places)
        if self.kept.issuperset(places):
            self.whole.update(places)
        return row

    def _fold(self, place: Place, sources: list[Home]) -> None:
        """Fold what landed; the result stays where it landed while the block is only passing through."""
        if place in self.kept and (place in self.whole or self.last_write[place] == self.index):
            self._write(place, sources, (OUT, self.output_at(place[1]), None))
        else:
            own = self.homes[place]
            landed = next((h for h in sources if h[0] == SCRATCH and h is not own), None)
            self._write(place, sources, landed or self._room(place[1]))

    def _reduce(self, op: Reduce) -> None:
        src, dst = self.homes[op.src], self.homes.get(op.dst)
        sources = [src] if dst is None else [src, dst] if op.side == "left" else [dst, src]
        self._write(op.dst, sources, self._target(op.dst))

    def _copy(self, op: Copy) -> None:
        self._write(op.dst, [self.homes[op.src]], self._target(op.dst))

    def _target(self, place: Place) -> Home:
        """Return where local work puts a block."""
        buffer, block = place
        known = self.homes.get(place)
        if place in self.kept:
            return OUT, self.output_at(block), None
        if buffer == REST:
            return self._own_home(block)
        return known if known is not None and known[2] else self._room(block, buffer in CODED_BUFFERS)

    def _room(self, block: Block, coded: bool = False) -> Home:
        """Return new scratch for a block, or for codes of it."""
        base = CODED if coded else SCRATCH
        region = self._borrow(self._piece(base, block))
        return base, region.offset, region

    def _write(self, place: Place, sources: list[Home], home: Home) -> None:
        if self.size(place[1]):
            self.wrote[place] = len(self.finish)
            self.finish.append((FOLD, 0, [self._segment(place, at) for at in (home, *sources)], -1))
        self._move(place, home)

    def _merged(self, rows: list[Row]) -> list[Row]:
        """Return the rows with those as one whose segments all follow on, where no chunk cuts them."""
        return merged(rows) if self.lanes == 1 else rows

    def _divide(self, places: Sequence[Place], local: Sequence[Local]) -> None:
        """Make the rows that write these results divide them too, or add rows that do; see liveness.due."""
        read = {op.src for op in local}
        for place in places:
            row = self.wrote.get(place)
            if self.early and (row is None or len(self.finish[row][2]) == 2):
                continue  # received, or copied from where it was received: by then it is divided
            if row is not None and (self.early or place not in read):
                self.finish[row] = (FOLD_SCALE, *self.finish[row][1:])
            else:
                here = self._segment(place, self.homes[place])
                self.finish.append((FOLD_SCALE, 0, [here, here], -1))
