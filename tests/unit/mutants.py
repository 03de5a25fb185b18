"""Broken schedules and broken tables, one change each: what the proofs must catch."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from mpicoll.errors import VerifyError
from mpicoll.plans.plan import ALIGN, CODED, OUT, RECV, REDUCE, REDUCE_SCALE, SCRATCH, SEND, Plan
from mpicoll.proofs.check_plan import Case, check_tables, in_place_forms, lower_all, run
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.symbolic import execute
from mpicoll.proofs.values import Interval, combine
from mpicoll.proofs.wellformed import faults, messages  # noqa: F401 - for the tests
from mpicoll.schedules.claims import Claims
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.ir import VALUE, Copy, Local, Op, Recv, RecvReduce, Send, Step, Strands
from mpicoll.schedules.registry import Algorithm
from mpicoll.schedules.schedule import Schedule

COLUMNS = {
    "rows": ("kind", "peer", "first segment", "end segment", "stage"),
    "segments": ("base", "offset", "length"),
    "steps": ("first row", "end of posts", "end row"),
    "strands": ("first step", "end step"),
}

Body = Callable[..., Any]
UNBOUNDED = "at most 1000000 * (n + 1)"
NOTHING = Claims("An idea.", UNBOUNDED, UNBOUNDED, UNBOUNDED, "", "")  # that could be wrong


def documented(body: Body) -> Body:
    """Return the function with a docstring whose claims cannot be wrong."""
    bounds = "\n".join(f"{what}: {UNBOUNDED}" for what in ("Steps", "Bytes per rank", "Scratch"))
    body.__doc__ = f"An idea.\n\n{bounds}\nCost: none to speak of\nSource: a test"
    return body


def adhoc(
    collective: str, body: Body, p: int, root: int = 0, *, blocks: int = 1, in_order: bool = False, **declared: Any
) -> Schedule:
    """Return the schedule of a function of (p, rank) that is not registered and whose claims cannot be wrong."""
    entry = Algorithm(
        COLLECTIVES[collective],
        getattr(body, "__name__", "adhoc"),
        lambda p, rank: body(p, rank),
        NOTHING,
        share=lambda p: blocks,
        **declared,
    )
    return Schedule(entry, p, root, commutative=not in_order)


def of_ranks(collective: str, *programs: Sequence[Op | Step], **declared: Any) -> Schedule:
    """Return the schedule of one program for every rank."""
    return adhoc(collective, lambda p, rank: programs[rank], len(programs), **declared)


def holds(schedule: Schedule) -> None:
    """Prove a schedule and its tables."""
    verify(schedule)
    check_tables(schedule)


def refused(schedule: Schedule, match: str | None = None) -> VerifyError:
    """Return the error of a schedule that must not pass."""
    with pytest.raises(VerifyError, match=match) as error:
        verify(schedule)
    assert (error.value.algorithm, error.value.p) == (schedule.title, schedule.p)
    return error.value


def refused_tables(right: Schedule, case: Case, change: Callable[[int, Plan], Plan]) -> VerifyError:
    """Return the error of all ranks' plans, of which change(rank, plan) changed some."""
    in_place = in_place_forms(right)[0]
    plans = [change(rank, plan) for rank, plan in enumerate(lower_all(right, case, in_place))]
    with pytest.raises(VerifyError) as error:
        run(right, case, in_place, plans)
    assert (error.value.algorithm, error.value.p) == (right.title, right.p)
    return error.value


def at_rank(entry: Algorithm, rank: int, change: Callable[[Strands], Strands]) -> Algorithm:
    """Return the algorithm, which is not layered, with one rank's program changed."""

    def body(p: int, own: int, **resolved: Any) -> Strands:
        program = entry.make(p, resolved)(own)
        return change(program) if own == rank else program

    return replace(entry, body=body)


class Changed(Schedule):
    """A schedule with one rank's program changed, whatever it was made of."""

    def __init__(self, right: Schedule, rank: int, program: Strands) -> None:
        self.__dict__.update(right.__dict__)
        self.program = lambda r: program if r == rank else right.program(r)  # type: ignore[method-assign]


