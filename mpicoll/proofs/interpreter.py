"""Execute the lowered tables of all ranks on symbolic memory.

Every element carries its identity and the contributions in it. Lanes of all ranks run in a shuffled order with
rendezvous sends, matched by (source, destination, tag) as in MPI. A wrong offset, segment, tag, lane or scratch reuse
therefore shows as a wrong element, a reduction of different elements or a deadlock.

In plans of averages an element is divided once, when it holds every contribution. It is never reduced after that, since
each contribution is in it once.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import NoReturn

from ..errors import VerifyError
from ..plans import plan as plans
from ..plans.plan import CODED, IN, OUT, RECV, REDUCE, REDUCE_SCALE, SCRATCH, SEND, Plan
from ..schedules import blocks as parts
from ..schedules.collectives import Block, everywhere
from ..schedules.schedule import Schedule
from .cases import Case, Spread
from .encodings import encodings_of
from .values import Interval, mask

# identity of an element, then (mask, DIVIDED + DECODED) or (first, end) of the contributions in it
Cell = tuple[int, int, int]
# decoded elements are equal on all ranks that have their codes; a rounded sum is not reduced again
DIVIDED, DECODED, ROUNDED = 1, 2, 4
Pieces = list[tuple[int, int, int]]  # (base, address, length)
_Message = tuple[int, int, int]  # (source, destination, tag)


def is_in_place_rank(schedule: Schedule, rank: int) -> bool:
    """Return whether a rank may pass MPI.IN_PLACE: in rooted collectives other than bcast only the root may."""
    return not schedule.collective.rooted or schedule.collective.name == "bcast" or rank == schedule.root


class _Lane:
    """The state of one (rank, strand, slot), which runs its lanes one after the other."""

    __slots__ = ("end", "first", "lane", "pending", "plan", "rank", "slot", "step", "strand")

    def __init__(self, rank: int, strand: int, slot: int, plan: Plan) -> None:
        self.rank, self.strand, self.slot, self.plan = rank, strand, slot, plan
        self.first, self.end = plan.strands[strand].tolist()
        self.lane, self.pending, self.step = slot, 0, self.first


class Machine:
    """All ranks' memory, one cell per byte (None: never written), and the lanes that run on it."""

    def __init__(self, schedule: Schedule, case: Case, in_place: bool, lowered: list[Plan]) -> None:
        self.schedule, self.case, self.in_place, self.plans = schedule, case, in_place, lowered
        self.encodings = encodings_of(schedule) if schedule.codec is not None else None
        self.ordered = schedule.collective.reduces and not schedule.commutative and not case.averaged
        self.layouts = [
            plans.layout(schedule, case.of(schedule, r), case.itemsize, in_place and is_in_place_rank(schedule, r), r)
            for r in range(schedule.p)
        ]
        spread = case.counts if isinstance(case.counts, Spread) else None
        self.size = spread.of_blocks(schedule).__getitem__ if spread else self.layouts[0].size
        self.segments: list[Pieces] = [[tuple(x) for x in plan.segments.tolist()] for plan in lowered]
        self.slices = [(plan.slice, plan.slice, plan.slice, plan.code_slice) for plan in lowered]  # by base
        self.rows = [plan.rows.tolist() for plan in lowered]
        self.steps = [plan.steps.tolist() for plan in lowered]
        self.places = {schedule.collective.content(block): i for i, block in enumerate(schedule.blocks)}
        self.memory = [self._memory(r) for r in range(schedule.p)]
        self.known = [1 << r for r in range(schedule.p)]  # the ranks each rank has heard from, as a bit mask
        self.sends: dict[_Message, deque[tuple[_Lane, Pieces, list[Cell], int]]] = defaultdict(deque)
        self.receives: dict[_Message, deque[tuple[_Lane, Pieces]]] = defaultdict(deque)
        self.lanes = [
            _Lane(r, s, slot, plan)
            for r, plan in enumerate(lowered)
            for s in range(len(plan.strands))
            for slot in range(plan.window)
        ]
        random.Random(schedule.p).shuffle(self.lanes)

    # -- memory -----------------------------------------------------------------------------------------

    def _cells(self, block: Block, first: int, second: int) -> list[Cell]:
        """Return a block's elements, named the same on every rank and differently in blocks that hold others."""
        start = self.places[self.schedule.collective.content(block)] << 32
        return [(start + i, first, second) for i in range(self.size(block))]

    def _contribution(self, block: Block, rank: int) -> list[Cell]:
        """Return a block as one rank contributes it."""
        return self._cells(block, rank, rank + 1) if self.ordered else self._cells(block, 1 << rank, 0)

    def _memory(self, rank: int) -> list[list[Cell | None]]:
        where, s = self.layouts[rank], self.schedule
        home, at = (OUT, where.output_at) if where.in_place and s.collective.name != "scatter" else (IN, where.input_at)
        starts = {block: at(block) for block in s.starts(rank)}
        ends = {block: where.output_at(block) for block in s.ends(rank)}
        sizes = [0, 0, self.plans[rank].scratch_bytes]  # no byte more than its blocks need
        for base, places in ((home, starts), (OUT, ends)):
            sizes[base] = max([sizes[base], *(x + where.size(block) for block, x in places.items())])
        memory: list[list[Cell | None]] = [[None] * n for n in sizes]
        memory.append(memory[SCRATCH])  # what is CODED
        for block, x in starts.items():
            memory[home][x : x + where.size(block)] = self._contribution(block, rank)
        return memory

    # -- running ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until every lane is done, then check the result of every rank."""
        self.ready = deque(self.lanes)
        started: set[int] = set()
        while self.ready:
            lane = self.ready.popleft()
            while self._alive(lane) and not lane.pending:
                if id(lane) in started:
                    self._finish(lane)
                    started.discard(id(lane))
                    lane.step += 1
                    if lane.step == lane.end:
                        lane.lane += lane.plan.window
                        lane.step = lane.first
                elif lane.first == lane.end:
                    lane.lane = lane.plan.lanes
                else:
                    started.add(id(lane))
                    self._post(lane)
        for lane in self.lanes:
            if self._alive(lane):
                self._fail(lane, "every message matched", "deadlock")
        self._check_result()

    def _alive(self, lane: _Lane) -> bool:
        return lane.lane < lane.plan.lanes

    def _fail(self, lane: _Lane | None, expected: str, got: str, rank: int | None = None) -> NoReturn:
        s = self.schedule
        raise VerifyError(
            algorithm=s.title, p=s.p, rank=lane.rank if lane else rank,
            strand=lane.strand if lane else None, step=lane.step if lane else None,
            op=f"lowered table, {self.case}, in_place={self.in_place}" + (f", lane {lane.lane}" if lane else ""),
            expected=expected, got=got,
        )  # fmt: skip

    def _pieces(self, lane: _Lane, first: int, end: int) -> Pieces:
        """Segments at their positions in this lane."""
        segments, plan = self.segments[lane.rank][first:end], lane.plan
        if plan.lanes == 1:
            return segments
        scratch, onward = lane.slot * plan.lane_scratch, lane.lane * plan.slice
        slices = self.slices[lane.rank]
        return [
            (
                base,
                offset + (scratch if base >= SCRATCH else onward),
                parts.chunk_length(length, slices[base], lane.lane),
            )
            for base, offset, length in segments
        ]

    def _plain(self, lane: _Lane, piece: tuple[int, int, int]) -> list[Cell]:
        """Return what a piece holds, decoded."""
        cells, size = self._take(lane, [piece]), self.case.itemsize
        if piece[0] != CODED:
            return cells
        if self.case.float32_sums:
            if cells[::2] != cells[1::2]:
                self._fail(lane, "partial sums where they are read as such", f"otherwise in {piece}")
            return cells[::2]
        return [(first + i, second, mark | DECODED) for first, second, mark in cells for i in range(size)]

    def _take(self, lane: _Lane, pieces: Pieces) -> list[Cell]:
        memory, out = self.memory[lane.rank], []
        for base, at, n in pieces:
            cells = memory[base][at : at + n]
            if len(cells) != n or at < 0 or None in cells:
                self._fail(lane, "to read what was written", f"memory never written or out of bounds in {pieces}")
            out += cells
        return out  # type: ignore[return-value]

    def _put(self, lane: _Lane, pieces: Pieces, cells: Sequence[Cell | None]) -> None:
        done = 0
        for base, at, n in pieces:
            memory = self.memory[lane.rank][base]
            if not 0 <= at <= at + n <= len(memory):
                self._fail(lane, "to write inside the buffer", f"bytes {at}..{at + n} of {len(memory)}")
            memory[at : at + n] = cells[done : done + n]
            done += n

    def _post(self, lane: _Lane) -> None:
        plan = lane.plan
        first, posts, _ = self.steps[lane.rank][lane.step]
        tag = plans.tag(0, lane.strand, lane.slot)
        keys = []
        for kind, peer, a, b, stage in self.rows[lane.rank][first:posts]:
            pieces = self._pieces(lane, a, b)
            if kind == REDUCE:
                self._local(lane, pieces, False)
                continue
            total = _length(pieces)
            if b > a and not total:
                continue
            if stage >= 0:
                staged = [(SCRATCH, stage + lane.slot * plan.lane_scratch, total)]
                if kind == SEND:
                    self._put(lane, staged, self._take(lane, pieces))
                pieces = staged
            lane.pending += 1
            if kind == SEND:
                keys.append((lane.rank, peer, tag))
                self.sends[keys[-1]].append((lane, pieces, self._take(lane, pieces), self.known[lane.rank]))
            else:
                keys.append((peer, lane.rank, tag))
                self.receives[keys[-1]].append((lane, pieces))
                self._put(lane, pieces, [None] * total)  # no row may read it before it arrives
        for key in keys:
            self._match(key)
        if not lane.pending:
            self.ready.append(lane)

    def _match(self, key: tuple[int, int, int]) -> None:
        """Complete a message whose sides are both there. The sender's memory may be read from its post until now."""
        sends, receives = self.sends[key], self.receives[key]
        while sends and receives:
            (sender, source, posted, known), (receiver, target) = sends.popleft(), receives.popleft()
            self.known[receiver.rank] |= known
            cells = self._take(sender, source)
            if cells != posted:
                self._fail(sender, "what is sent to stay as it is", f"something else written to {source}")
            if len(cells) != _length(target):
                self._fail(receiver, f"{_length(target)} bytes from rank {key[0]}", f"{len(cells)} bytes")
            self._put(receiver, target, cells)
            for lane in (sender, receiver):
                lane.pending -= 1
                if not lane.pending:
                    self.ready.append(lane)

    def _finish(self, lane: _Lane) -> None:
        first, posts, end = self.steps[lane.rank][lane.step]
        rows = self.rows[lane.rank]
        for kind, _, a, b, stage in rows[first:posts]:
            if kind == RECV and stage >= 0:
                pieces = self._pieces(lane, a, b)
                staged = [(SCRATCH, stage + lane.slot * lane.plan.lane_scratch, _length(pieces))]
                self._put(lane, pieces, self._take(lane, staged))
        for kind, _, a, b, _ in rows[posts:end]:
            if kind in (SEND, RECV):
                self._fail(lane, "local rows after the messages", "a message")
            self._local(lane, self._pieces(lane, a, b), kind == REDUCE_SCALE)

    def _local(self, lane: _Lane, pieces: Pieces, divides: bool) -> None:
        if not pieces[0][2]:
            return
        result = self._plain(lane, pieces[1])
        for piece in pieces[2:]:
            right = self._plain(lane, piece)
            if len(right) != len(result) or any(x[0] != y[0] for x, y in zip(result, right)):
                self._fail(lane, "to reduce an element with itself", f"different elements in {pieces}")
            result = self._combined(lane, pieces, result, right)
        if divides:
            result = self._divided(lane, pieces, result)
        if self.case.float32_sums:
            result = self._rounded(lane, pieces, result)
        elif pieces[0][0] == CODED:
            result = result[:: self.case.itemsize]
        if len(result) != pieces[0][2]:
            self._fail(lane, f"a result of {pieces[0][2]} bytes", f"{len(result)} bytes in {pieces}")
        self._put(lane, pieces[:1], result)

    def _rounded(self, lane: _Lane, pieces: Pieces, cells: list[Cell]) -> list[Cell]:
        """Return the cells to write: float32 sums as they are, and sums rounded where elements are written."""
        if pieces[0][0] == CODED:
            return [cell for cell in cells for _ in range(2)]
        is_sum = len(pieces) > 2 or pieces[1][0] == CODED
        return [(x[0], x[1], x[2] | ROUNDED) for x in cells] if is_sum else cells

    def _combined(self, lane: _Lane, pieces: Pieces, left: list[Cell], right: list[Cell]) -> list[Cell]:
        """Return left∘right, element by element."""
        if any(x[2] != y[1] if self.ordered else x[1] & y[1] for x, y in zip(left, right)):
            self._fail(lane, "each contribution once, in order", f"not so in {pieces}")
        if self.ordered:
            return [(x[0], x[1], y[2]) for x, y in zip(left, right)]
        if self.case.float32_sums and any((x[2] | y[2]) & ROUNDED for x, y in zip(left, right)):
            self._fail(lane, "partial sums that were not rounded", f"rounded ones in {pieces}")
        return [(x[0], x[1] | y[1], 0) for x, y in zip(left, right)]

    def _divided(self, lane: _Lane, pieces: Pieces, cells: list[Cell]) -> list[Cell]:
        whole = (1 << self.schedule.p) - 1
        if self.ordered or any(x[1] != whole or x[2] & DIVIDED for x in cells):
            self._fail(lane, "to divide once, when all contributions are in", f"not so in {pieces}")
        return [(x[0], x[1], x[2] | DIVIDED) for x in cells]

    def _marks(self, rank: int, block: Block) -> int:
        """Return the marks that a result must have: divided, decoded, rounded."""
        s = self.schedule
        rounded = ROUNDED * (self.case.float32_sums and s.collective.reduces and len(self._covered(rank)) > 1)
        return DIVIDED * (self.case.averaged and s.p > 1) + DECODED * self._is_decoded(rank, block) + rounded

    def _covered(self, rank: int) -> range:
        """Return whose contributions a rank's result holds."""
        return range(*self.schedule.collective.covers(self.schedule.p, rank))

    def _check_result(self) -> None:
        s = self.schedule
        for rank in range(s.p):
            where = self.layouts[rank]
            if s.collective.naming == "none" and self.known[rank] != (1 << s.p) - 1:
                self._fail(None, "every rank to have heard of every other", "not so", rank)
            if where.in_place and s.collective.name == "scatter":
                continue
            output = self.memory[rank][OUT]
            for block in s.ends(rank):
                at = where.output_at(block)
                if output[at : at + where.size(block)] != self._expected(rank, block):
                    self._fail(None, f"block {block} whole", "wrong elements or contributions", rank)
                output[at : at + where.size(block)] = [None] * where.size(block)
            if any(output) and isinstance(self.case.counts, Spread):
                self._fail(None, "nothing written between the blocks", "otherwise", rank)

    def _is_decoded(self, rank: int, block: Block) -> bool:
        """Return whether a result must be decoded: every contribution to it was encoded at least once.

        A sum that only one rank ends with is exempt, since no other rank has to have the same bits.
        """
        what = self.schedule.collective
        if self.encodings is None or (what.reduces and what.ends is not everywhere):
            return False
        return min(times for _, times in self.encodings.of(rank, block)) > 0

    def _expected(self, rank: int, block: Block) -> list[Cell]:
        s = self.schedule
        if not s.collective.reduces:
            source = self._contribution(block, s.source(block))
            return [(x[0], x[1], x[2] | self._marks(rank, block)) for x in source]
        covered = Interval(*s.collective.covers(s.p, rank))
        if self.ordered:
            return self._cells(block, *covered)
        return self._cells(block, mask(covered), self._marks(rank, block))


def _length(pieces: Pieces) -> int:
    return sum([n for _, _, n in pieces])
