"""Lower one rank's program to a plan: track where each block is at each step, and write the rows of the tables.

Lowering produces a template, in which blocks have no sizes yet (see template.py). `lower` binds it to counts.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

import numpy as np

from ..schedules.collectives import Block
from ..schedules.ir import CODED as CODED_BUFFERS
from ..schedules.ir import INPUT, REST, VALUE, Copy, Local, Recv, RecvReduce, Reduce, Send, Strand, is_coded
from ..schedules.liveness import Place, due, last, read, written
from ..schedules.schedule import Schedule
from .places import Home, Places, Region, is_apart, segment
from .plan import (
    CODED,
    IN,
    MAX_STRANDS,
    MAX_WINDOW,
    OUT,
    RECV,
    REDUCE,
    REDUCE_SCALE,
    SCRATCH,
    SEND,
    WINDOW,
    Coding,
    Counts,
    Plan,
    cut,
    layout,
)
from .rows import Row, Segment, Tables, joined, merged
from .template import FREED, STRAND, Template, bound

Remember = Callable[[Hashable, Callable[[], Template]], Template]  # cached template of a key, or a new one


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
    kind: type[Lowering] | None = None,
    remember: Remember | None = None,
) -> Plan:
    """Return the plan of one rank.

    - in_place: the output buffer contains the contribution (for scatter: the root keeps its block in the input).
    - chunk_bytes: the most bytes of a block in one message; None: all.
    - window: the number of chunks in flight.
    - averaged: whether to divide results by the number of ranks.
    - codec: encodes blocks; required if the schedule has codes.
    - kind: the class that lowers.
    - remember: a cache of templates.

    Raises ValueError unless chunk_bytes and window are integers of at least 1.
    """
    if not all(isinstance(x, int) and x > 0 for x in (window, 1 if chunk_bytes is None else chunk_bytes)):
        raise ValueError(f"chunk_bytes is {chunk_bytes} and window {window}; both must be whole numbers of at least 1")
    memory = layout(schedule, counts, itemsize, in_place, rank)
    group, widest = itemsize * (codec.group if codec else 1), 1
    if codec is not None:
        widest = max(1, -(-codec.nbytes(codec.group) // group))
    slice_, lanes = cut(schedule, memory, counts, group, chunk_bytes, widest)
    make, averages = kind or Lowering, averaged and schedule.p > 1
    key = in_place, is_apart(counts), lanes == 1, averages, codec is not None

    def new() -> Template:
        return make(schedule, rank, *key).template()

    template = new() if remember is None else remember((make, *key), new)
    return bound(template, memory, slice_, lanes, min(window, lanes, MAX_WINDOW), itemsize, codec)


class Lowering:
    """The state of one lowering: where each block is, and the rows so far.

    - apart: blocks are not adjacent in input and output.
    - single: the plan has one lane, so that no chunk splits a block.
    - coded: there is a codec.
    """

    def __init__(
        self, schedule: Schedule, rank: int, in_place: bool, apart: bool, single: bool, averaged: bool, coded: bool
    ) -> None:
        self.schedule, self.rank, self.in_place, self.single = schedule, rank, in_place, single
        self.averaged, self.early = averaged, schedule.algorithm.divides_where_owned(schedule.p, schedule.resolved)
        self.coded, self.spacing = coded, 1 + apart
        self.places = Places(schedule, rank)
        self.tables = Tables()
        self.numbers: dict[Block, int] = {}
        self.entries: list[tuple[int, bool]] = []  # of scratch: number of the block, whether it contains its codes
        self.events: list[tuple[int, int]] = []
        self.read: dict[int, Block] = {}  # by entry of the input
        self.written: dict[int, Block] = {}  # by entry of the output
        self.kept: set[Place] = {(VALUE, b) for b in schedule.ends(rank)}
        self.homes: dict[Place, Home] = {}
        for b in schedule.starts(rank):
            self.homes[VALUE, b] = self.homes[INPUT, b] = self._own_home(b)
        self.last_write: dict[Place, int] = {}

    def _number(self, block: Block) -> int:
        return self.numbers.setdefault(block, len(self.numbers))

    def _own_home(self, block: Block) -> Home:
        if self.in_place and self.schedule.collective.name != "scatter":
            return self._output(block)
        entry = self.places.input(block) * self.spacing
        self.read[entry] = block
        return IN, entry, None

    def _output(self, block: Block) -> Home:
        entry = self.places.output(block) * self.spacing
        self.written[entry] = block
        return OUT, entry, None

    def template(self) -> Template:
        """Return the template: lower every strand, and number the entries."""
        program = self.schedule.program(self.rank)
        if len(program) > MAX_STRANDS:
            raise ValueError(f"{self.schedule.title} has {len(program)} strands; there are tags for {MAX_STRANDS}")
        last_writes = [last(strand, written) for strand in program] or [{}]
        copies = self._copies_to_output(last_writes)
        for strand, self.last_write in zip(program or [()], last_writes):
            self._strand(strand or ((),) * bool(copies), copies)
            self.tables.end_strand()
            copies = []
        return self._template()

    def _template(self) -> Template:
        inputs, outputs = (n * self.spacing for n in self.places.counts)
        first = {IN: 0, OUT: inputs, SCRATCH: inputs + outputs, CODED: inputs + outputs}
        places = [(0, False)] * (inputs + outputs)
        for entry, block in self.read.items():
            places[entry] = self._number(block), False
        for entry, block in self.written.items():
            places[inputs + entry] = self._number(block), False
        rows, segments, steps, strands = self.tables.arrays()
        begins = np.array([first[base] for base in range(4)], np.int64)
        segments[:, 1] += begins[segments[:, 0]]
        rows[rows[:, 4] >= 0, 4] += first[SCRATCH]
        events = np.array(self.events, np.int64).reshape(-1, 2)
        events[:, 0] += first[SCRATCH]
        events[events[:, 1] >= 0, 1] += first[SCRATCH]
        return Template(
            rows,
            segments,
            np.array([*places, *self.entries], np.int64).reshape(-1, 2),
            events,
            steps,
            strands,
            self.tables.most_messages,
            tuple(self.numbers),
            inputs + outputs,
            inputs,
            self.read,
            {inputs + entry: block for entry, block in self.written.items()},
        )

    def _copies_to_output(self, last_writes: Sequence[Mapping[Place, int]]) -> list[Row]:
        """Return rows that copy to the output the results that no strand writes."""
        written_places = set().union(*last_writes)
        ends = () if self.in_place else self.schedule.ends(self.rank)
        unwritten = [block for block in ends if (VALUE, block) not in written_places]
        rows: list[Row] = [
            (REDUCE, 0, [segment(self._output(block)), segment(self.homes[VALUE, block])], -1) for block in unwritten
        ]
        return self._merged(rows)

    # -- strands and steps ------------------------------------------------------------------------------

    def _strand(self, strand: Strand, copies: list[Row]) -> None:
        """Lower a strand, which has its own scratch; `copies` are rows for its first step."""
        self.events.append((0, STRAND))
        self.last_read = last(strand, read)
        self.expiring: dict[int, list[Place]] = {}  # by step: places in scratch that no later step reads
        divided = self._due(strand)
        for index, step in enumerate(strand):
            self.index = index
            self.released: list[Region] = []
            self.finish: list[Row] = []
            self.wrote: dict[Place, int] = {}  # index in finish of the last row that writes a place
            self.operands: dict[Place, list[Home]] = {}
            self.whole: set[Place] = set()  # operands from messages of which this rank keeps all blocks
            post: list[Row] = []
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
                self._reduce_received(place, sources)
            for op in local:
                self._copy(op) if isinstance(op, Copy) else self._reduce(op)
            if index in divided:
                self._divide(divided[index], local)
            self._release(index)
            self.tables.add_step(post + copies, self._merged(self.finish))
            copies = []

    def _due(self, strand: Strand) -> dict[int, list[Place]]:
        """Return the results to divide at the end of each step of a strand."""
        results = self.last_write if self.averaged else ()
        kept = [place for place in results if place in self.kept]
        return due(kept, self.last_read, self.last_write, self.early)

    def _move(self, place: Place, home: Home) -> None:
        """Record that a block is in `home` from the end of this step on."""
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
                self.events.append((region.entry, FREED))

    def _allocate(self, blocks: Sequence[tuple[Block, bool]]) -> Region:
        """Allocate scratch for blocks, or for codes of them; it is freed after this step unless a block moves there."""
        if not self.coded and any(is_coded for _, is_coded in blocks):
            raise ValueError(f"{self.schedule.title} has codes, and there is no codec; pass one")
        region = Region(len(self.entries))
        self.entries += [(self._number(block), is_coded) for block, is_coded in blocks]
        self.events.append((region.entry, len(self.entries)))
        self.entries.append((0, False))  # a gap, so that blocks of two regions are never joined
        self.released.append(region)
        return region

    # -- messages ---------------------------------------------------------------------------------------

    def _message(self, kind: int, peer: int, segments: list[Segment], stage: int) -> Row:
        """Return the row of a message; only one of several segments needs a stage."""
        return kind, peer, segments, stage if len(segments) > 1 else -1

    def _joined(self, segments: list[Segment]) -> list[Segment]:
        """Return the segments, with adjacent ones joined if no chunk splits them."""
        return joined(segments) if self.single else segments

    def _coded(self, op: Recv | RecvReduce) -> Sequence[bool]:
        """Return whether a message contains codes, for each of its blocks."""
        return [is_coded(op)] * len(op.blocks)

    def _send(self, op: Send) -> Row:
        homes = [self.homes[op.buffer, block] for block in op.blocks]
        segments, stage = self._joined([segment(home) for home in homes]), -1
        if len(segments) > 1:
            stage = self._allocate([(block, home[0] == CODED) for block, home in zip(op.blocks, homes)]).entry
        return self._message(SEND, op.peer, segments, stage)

    def _receive(self, op: Recv) -> Row:
        buffer, blocks = op.buffer, op.blocks
        places, coded = [(buffer, block) for block in blocks], self._coded(op)
        if self.kept.issuperset(places) and not any(coded):
            outputs = list(map(self._output, blocks))
            direct = self._joined([segment(home) for home in outputs])
            if len(direct) < 2:
                for place, home in zip(places, outputs):
                    self._move(place, home)
                return self._message(RECV, op.peer, direct, -1)
        row, homes = self._landing(op.peer, blocks, coded)
        for place, home in zip(places, homes):
            if place in self.kept and home[0] != CODED:
                self._write(place, [home], self._output(place[1]))
            else:
                self._move(place, home)
        return row

    def _landing(self, peer: int, blocks: Sequence[Block], coded: Sequence[bool]) -> tuple[Row, list[Home]]:
        """Return the row that receives blocks or codes into new, contiguous scratch, and their homes."""
        region = self._allocate(list(zip(blocks, coded)))
        homes: list[Home] = [
            (CODED if is_coded else SCRATCH, region.entry + i, region) for i, is_coded in enumerate(coded)
        ]
        row = self._message(RECV, peer, self._joined([segment(home) for home in homes]), region.entry)
        return row, homes

    # -- local work -------------------------------------------------------------------------------------

    def _land(self, op: RecvReduce) -> Row:
        row, homes = self._landing(op.peer, op.blocks, self._coded(op))
        places = [(op.buffer, block) for block in op.blocks]
        for place, home in zip(places, homes):
            sources = self.operands.setdefault(place, [self.homes[place]])
            sources.insert(0, home) if op.side == "left" else sources.append(home)
        self.whole.difference_update(places)
        if self.kept.issuperset(places):
            self.whole.update(places)
        return row

    def _reduce_received(self, place: Place, sources: list[Home]) -> None:
        """Reduce received blocks; the result stays in the receive scratch if this rank only forwards it."""
        if place in self.kept and (place in self.whole or self.last_write[place] == self.index):
            self._write(place, sources, self._output(place[1]))
        else:
            own = self.homes[place]
            landed = next((h for h in sources if h[0] == SCRATCH and h is not own), None)
            self._write(place, sources, landed or self._allocate_block(place[1]))

    def _reduce(self, op: Reduce) -> None:
        src, dst = self.homes[op.src], self.homes.get(op.dst)
        sources = [src] if dst is None else [src, dst] if op.side == "left" else [dst, src]
        self._write(op.dst, sources, self._target(op.dst))

    def _copy(self, op: Copy) -> None:
        self._write(op.dst, [self.homes[op.src]], self._target(op.dst))

    def _target(self, place: Place) -> Home:
        """Return the home to which local work writes a block."""
        buffer, block = place
        known = self.homes.get(place)
        if place in self.kept:
            return self._output(block)
        if buffer == REST:
            return self._own_home(block)
        return known if known is not None and known[2] else self._allocate_block(block, buffer in CODED_BUFFERS)

    def _allocate_block(self, block: Block, coded: bool = False) -> Home:
        """Allocate scratch for a block, or for codes of it."""
        region = self._allocate([(block, coded)])
        return CODED if coded else SCRATCH, region.entry, region

    def _write(self, place: Place, sources: list[Home], home: Home) -> None:
        self.wrote[place] = len(self.finish)
        self.finish.append((REDUCE, 0, [segment(at) for at in (home, *sources)], -1))
        self._move(place, home)

    def _merged(self, rows: list[Row]) -> list[Row]:
        """Return the rows, with those joined whose segments are all adjacent, if no chunk splits them."""
        return merged(rows) if self.single else rows

    def _divide(self, places: Sequence[Place], local: Sequence[Local]) -> None:
        """Divide results in the rows that write them, or in additional rows; see liveness.due."""
        read = {op.src for op in local}
        for place in places:
            row = self.wrote.get(place)
            if self.early and (row is None or len(self.finish[row][2]) == 2):
                continue  # received, or copied after it was received: already divided by its sender
            if row is not None and (self.early or place not in read):
                self.finish[row] = (REDUCE_SCALE, *self.finish[row][1:])
            else:
                here = segment(self.homes[place])
                self.finish.append((REDUCE_SCALE, 0, [here, here], -1))