class Place(NamedTuple):
    """The position of one operation in a rank's program."""

    strand: int
    step: int
    op: int


def put(program: Strands, at: Place, ops: Step) -> Strands:
    """Return the program with one operation replaced by others (or none)."""
    step = program[at.strand][at.step]
    steps = list(program[at.strand])
    steps[at.step] = step[: at.op] + ops + step[at.op + 1 :]
    return Strands(tuple(steps) if s == at.strand else strand for s, strand in enumerate(program))


def operations(program: Strands) -> Iterator[tuple[Place, Op]]:
    """Yield every operation and its place."""
    for s, strand in enumerate(program):
        for i, step in enumerate(strand):
            for k, op in enumerate(step):
                yield Place(s, i, k), op


def replacements(op: Op, p: int, blocks: tuple[Any, ...]) -> Iterator[tuple[str, Step]]:
    """Yield wrong replacements of one operation."""
    yield "dropped", ()
    if not isinstance(op, Copy):                                            # which does the same again
        yield "doubled", (op, op)
    if isinstance(op, Local):
        yield "source and destination swapped", (op._replace(src=op.dst, dst=op.src),)
        return
    yield "no peer", (op._replace(peer=-1),)
    yield "the next peer", (op._replace(peer=(op.peer + 1) % p),)
    yield "a peer out of range", (op._replace(peer=p),)
    if op.blocks:
        turned = {b: blocks[(i + 1) % len(blocks)] for i, b in enumerate(blocks)}
        yield "the blocks after", (op._replace(blocks=tuple(turned[b] for b in op.blocks)),)
        yield "a block too few", (op._replace(blocks=op.blocks[1:]),)
        yield "a block twice", (op._replace(blocks=op.blocks + op.blocks[:1]),)
        yield "another buffer", (op._replace(buffer="elsewhere"),)
    if len(op.blocks) > 1:
        yield "the blocks in another order", (op._replace(blocks=op.blocks[::-1]),)
    if isinstance(op, Recv) and op.blocks:
        yield "reduced", (RecvReduce(op.peer, op.blocks),)
    if isinstance(op, RecvReduce):
        yield "not reduced", (Recv(op.peer, op.blocks),)
        yield "on the other side", (op._replace(side="left" if op.side == "right" else "right"),)
    yield "the other way", (Recv(*op[:2]) if isinstance(op, Send) else Send(*op[:2]),)


def op_mutants(right: Schedule, rank: int) -> Iterator[tuple[str, Schedule, int, Place]]:
    """Yield the schedule with one operation of one rank's program changed, in every way that makes a difference."""
    program = right.program(rank)
    for place, op in operations(program):
        for what, ops in replacements(op, right.p, right.blocks):
            if ops == (op,) or (right.commutative and what == "on the other side"):
                continue
            title = f"{right.title} on p={right.p}: {op} of rank {rank}, {place}: {what}"
            yield title, Changed(right, rank, put(program, place, ops)), rank, place


def changed(plan: Plan, table: str, at: tuple[int, ...], value: int) -> Plan:
    """Return the plan with one number of a table changed, in a copy."""
    array = getattr(plan, table).copy()
    array[at] = value
    return replace(plan, **{table: array})


def other_values(plan: Plan, table: str, row: int, column: str) -> tuple[int, ...]:
    """Yield wrong values of one number of a table, none if no code reads it."""
    old = int(getattr(plan, table)[row, COLUMNS[table].index(column)])
    if column == "kind":
        return tuple(kind for kind in (SEND, RECV, REDUCE, REDUCE_SCALE) if kind != old)
    if column == "base":
        return (old + 1) % 3, (old + 2) % 3
    if table == "rows":
        kind, _, first, end, stage = plan.rows[row].tolist()
        if (column == "peer" and kind in (REDUCE, REDUCE_SCALE)) or (first == end and column != "peer"):
            return ()
        if column == "stage":
            return (-1, plan.lane_scratch) if stage >= 0 else ()
    by = plan.itemsize if table == "segments" else 1
    return old - by, old + by


