"""The rolled form of plans: what repeats stands in it once, and nothing is lost."""

from __future__ import annotations

import random

import numpy as np
import pytest
from unit.mutants import adhoc

from mpicoll.plans import rolled as module
from mpicoll.plans.lowering import lower
from mpicoll.plans.plan import RECV, SEND, WHOLE, Plan
from mpicoll.plans.rolled import BODY, TURNS, equal, following, rolled, unrolled
from mpicoll.schedules.ir import Recv, Send
from mpicoll.schedules.schedule import schedule

RINGS = [
    ("allreduce", "ring"), ("allreduce", "ring_bidirectional"), ("reduce_scatter", "ring"), ("allgather", "ring"),
    ("allgather", "neighbor_exchange"), ("reduce_scatter", "pairwise"), ("alltoall", "pairwise"),
]  # fmt: skip


def plan_of(collective, algorithm, p, extra=0, rank=None, **how):
    scheduled = schedule(collective, algorithm, p)
    count = 5 * p + extra if scheduled.collective.naming == "vector" else 5
    return lower(scheduled, p // 3 if rank is None else rank, count, 4, **how)


@pytest.mark.parametrize(("collective", "algorithm"), RINGS)
def test_tables_are_as_long_for_many_ranks_as_for_some(collective, algorithm):
    for p in (64, 256, 2048):
        looped = rolled(plan_of(collective, algorithm, p))
        assert len(looped.steps) <= 30 and len(looped.rows) <= 75 and len(looped.segments) <= 105


@pytest.mark.parametrize("how", [{}, {"chunk_bytes": 8, "window": 2}, {"averaged": True}], ids=str)
@pytest.mark.parametrize("extra", [0, 7])
@pytest.mark.parametrize(("collective", "algorithm"), RINGS)
def test_nothing_is_lost(collective, algorithm, extra, how):
    """On ranks at both ends and between them, blocks being equal or not, in two strands or one."""
    if how.get("averaged") and not schedule(collective, algorithm, 2).collective.reduces:
        how = {}
    for rank in (0, 1, 27, 42, 43):
        plan = plan_of(collective, algorithm, 44, extra, rank, **how)
        looped = rolled(plan)
        assert equal(unrolled(looped), plan) and len(looped.steps) < len(plan.steps)
        assert looped.all_rows == len(plan.rows) and looped.scalars == plan.scalars


def test_steps_are_numbered_as_in_the_plan():
    bodies = set()
    for plan in (plan_of("allreduce", "ring_bidirectional", 20), plan_of("allgather", "neighbor_exchange", 80)):
        looped = rolled(plan)
        bodies |= set(looped.steps[looped.steps[:, TURNS] > 1, BODY].tolist())
        for strand, (at, end) in enumerate(looped.strands.tolist()):
            number = turn = 0
            while at < end:
                assert looped.number(strand, at, turn) == number
                at, turn = following(at, turn, *looped.steps[at, [BODY, TURNS]].tolist())
                number += 1
            assert number == np.diff(plan.strands[strand])
    assert bodies == {1, 2}


def shuffled(p, rank):
    """Blocks in no order: a step like the one before it, but for where it is."""
    order = random.Random(3).sample(range(40), 40)
    for block in order:
        yield Send(1, (block,)) if rank == 0 else Recv(0, (block,))


def test_steps_that_do_not_repeat_stay_unrolled():
    plan = lower(adhoc("bcast", shuffled, 2, blocks=40), 0, 400, 1)
    looped = rolled(plan)
    assert len(looped.steps) == 40 and (looped.steps[:, TURNS] == 1).all() and equal(unrolled(looped), plan)


@pytest.mark.parametrize("table", ["rows", "segments", "steps"])
def test_a_step_that_differs_ends_a_loop(table):
    """A change of any number of a step in the middle ends the loop."""
    plan = plan_of("allgather", "ring", 41, rank=40)
    whole, columns = rolled(plan), {"rows": 5, "segments": 3, "steps": 3}[table]
    for column in range(columns):
        tables = [original.copy() for original in plan.tables]
        name = ["rows", "segments", "steps"].index(table)
        if (table, column) in (("rows", 2), ("rows", 3), ("steps", 0), ("steps", 2)):
            continue  # these say where others are
        tables[name][len(tables[name]) // 2, column] += 1
        changed = Plan(*tables, *plan.scalars)
        looped = rolled(changed)
        assert len(looped.steps) > len(whole.steps) and equal(unrolled(looped), changed)


def test_sums_that_are_equal_by_chance_do_no_harm(monkeypatch):
    """Weights that tell nothing apart: loops are found where there are none, and are not believed."""
    monkeypatch.setattr(module, "_weights", lambda counts: np.zeros(counts.sum(), np.uint64))
    plan = lower(adhoc("bcast", shuffled, 2, blocks=40), 0, 400, 1)
    assert len(module._loops(plan)) < 40
    assert equal(unrolled(rolled(plan)), plan)


def test_no_steps():
    tables = [np.zeros((n, width), np.int64) for n, width in ((0, 5), (0, 3), (0, 3), (1, 2))]
    empty = Plan(*tables, WHOLE, 1, 1, 0, 0, 4)
    assert equal(unrolled(rolled(empty)), empty)


@pytest.mark.parametrize(("collective", "algorithm"), [*RINGS, ("allreduce", "rabenseifner"), ("gather", "binomial")])
@pytest.mark.parametrize("chunk_bytes", [None, 8])
def test_receives_match_sends(collective, algorithm, chunk_bytes):
    plans = [plan_of(collective, algorithm, 10, rank=rank, chunk_bytes=chunk_bytes) for rank in range(10)]

    def moved(plan, kind):
        return sum(int(plan.segments[a:b, 2].sum()) for what, _, a, b, _ in plan.rows.tolist() if what == kind)

    received = [rolled(plan).received_bytes for plan in plans]
    assert received == [moved(plan, RECV) for plan in plans]
    assert sum(received) == sum(moved(plan, SEND) for plan in plans) > 0
