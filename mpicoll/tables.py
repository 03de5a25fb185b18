"""The proof of lowered plans: all ranks' tables run on symbolic memory.

Every element carries its identity and the contributions in it. Lanes of all ranks run in a shuffled
order with rendezvous sends, matched by (source, destination, tag) as MPI does, so that a wrong offset,
segment, tag, lane or scratch reuse ends as a wrong element, a fold of different elements or a deadlock.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from . import blocks as parts
from . import plan as plans
from .errors import VerifyError
from .plan import FOLD, OUT, RECV, SCRATCH, SEND, Plan
from .schedule import Schedule

Cells = tuple[np.ndarray, np.ndarray, np.ndarray]  # identity, then (mask, 0) or (first, end) of the contributions


@dataclass(frozen=True)
class Case:
    """One way to call a collective: counts in elements, bytes per element, chunking."""

    counts: int | tuple[int, ...]
    itemsize: int
    chunk_bytes: int | None
    window: int


def cases(schedule: Schedule) -> Iterator[Case]:
    """Counts and chunkings a schedule's tables are proved on: many for small p, one for each large p."""
    p, naming = schedule.p, schedule.collective.naming
    if naming == "none":
        yield Case(0, 1, None, 4)
        return
    k = max(1, len(schedule.blocks)) if naming == "vector" else 1
    if p > 16:
        if schedule.root in (0, p // 2):
            yield Case(2 * k + 1, 1, 2, 2) if p % 2 else Case(k + 1, 1, None, 4)
        return
    yield Case(0, 1, None, 4)
    yield Case(1, 3, None, 4)
    yield Case(k + 1, 2, None, 4)
    yield Case(5 * k + 2, 2, 4, 2)
    if schedule.collective.name == "reduce_scatter":
        yield Case(tuple((3 * r) % 5 for r in range(p)), 1, None, 4)
        yield Case(tuple((3 * r) % 7 for r in range(p)), 1, 2, 2)


def check_tables(schedule: Schedule) -> None:
    """Prove the plans of all ranks for the standing cases, in place and not. Raises VerifyError."""
    for case in cases(schedule):
        for in_place in in_place_forms(schedule):
            run(schedule, case, in_place)


def check_scratch(schedule: Schedule) -> None:
    """The most scratch any rank's plan takes must be the docstring's formula. Raises VerifyError."""
    p, naming = schedule.p, schedule.collective.naming
    k = len(schedule.blocks) if naming == "vector" else p
    block = plans.ALIGN
    case = Case({"vector": block * k, "none": 0}.get(naming, block), 1, None, 4)
    got = max(plan.scratch_bytes for plan in lower_all(schedule, case, schedule.collective.name == "bcast"))
    claims = schedule.algorithm.claims
    claimed = claims.evaluate(claims.scratch, p, block * k)
    if claimed != got:
        raise VerifyError(
            algorithm=schedule.title,
            p=p,
            op="the docstring's Scratch",
            expected=f"{claims.scratch} = {claimed} for n = {block * k}",
            got=f"{got} bytes",
        )


def in_place_forms(schedule: Schedule) -> tuple[bool, ...]:
    """The placements a collective's plans come in; where the result would lie across the input, it is staged."""
    match schedule.collective.name:
        case "bcast":
            return (True,)
        case "barrier" | "reduce_scatter" | "alltoall":
            return (False,)
    return (False, True)


def lower_all(schedule: Schedule, case: Case, in_place: bool) -> list[Plan]:
    """Every rank's plan."""
    return [
        plans.lower(
            schedule,
            r,
            case.counts,
            case.itemsize,
            in_place=in_place and _is_in_place_rank(schedule, r),
            chunk_bytes=case.chunk_bytes,
            window=case.window,
        )
        for r in range(schedule.p)
    ]


def _is_in_place_rank(schedule: Schedule, rank: int) -> bool:
    """MPI.IN_PLACE is the root's alone in rooted collectives other than bcast."""
    return not schedule.collective.rooted or schedule.collective.name == "bcast" or rank == schedule.root


def run(schedule: Schedule, case: Case, in_place: bool, lowered: list[Plan] | None = None) -> None:
    """Run one case on symbolic memory. Raises VerifyError."""
    _Machine(schedule, case, in_place, lowered or lower_all(schedule, case, in_place)).run()


class _Lane:
    """A (rank, strand, slot) working through its lanes."""

    __slots__ = ("lane", "pending", "plan", "rank", "slot", "step", "strand")

    def __init__(self, rank: int, strand: int, slot: int, plan: Plan) -> None:
        self.rank, self.strand, self.slot, self.plan = rank, strand, slot, plan
        self.lane, self.pending, self.step = slot, 0, int(plan.strands[strand, 0])


class _Machine:
    def __init__(self, schedule: Schedule, case: Case, in_place: bool, lowered: list[Plan]) -> None:
        self.schedule, self.case, self.in_place, self.plans = schedule, case, in_place, lowered
        self.ordered = schedule.collective.reduces and not schedule.commutative
        self.layouts = [
            plans.layout(schedule, case.counts, case.itemsize, in_place and _is_in_place_rank(schedule, r))
            for r in range(schedule.p)
        ]
        self.memory = [self._memory(r) for r in range(schedule.p)]
        self.sends: dict[tuple[int, int, int], deque] = defaultdict(deque)
        self.receives: dict[tuple[int, int, int], deque] = defaultdict(deque)
        self.lanes = [
            _Lane(r, s, slot, plan)
            for r, plan in enumerate(lowered)
            for s in range(len(plan.strands))
            for slot in range(plan.window)
        ]
        random.Random(schedule.p).shuffle(self.lanes)

    # -- memory -----------------------------------------------------------------------------------------

    def _identity(self, block: object) -> np.ndarray:
        """Numbers that name the elements of a block, the same on every rank and different between blocks."""
        place = (
            self.schedule.blocks.index(block)
            if self.schedule.collective.naming != "pair"
            else block[0] * self.schedule.p + block[1]
        )  # type: ignore[index]
        return (place << 32) + np.arange(self.layouts[0].size(block), dtype=np.int64)  # type: ignore[arg-type]

    def _contribution(self, rank: int, n: int) -> tuple[np.ndarray, np.ndarray]:
        if self.ordered:
            return np.full(n, rank, np.uint64), np.full(n, rank + 1, np.uint64)
        return np.full(n, 1 << rank, np.uint64), np.zeros(n, np.uint64)

    def _memory(self, rank: int) -> list[Cells]:
        memory = [
            _empty(self.layouts[rank].total),
            _empty(self.layouts[rank].total),
            _empty(self.plans[rank].scratch_bytes),
        ]
        where = self.layouts[rank]
        home = OUT if where.in_place and self.schedule.collective.name != "scatter" else 0
        for block in self.schedule.starts(rank):
            at = where.output_at(block) if home == OUT else where.input_at(block)
            cells = (self._identity(block), *self._contribution(rank, where.size(block)))
            for array, values in zip(memory[home], cells, strict=True):
                array[at : at + len(values)] = values
        return memory

    # -- running ----------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until every lane is done; then look at what every rank holds."""
        self.ready = deque(self.lanes)
        self.idle: set[int] = set()
        started: set[int] = set()
        while self.ready:
            lane = self.ready.popleft()
            while self._alive(lane) and not lane.pending:
                if id(lane) in started:
                    self._finish(lane)
                    started.discard(id(lane))
                    lane.step += 1
                    if lane.step == lane.plan.strands[lane.strand, 1]:
                        lane.lane += lane.plan.window
                        lane.step = int(lane.plan.strands[lane.strand, 0])
                else:
                    if lane.plan.strands[lane.strand, 0] == lane.plan.strands[lane.strand, 1]:
                        lane.lane = lane.plan.lanes
                        break
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
            algorithm=s.title,
            p=s.p,
            rank=lane.rank if lane else rank,
            strand=lane.strand if lane else None,
            step=lane.step if lane else None,
            op=f"lowered table, {self.case}, in_place={self.in_place}" + (f", lane {lane.lane}" if lane else ""),
            expected=expected,
            got=got,
        )

    def _pieces(self, lane: _Lane, first: int, end: int) -> list[tuple[int, int, int]]:
        """(base, address, length) of segments in this lane."""
        plan = lane.plan
        return [
            (
                int(base),
                int(offset + (lane.slot * plan.lane_scratch if base == SCRATCH else lane.lane * plan.slice)),
                parts.chunk_length(int(length), plan.slice, lane.lane),
            )
            for base, offset, length in plan.segments[first:end]
        ]

    def _take(self, lane: _Lane, pieces: list[tuple[int, int, int]]) -> Cells:
        found = [tuple(array[a : a + n].copy() for array in self.memory[lane.rank][base]) for base, a, n in pieces]
        cells = tuple(np.concatenate(x) for x in zip(*found, strict=True)) if found else _empty(0)
        if (cells[0] < 0).any() or len(cells[0]) != sum(n for _, _, n in pieces):
            self._fail(lane, "to read what was written", f"memory never written or out of bounds in {pieces}")
        return cells  # type: ignore[return-value]

    def _put(self, lane: _Lane, pieces: list[tuple[int, int, int]], cells: Cells) -> None:
        at = 0
        for base, a, n in pieces:
            for array, values in zip(self.memory[lane.rank][base], cells, strict=True):
                if len(array[a : a + n]) != n:
                    self._fail(lane, "to write inside the buffer", f"bytes {a}..{a + n} of {len(array)}")
                array[a : a + n] = values[at : at + n]
            at += n

    def _post(self, lane: _Lane) -> None:
        plan = lane.plan
        first, posts, _ = (int(x) for x in plan.steps[lane.step])
        for kind, peer, a, b, stage in plan.rows[first:posts].tolist():
            pieces = self._pieces(lane, a, b)
            total = sum(n for _, _, n in pieces)
            if kind == FOLD:
                self._local(lane, pieces)
                continue
            if b > a and not total:
                continue
            if stage >= 0:
                staged = [(SCRATCH, stage + lane.slot * plan.lane_scratch, total)]
                if kind == SEND:
                    self._put(lane, staged, self._take(lane, pieces))
                pieces = staged
            lane.pending += 1
            tag = plans.tag(0, lane.strand, lane.slot)
            key = (lane.rank, peer, tag) if kind == SEND else (peer, lane.rank, tag)
            (self.sends if kind == SEND else self.receives)[key].append((lane, pieces))
            self._match(key)
        if not lane.pending:
            self.ready.append(lane)

    def _match(self, key: tuple[int, int, int]) -> None:
        """Both sides are there: read what the sender's memory holds now, not when it posted."""
        sends, receives = self.sends[key], self.receives[key]
        while sends and receives:
            (sender, source), (receiver, target) = sends.popleft(), receives.popleft()
            cells = self._take(sender, source)
            if len(cells[0]) != sum(n for _, _, n in target):
                self._fail(
                    receiver, f"{sum(n for _, _, n in target)} bytes from rank {key[0]}", f"{len(cells[0])} bytes"
                )
            self._put(receiver, target, cells)
            for lane in (sender, receiver):
                lane.pending -= 1
                if not lane.pending:
                    self.ready.append(lane)

    def _finish(self, lane: _Lane) -> None:
        first, posts, end = (int(x) for x in lane.plan.steps[lane.step])
        for kind, _, a, b, stage in lane.plan.rows[first:posts].tolist():
            if kind == RECV and stage >= 0:
                pieces = self._pieces(lane, a, b)
                total = sum(n for _, _, n in pieces)
                self._put(
                    lane, pieces, self._take(lane, [(SCRATCH, stage + lane.slot * lane.plan.lane_scratch, total)])
                )
        for kind, _, a, b, _ in lane.plan.rows[posts:end].tolist():
            if kind in (SEND, RECV):
                self._fail(lane, "local rows after the messages", "a message")
            self._local(lane, self._pieces(lane, a, b))

    def _local(self, lane: _Lane, pieces: list[tuple[int, int, int]]) -> None:
        if not pieces[0][2]:
            return
        result = self._take(lane, pieces[1:2])
        for piece in pieces[2:]:
            right = self._take(lane, [piece])
            if (result[0] != right[0]).any():
                self._fail(lane, "to fold an element with itself", f"different elements in {pieces}")
            clash = (result[2] != right[1]) if self.ordered else (result[1] & right[1]) != 0
            if clash.any():
                self._fail(lane, "each contribution once, in order", f"not so in {pieces}")
            result = (result[0], result[1], right[2]) if self.ordered else (result[0], result[1] | right[1], result[2])
        self._put(lane, pieces[:1], result)

    def _check_result(self) -> None:
        s = self.schedule
        for rank in range(s.p):
            where = self.layouts[rank]
            for block in s.ends(rank):
                if where.in_place and s.collective.name == "scatter":
                    continue
                n, at = where.size(block), where.output_at(block)
                got = [array[at : at + n] for array in self.memory[rank][OUT]]
                expected = self._expected(block, n)
                if any((g != e).any() for g, e in zip(got, expected, strict=True)):
                    self._fail(None, f"block {block} whole", "wrong elements or contributions", rank)

    def _expected(self, block: object, n: int) -> Cells:
        s = self.schedule
        if not s.collective.reduces:
            return (self._identity(block), *self._contribution(s.collective.source(block, s.root), n))
        if self.ordered:
            return self._identity(block), np.zeros(n, np.uint64), np.full(n, s.p, np.uint64)
        return self._identity(block), np.full(n, (1 << s.p) - 1, np.uint64), np.zeros(n, np.uint64)


def _empty(n: int) -> Cells:
    return np.full(n, -1, np.int64), np.zeros(n, np.uint64), np.zeros(n, np.uint64)