def number_mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield the plan with one number of one table changed."""
    for table, columns in COLUMNS.items():
        for row, column in itertools.product(range(len(getattr(plan, table))), columns):
            at = (row, columns.index(column))
            for new in other_values(plan, table, row, column):
                old = int(getattr(plan, table)[at])
                yield f"{table}[{row}] {column} {old} -> {new}", changed(plan, table, at, new)


def field_mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield the plan with one of its plain numbers changed."""
    yield "room for a message less", replace(plan, most_messages=plan.most_messages - 1)
    if plan.lanes > 1:
        yield "a chunk dropped", replace(plan, lanes=plan.lanes - 1)
        yield "slices a byte longer", replace(plan, slice=plan.slice + 1)
        yield "slices a byte shorter", replace(plan, slice=plan.slice - 1)
    if plan.window > 1:
        yield "a slot fewer", replace(plan, window=plan.window - 1)
        yield "a slot more", replace(plan, window=plan.window + 1)
        if plan.lane_scratch:
            yield "lanes share their scratch", replace(plan, lane_scratch=0)
    if plan.lane_scratch:
        yield "less scratch", replace(plan, lane_scratch=plan.lane_scratch - ALIGN)


def order_mutants(plan: Plan, commutative: bool) -> Iterator[tuple[str, Plan]]:
    """Yield the plan with two neighbours of a row swapped: pieces of a message, operands where order matters."""
    for r, (kind, _, first, end, _) in enumerate(plan.rows.tolist()):
        local = kind in (REDUCE, REDUCE_SCALE)
        if local and commutative:
            continue
        for a, b in itertools.pairwise(range(first + local, end)):
            segments = plan.segments.copy()
            segments[[a, b]] = segments[[b, a]]
            yield f"rows[{r}] segments {a} and {b} swapped", replace(plan, segments=segments)


def row_mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """Yield the plan with one row left out."""
    for dropped in range(len(plan.rows)):
        rows = np.delete(plan.rows, dropped, axis=0)
        steps = plan.steps - (plan.steps > dropped)
        yield f"rows[{dropped}] dropped", replace(plan, rows=rows, steps=steps)


def table_mutants(plan: Plan, commutative: bool) -> Iterator[tuple[str, Plan]]:
    """Return every single change of a plan."""
    return itertools.chain(
        number_mutants(plan), field_mutants(plan), order_mutants(plan, commutative), row_mutants(plan)
    )


# -- changes that change nothing ----------------------------------------------------------------------------


class Hazard(Exception):
    """A run whose result depends on timing, or that does not end."""


Cell = tuple[int, int]  # base and address


class Numbering:
    """All ranks' plans run on numbered values: every initial value and every result of a reduction has a number.

    So it is known what plans do to every byte, whatever it means; nothing here is shared with what proves tables.
    A line is a (rank, strand, slot). No line touches what another one writes, and none what is under way in the step
    it is in: then all runs come to the same. Raises Hazard where that does not hold.
    """

    def __init__(self, plans: Sequence[Plan], numbers: dict[Any, int]) -> None:
        self.plans, self.numbers = plans, numbers
        self.values: list[dict[Cell, int]] = [{} for _ in plans]
        self.users: list[dict[Cell, tuple[Any, bool]]] = [{} for _ in plans]  # line (None: several), whether it wrote
        self.mail: dict[tuple[int, int, int, int], deque[list[int]]] = defaultdict(deque)
        lines = [
            _Line(self, rank, strand, slot)
            for rank, plan in enumerate(plans)
            for strand in range(len(plan.strands))
            for slot in range(plan.window)
        ]
        going = {line: line.run() for line in lines}
        while going:
            before = [line.done for line in going]
            left = {line: run for line, run in going.items() if next(run, None)}
            if len(left) == len(going) and before == [line.done for line in going]:
                raise Hazard("deadlock")
            going = left
        if any(self.mail.values()):
            raise Hazard("a message that no rank receives")

    def number(self, *what: Any) -> int:
        """Return the number of a value, by its origin or its operands."""
        return self.numbers.setdefault(what, len(self.numbers))

    def value(self, rank: int, cell: Cell) -> int:
        """Return the value at a cell."""
        number = self.values[rank].get(cell)
        return self.number("at the start", rank, cell) if number is None else number

    def touched(self) -> set[tuple[int, Cell]]:
        """Return the bytes of input and output that any rank reads or writes."""
        return {(rank, cell) for rank, cells in enumerate(self.users) for cell in cells if cell[0] != SCRATCH}


