"""Broken schedules and broken tables, one change each: what the proofs must catch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from mpicoll.claims import Claims
from mpicoll.collectives import COLLECTIVES
from mpicoll.form import faults, messages  # noqa: F401 - for the tests
from mpicoll.ir import Op, Recv, RecvReduce, Reduce, Send, Step, Strands
from mpicoll.plan import ALIGN, FOLD, Plan
from mpicoll.schedule import Algorithm, Schedule

COLUMNS = {
    "rows": ("kind", "peer", "first segment", "end segment", "stage"),
    "segments": ("base", "offset", "length"),
    "steps": ("first row", "end of posts", "end row"),
    "strands": ("first step", "end step"),
}

Body = Callable[..., Any]


def adhoc(
    collective: str,
    body: Body,
    p: int,
    root: int = 0,
    *,
    blocks: int = 1,
    ordered: bool = False,
    in_order: bool = False,
) -> Schedule:
    """The schedule of a function of (p, rank) that is not registered and claims nothing."""
    entry = Algorithm(
        COLLECTIVES[collective],
        getattr(body, "__name__", "adhoc"),
        lambda p, rank, **_: body(p, rank),
        lambda p, **_: blocks,
        ordered,
        Claims("An idea.", "0", "0", "0", "", ""),
    )
    return Schedule(entry, p, root, commutative=not in_order, claims=False)


def with_body(entry: Algorithm, body: Body) -> Algorithm:
    """The algorithm with another body under the same claims."""
    return replace(entry, body=body)


def at_rank(entry: Algorithm, rank: int, change: Callable[[Strands], Strands]) -> Algorithm:
    """The algorithm with one rank's program changed."""

    def body(p: int, own: int, **parameters: Any) -> Strands:
        program = entry(p, own, **parameters)
        return change(program) if own == rank else program

    return with_body(entry, body)


class Place(NamedTuple):
    """Where one operation stands in a rank's program."""

    strand: int
    step: int
    op: int


def put(program: Strands, at: Place, ops: Step) -> Strands:
    """The program with one operation replaced by others (or none)."""
    step = program[at.strand][at.step]
    steps = list(program[at.strand])
    steps[at.step] = step[: at.op] + ops + step[at.op + 1 :]
    return Strands(tuple(steps) if s == at.strand else strand for s, strand in enumerate(program))


def operations(program: Strands) -> Iterator[tuple[Place, Op]]:
    """Every operation and its place."""
    for s, strand in enumerate(program):
        for i, step in enumerate(strand):
            for k, op in enumerate(step):
                yield Place(s, i, k), op


def replacements(op: Op, p: int, blocks: tuple[Any, ...]) -> Iterator[tuple[str, Step]]:
    """What one operation may wrongly be."""
    yield "dropped", ()
    yield "doubled", (op, op)
    if isinstance(op, Reduce):
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
        yield "folded", (RecvReduce(op.peer, op.blocks),)
    if isinstance(op, RecvReduce):
        yield "not folded", (Recv(op.peer, op.blocks),)
        yield "on the other side", (op._replace(side="left" if op.side == "right" else "right"),)
    yield "the other way", (Recv(*op[:2]) if isinstance(op, Send) else Send(*op[:2]),)


def op_mutants(schedule: Schedule, rank: int) -> Iterator[tuple[str, Schedule]]:
    """The schedule with one operation of one rank's program changed, in every way that makes a difference."""
    entry = schedule.algorithm
    for place, op in operations(entry(schedule.p, rank)):
        for what, ops in replacements(op, schedule.p, schedule.blocks):
            if ops == (op,) or (schedule.commutative and what == "on the other side"):
                continue
            broken = at_rank(entry, rank, lambda program, place=place, ops=ops: put(program, place, ops))
            made = Schedule(broken, schedule.p, schedule.root, commutative=schedule.commutative)
            yield f"{schedule}: {op} of rank {rank}, {place}: {what}", made


def changed(plan: Plan, table: str, at: tuple[int, ...], value: int) -> Plan:
    """The plan with one number of a table changed, in a copy."""
    array = getattr(plan, table).copy()
    array[at] = value
    return replace(plan, **{table: array})


def other_values(plan: Plan, table: str, row: int, column: str) -> tuple[int, ...]:
    """What one number of a table may wrongly be; none where nobody reads it."""
    old = int(getattr(plan, table)[row, COLUMNS[table].index(column)])
    if column in ("kind", "base"):
        return (old + 1) % 3, (old + 2) % 3
    if table == "rows":
        kind, _, first, end, stage = plan.rows[row].tolist()
        if (column == "peer" and kind == FOLD) or (first == end and column != "peer"):
            return ()
        if column == "stage":
            return (-1, plan.lane_scratch) if stage >= 0 else ()
    by = plan.itemsize if table == "segments" else 1
    return old - by, old + by


def number_mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan with one number of one table changed."""
    for table, columns in COLUMNS.items():
        for row, column in itertools.product(range(len(getattr(plan, table))), columns):
            at = (row, columns.index(column))
            for new in other_values(plan, table, row, column):
                old = int(getattr(plan, table)[at])
                yield f"{table}[{row}] {column} {old} -> {new}", changed(plan, table, at, new)


def field_mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan with one of its plain numbers changed."""
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
    """The plan with two neighbours of a row swapped: pieces of a message, operands where order matters."""
    for r, (kind, _, first, end, _) in enumerate(plan.rows.tolist()):
        if kind == FOLD and commutative:
            continue
        for a, b in itertools.pairwise(range(first + (kind == FOLD), end)):
            segments = plan.segments.copy()
            segments[[a, b]] = segments[[b, a]]
            yield f"rows[{r}] segments {a} and {b} swapped", replace(plan, segments=segments)


def row_mutants(plan: Plan) -> Iterator[tuple[str, Plan]]:
    """The plan with one row left out."""
    for dropped in range(len(plan.rows)):
        rows = np.delete(plan.rows, dropped, axis=0)
        steps = plan.steps - (plan.steps > dropped)
        yield f"rows[{dropped}] dropped", replace(plan, rows=rows, steps=steps)


def table_mutants(plan: Plan, commutative: bool) -> Iterator[tuple[str, Plan]]:
    """Every single change of a plan."""
    return itertools.chain(
        number_mutants(plan), field_mutants(plan), order_mutants(plan, commutative), row_mutants(plan)
    )