class _Line:
    """One (rank, strand, slot) at work."""

    def __init__(self, all_: Numbering, rank: int, strand: int, slot: int) -> None:
        self.all, self.rank, self.strand, self.slot, self.plan = all_, rank, strand, slot, all_.plans[rank]
        self.lane, self.done = slot, 0
        self.rows, self.segments = self.plan.rows.tolist(), self.plan.segments.tolist()

    def run(self) -> Iterator[bool]:
        """Run every step of every lane; yield while a message has not arrived."""
        steps = self.plan.steps[slice(*self.plan.strands[self.strand].tolist())].tolist()
        for lane in range(self.slot, self.plan.lanes, self.plan.window):
            self.lane = lane
            for first, posts, end in steps:
                self.read: set[Cell] = set()  # while the step's messages are under way
                self.written: set[Cell] = set()
                awaited = [message for row in self.rows[first:posts] if (message := self.post(*row))]
                for peer, cells in awaited:
                    mail = self.all.mail[peer, self.rank, self.strand, self.slot]
                    while not mail:
                        yield True
                    if len(values := mail.popleft()) != len(cells):
                        raise Hazard("a message of another length")
                    self.put(cells, values)
                    self.done += 1
                for row in self.rows[posts:end]:
                    if row[0] in (SEND, RECV):
                        raise Hazard("a message after the messages")
                    self.reduce(row)
                self.done += 1

    def post(self, kind: int, peer: int, a: int, b: int, stage: int) -> tuple[int, list[Cell]] | None:
        """Start a message, or copy; what is to be received, if anything is."""
        pieces = [self.cells(segment) for segment in self.segments[a:b]]
        cells = [cell for piece in pieces for cell in piece]
        if kind == REDUCE:
            self.hold(cells[len(pieces[0]) :], pieces[0])
            self.reduce([kind, peer, a, b, stage])
        elif kind == RECV and (cells or a == b):
            self.hold([], cells)
            return peer, cells
        elif kind == SEND and (cells or a == b):
            staged = self.cells([SCRATCH, stage, len(cells)], whole=True) if stage >= 0 else []
            self.hold(cells, staged)
            at = 0
            for piece in pieces if staged else ():
                self.make(staged[at : at + len(piece)], [piece], SEND)
                at += len(piece)
            self.all.mail[self.rank, peer, self.strand, self.slot].append(self.take(staged or cells))
            self.done += 1
        return None

    def hold(self, read: list[Cell], written: list[Cell]) -> None:
        """Raise Hazard if a row accesses what a posted row writes, or writes what a posted row reads."""
        reads, writes = set(read), set(written)
        if writes & (self.written | self.read) or reads & self.written or len(writes) < len(written):
            raise Hazard("in flight")
        self.read |= reads
        self.written |= writes

    def cells(self, segment: list[int], whole: bool = False) -> list[Cell]:
        """Return the bytes of a segment in this lane."""
        (base, at, length), plan = segment, self.plan
        if plan.lanes > 1:
            most = plan.code_slice if base == CODED else plan.slice
            length = length if whole else max(0, min(most, length - self.lane * most))
            at += self.slot * plan.lane_scratch if base >= SCRATCH else self.lane * plan.slice
        return [(min(base, SCRATCH), at + i) for i in range(length)]

    def use(self, cells: list[Cell], writes: bool) -> None:
        users, own = self.all.users[self.rank], (self.strand, self.slot)
        for cell in cells:
            line, wrote = users.get(cell, (own, False))
            if line != own and (wrote or writes):
                raise Hazard("two lines, and one of them writes")
            users[cell] = (own if line == own else None, wrote or writes)

    def take(self, cells: list[Cell]) -> list[int]:
        self.use(cells, False)
        return [self.all.value(self.rank, cell) for cell in cells]

    def put(self, cells: list[Cell], values: list[int]) -> None:
        self.use(cells, True)
        self.all.values[self.rank].update(zip(cells, values, strict=True))

    def reduce(self, row: list[int]) -> None:
        """Note a copy as the same value, and a reduction as a new value of its operands, in their order."""
        kind, _, a, b, _ = row
        to, *operands = [self.cells(segment) for segment in self.segments[a:b]]
        if not to:
            return
        codes, size = [segment[0] == CODED for segment in self.segments[a:b]], self.plan.itemsize
        operands = [[c for c in x for _ in range(size)] if coded else x for x, coded in zip(operands, codes[1:])]
        if codes[0]:                                                         # a cell stands for an element
            operands = [x[::size] for x in operands]
        if any(len(x) != len(to) for x in operands):
            raise Hazard("operands of another length")
        self.make(to, operands, kind)

    def make(self, to: list[Cell], operands: list[list[Cell]], kind: int) -> None:
        """Copy or reduce; what is written over a part of what it is made of is torn, and like nothing else."""
        result, *more = map(self.take, operands)
        for other in more:
            result = [self.all.number("reduced", x, y) for x, y in zip(result, other, strict=True)]
        if kind == REDUCE_SCALE:
            result = [self.all.number("divided", x) for x in result]
        if any(x != to and set(x) & set(to) for x in operands):
            result = [self.all.number("torn", len(self.all.numbers)) for _ in to]
        self.put(to, result)


def same_result(right: Sequence[Plan], broken: Sequence[Plan]) -> bool:
    """Tell whether changed plans give every rank the same output, and access no more of the user's memory."""
    numbers: dict[Any, int] = {}
    unchanged = Numbering(right, numbers)
    try:
        changed = Numbering(broken, numbers)
    except Hazard:
        return False
    return changed.touched() <= unchanged.touched() and all(
        unchanged.value(rank, cell) == changed.value(rank, cell) for rank, cell in unchanged.touched() if cell[0] == OUT
    )


def receives_again(right: Schedule, rank: int, place: Place) -> bool:
    """Tell whether one operation receives only what its rank holds already, so that its place does not matter.

    What arrives is known from the right schedule's trace, what is held from following the rank's strand up to there.
    """
    arrived: dict[tuple[int, int], deque] = defaultdict(deque)
    for message in execute(right).messages:
        if message.destination == rank:
            arrived[message.source, message.strand].append(dict(zip(message.blocks, message.values)))
    own = 1 << rank if right.commutative or not right.collective.reduces else Interval(rank, rank + 1)
    held: dict[Any, Any] = dict.fromkeys(right.starts(rank), own)
    for i, step in enumerate(right.program(rank)[place.strand]):
        got = [(op, arrived[op.peer, place.strand].popleft()) for op in step if isinstance(op, Recv | RecvReduce)]
        if i == place.step:
            op = step[place.op]
            values = next((received for other, received in got if other is op), {})
            return isinstance(op, Recv) and op.buffer == VALUE and all(held.get(b) == v for b, v in values.items())
        for op, values in got:
            for block, value in values.items() if op.buffer == VALUE else ():
                if isinstance(op, RecvReduce):
                    value = combine(value, held[block]) if op.side == "left" else combine(held[block], value)
                held[block] = value
    raise AssertionError("no such place")
