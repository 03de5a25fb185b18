"""The proof of lowered tables finds what is broken, and random schedules come through lowering right."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from unit.every import EVERY, served
from unit.mutants import adhoc, changed, faults, of_ranks, refused_tables, same_result, table_mutants

from mpicoll.errors import VerifyError
from mpicoll.plans.plan import IN, OUT, RECV, REDUCE, SCRATCH, SEND
from mpicoll.proofs import check_plan
from mpicoll.proofs.check_plan import Case, check_tables, in_place_forms, lower_all
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.prove import schedules
from mpicoll.schedules.collectives import from_all_ranks
from mpicoll.schedules.ir import INPUT, VALUE, Loc, Recv, RecvReduce, Reduce, Send
from mpicoll.schedules.registry import registered
from mpicoll.schedules.schedule import Schedule, schedule

MANY, QUICK = 400, 80    # mutants of an algorithm's tables


def small_cases(schedule):
    """Return cases with whole blocks and with chunks, both uneven, with elements of two bytes."""
    if schedule.collective.naming == "none":
        return [Case(0, 1, None, 4)]
    k = max(1, len(schedule.blocks)) if schedule.collective.naming == "vector" else 1
    cases = [Case(k + 1, 2, None, 4), Case(5 * k + 2, 2, 4, 2)]
    if schedule.collective.name == "reduce_scatter":
        cases.append(Case(tuple(3 * r % 5 for r in range(schedule.p)), 2, 4, 2))
    if check_plan.averages(schedule):
        cases += [Case(k + 1, 2, None, 4, averaged=True), Case(3 * k + 1, 2, 4, 2, averaged=True)]
    return cases


def caught(schedule, case, in_place, plans):
    """Tell whether the proof refuses these plans."""
    try:
        check_plan.run(schedule, case, in_place, plans)
    except VerifyError as error:
        assert (error.algorithm, error.p) == (schedule.title, schedule.p)
        return True
    return False


# -- every single change is found ---------------------------------------------------------------------------


def check_mutant(schedule, case, in_place, plans, rank, what, broken):
    """Check that a changed plan has a fault in its form, fails when run, or gives the same result."""
    others = [*plans[:rank], broken, *plans[rank + 1 :]]
    if not faults(broken) and not caught(schedule, case, in_place, others):
        assert same_result(plans, others), (
            f"{schedule} {case} in_place={in_place} rank {rank}: {what} is not noticed in {plans[rank]}"
        )


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("p", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_every_mutant_is_caught(entry, p, pytestconfig):
    """Any number of any table, rows dropped, segments swapped, chunks dropped, lanes laid on each other.

    For more than two ranks MANY of them, QUICK of them with --quick; `tests/run.py --draw` draws others.
    """
    every = []
    for variant in schedules(entry, p):
        if not variant.parameters and (variant.root == p // 2 or not entry.collective.rooted):
            for case in small_cases(variant):
                for in_place in in_place_forms(variant):
                    plans = lower_all(variant, case, in_place)
                    assert [faults(plan) for plan in plans] == [[]] * p
                    for rank, plan in enumerate(plans):
                        mutants = table_mutants(plan, variant.commutative or case.averaged)
                        every += [(variant, case, in_place, plans, rank, *mutant) for mutant in mutants]
    assert len(every) > 10 * p or not entry.serves(p)
    draw = random.Random(f"{pytestconfig.option.sample_seed} {entry.title} {p}")
    quick = pytestconfig.option.quick
    most = QUICK if quick else len(every) if p == 2 else MANY
    for mutant in draw.sample(every, min(most, len(every))):
        check_mutant(*mutant)


@pytest.mark.parametrize("entry", EVERY)
def test_a_few_mutants_at_larger_p(entry, pytestconfig):
    """Of its defaults and of some of its choices, with --quick of one."""
    draw, p = random.Random(entry.title), served(entry, 7)
    choices = [schedule for schedule in schedules(entry, p) if schedule.root in (0, p - 1)]
    few = 1 if pytestconfig.option.quick else 4
    for variant in [Schedule(entry, p), *draw.sample(choices, min(few, len(choices)))][-few:]:
        case = small_cases(variant)[-1]
        for in_place in in_place_forms(variant):
            plans = lower_all(variant, case, in_place)
            either = variant.commutative or case.averaged
            every = [(r, what, broken) for r in range(p) for what, broken in table_mutants(plans[r], either)]
            for rank, what, broken in draw.sample(every, min(20, len(every))):
                check_mutant(variant, case, in_place, plans, rank, what, broken)


def test_changes_that_change_nothing():
    """exscan's rank 1 keeps what arrived and reduces into a copy of it, which no other operation reads."""

    def alike(schedule, case):
        plans = lower_all(schedule, case, False)
        return [
            {
                what
                for what, broken in table_mutants(plan, True)
                if not faults(broken) and same_result(plans, [*plans[:rank], broken, *plans[rank + 1 :]])
            }
            for rank, plan in enumerate(plans)
        ]

    assert alike(schedule("exscan", "linear", 3), Case(2, 2, None, 4)) == [set(), {"segments[4] base 2 -> 1"}, set()]
    assert alike(schedule("reduce", "chain", 4), Case(9, 2, 4, 2)) == [set()] * 4
    assert alike(schedule("allreduce", "recursive_doubling", 4), Case(9, 2, None, 4)) == [set()] * 4


def test_same_result_refuses_what_depends_on_who_is_faster():
    """Sending from the output what a copy puts there while the message travels."""
    ring, case = schedule("allgather", "ring", 3), Case(2, 2, None, 4)
    plans = lower_all(ring, case, False)
    at = next(a for kind, _, a, _, _ in plans[0].rows.tolist() if kind == SEND)
    broken = changed(plans[0], "segments", (at, 0), OUT)
    assert same_result(plans, plans)
    assert not same_result(plans, [broken, *plans[1:]])
    assert caught(ring, case, False, [broken, *plans[1:]])


def test_lanes_that_meet_in_the_output():
    """An unread value at the place of another lane's result is detected, whichever lane is faster."""
    doubling, case = schedule("reduce_scatter", "recursive_doubling", 4), Case((0, 3, 1, 4), 2, 4, 2)
    plan = lower_all(doubling, case, False)[1]
    assert faults(plan) == []
    dead = plan.segments.tolist().index([SCRATCH, 4, 2], 3)
    assert faults(changed(plan, "segments", (dead, 0), OUT)) == ["blocks apart, so that lanes are"]


def test_strands_that_meet_in_the_output():
    """A strand that reads its input where another strand copies it is found, whichever is faster."""
    plan = lower_all(schedule("scan", "double_tree", 3, commutative=False), Case(3, 2, None, 4), False)[0]
    assert faults(plan) == []
    read = plan.segments.tolist().index([IN, 4, 2])
    assert faults(changed(plan, "segments", (read, 0), OUT)) == ["strands apart in the output, as they do not wait"]


def test_no_operation_writes_the_input():
    """No operation writes the input, not even with its own contents."""
    (plan,) = lower_all(schedule("allreduce", "ring", 1), Case(4, 2, None, 4), False)
    assert "row 0" in faults(changed(plan, "segments", (0, 0), IN))
    plan = lower_all(schedule("bcast", "chain", 2), Case(4, 2, None, 4), True)[1]
    assert faults(changed(plan, "segments", (0, 0), IN)) == ["row 0"]


# -- some of them on all ranks at once, with their coordinates ----------------------------------------------


def swapped_operands(rank, plan):
    first = next(a for kind, _, a, _, _ in plan.rows.tolist() if kind == REDUCE) + 1
    segments = plan.segments.copy()
    segments[[first, first + 1]] = segments[[first + 1, first]]
    return replace(plan, segments=segments) if rank == 2 else plan


def shifted_operand(rank, plan):
    row = next(r for r in plan.rows.tolist() if r[0] == REDUCE)
    at = (row[2] + 2, 1)
    return changed(plan, "segments", at, int(plan.segments[at]) + 2) if rank == 0 else plan


def received_elsewhere(rank, plan):
    """Ranks 0 and 1 each think they are the other: everything matches, and all ends in the wrong place."""
    segments = plan.segments.copy()
    received = plan.rows[plan.rows[:, 0] == RECV, 2]
    segments[received, 1] = 6 - segments[received, 1]
    return replace(plan, segments=segments)


RING, RING_CASE = schedule("allreduce", "ring", 3), Case(17, 2, 4, 2)
BROKEN = {
    "a chunk dropped everywhere": (
        RING, RING_CASE, lambda rank, plan: replace(plan, lanes=plan.lanes - 1), (0, None, None), "", "block 0 whole"),
    "a chunk dropped at one rank": (
        RING, RING_CASE, lambda rank, plan: replace(plan, lanes=plan.lanes - (rank == 1)),
        (0, 0, 0), ", lane 2", "every message matched"),
    "lanes that share scratch": (
        RING, Case(90, 2, 4, 3), lambda rank, plan: replace(plan, lane_scratch=0), (0, None, None), None, "row 0"),
    "steps in another order": (
        RING, RING_CASE, lambda rank, plan: replace(plan, steps=plan.steps[::-1].copy()) if rank == 1 else plan,
        (1, None, None), None, "steps divide the rows"),
    "operands swapped": (
        schedule("allreduce", "recursive_doubling", 4, commutative=False), Case(4, 2, None, 4), swapped_operands,
        (2, 0, 0), ", lane 0", "each contribution once, in order"),
    "other elements reduced": (
        RING, RING_CASE, shifted_operand, (0, 0, 0), ", lane 1", "to reduce an element with itself"),
    "received elsewhere": (
        schedule("allgather", "ring", 2), Case(3, 2, None, 4), received_elsewhere,
        (0, None, None), "", "block 0 whole"),
    "windows that differ": (
        schedule("bcast", "chain", 3), Case(9, 2, 4, 3), lambda rank, plan: replace(plan, window=3 - (rank == 1)),
        (1, 0, 0), ", lane 3", "4 bytes from rank 0"),
}  # fmt: skip


@pytest.mark.parametrize(("schedule", "case", "change", "where", "lane", "expected"), BROKEN.values(), ids=BROKEN)
def test_errors_name_the_broken_place(schedule, case, change, where, lane, expected):
    """lane: None where the plan's form is wrong before it runs, empty where the result is wrong after it has run."""
    error = refused_tables(schedule, case, change)
    in_place = "" if lane is None else f", in_place={schedule.collective.name == 'bcast'}"
    assert ((error.rank, error.strand, error.step), error.expected) == (where, expected)
    assert error.op == f"lowered table, {case}{in_place}{lane or ''}"


# -- cases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
def test_cases(entry):
    """For small p: nothing, few elements, uneven blocks, and more chunks than fit in the window."""
    schedule = Schedule(entry, served(entry, 4))
    cases = list(check_plan.cases(schedule))
    if entry.collective.naming == "none":
        assert len(cases) == 1
        return
    lanes = [plan.lanes for case in cases for plan in lower_all(schedule, case, False)[:1]]
    assert {0, 1} <= {case.counts for case in cases}
    assert max(lanes) > max(case.window for case in cases if case.chunk_bytes)
    has_average = entry.collective.reduces and entry.collective.covers is from_all_ranks
    sums = {(case.averaged, case.float32_sums) for case in check_plan.cases(Schedule(entry, served(entry, 32)))}
    assert {averaged for averaged, _ in sums} == ({False, True} if has_average else {False})
    assert ((False, True) in sums) == (entry.collective.reduces and schedule.codec is None)


@pytest.mark.parametrize("spec", ["allgather ring", "allreduce ring", "allreduce recursive_doubling", "scan linear"])
@pytest.mark.parametrize(("ranks", "parameters"), [(check_plan.MANY, {}), (range(5, 9), {"grid": 1})])
def test_every_case_is_proved_on_some_number_of_ranks(spec, ranks, parameters, monkeypatch):
    """Case and placement change with p where not all are proved. The case without chunks is for up to 8 ranks."""
    proved = set()

    def kind(case):
        return type(case.counts).__name__, case.chunk_bytes, case.averaged, case.float32_sums

    class Recorded:
        def __init__(self, schedule, case, in_place, plans):
            proved.add((kind(case), in_place))

        def run(self):
            pass

    monkeypatch.setattr(check_plan, "Machine", Recorded)
    for p in ranks:
        scheduled = schedule(*spec.split(), p)
        scheduled.parameters = parameters
        check_tables(scheduled)
    kinds = list(map(kind, check_plan.cases(schedule(*spec.split(), 8))))
    assert len(kinds) > 2 and {case for case, _ in proved} == {*kinds[not parameters :]}
    assert {in_place for _, in_place in proved} == {False, True}


@pytest.mark.parametrize(
    ("forms", "collectives"),
    [
        ((True,), ["bcast"]),
        ((False,), ["barrier", "alltoall", "reduce_scatter"]),
        ((False, True), ["allreduce", "gather", "scatter"]),
    ],
)
def test_placements(forms, collectives):
    for collective in collectives:
        entry = next(a for a in registered() if a.collective.name == collective)
        assert in_place_forms(Schedule(entry, 3)) == forms


# -- random schedules ---------------------------------------------------------------------------------------


class RandomAllreduce:
    """Every block is reduced along a random tree and broadcast along another, all of them mixed."""

    def __init__(self, seed):
        self.draw = draw = random.Random(seed)
        self.p, self.blocks = draw.randint(1, 6), draw.randint(1, 5)
        self.programs = [[] for _ in range(self.p)]
        self.fresh = 0
        up, down = zip(*(self.trees(block) for block in range(self.blocks)))
        for phase, reduces in ((up, True), (down, False)):
            for source, target, blocks in self.messages([list(x) for x in phase]):
                self.emit(source, target, blocks, reduces)

    def trees(self, block):
        """Return (child, parent, block), children first, and (parent, child, block), parents first."""
        ranks = list(range(self.p))
        self.draw.shuffle(ranks)
        up = [(rank, self.draw.choice(ranks[:i])) for i, rank in enumerate(ranks) if i][::-1]
        down = [(self.draw.choice(ranks[:i]), rank) for i, rank in enumerate(ranks) if i]
        return [(a, b, block) for a, b in up], [(a, b, block) for a, b in down]

    def messages(self, queues):
        """Take from the blocks' queues in random order; what goes the same way goes in one message."""
        while queues := [q for q in queues if q]:
            source, target, block = self.draw.choice(queues).pop(0)
            blocks = [block]
            for q in queues:
                if q and q[0][:2] == (source, target) and self.draw.random() < 0.8:
                    blocks.append(q.pop(0)[2])  # noqa: PERF401 - it takes from q
            self.draw.shuffle(blocks)
            yield source, target, tuple(blocks)

    def emit(self, source, target, blocks, reduces):
        """Add one message: reduced on arrival, reduced from an accumulator, or only received."""
        self.add(source, Send(target, blocks))
        side = self.draw.choice(["left", "right"])
        if not reduces:
            self.add(target, Recv(source, blocks))
        elif self.draw.random() < 0.6:
            self.add(target, RecvReduce(source, blocks, side))
        else:
            self.fresh += 1
            name = f"a{self.fresh}"
            self.add(target, Recv(source, blocks, name))
            self.programs[target].append([Reduce(Loc(VALUE, b), Loc(name, b), side) for b in blocks])

    def add(self, rank, op):
        """Add an operation as a step of its own, or to the last step if that has other blocks only."""
        program = self.programs[rank]
        apart = program and not any(isinstance(x, Reduce) or set(x.blocks) & set(op.blocks) for x in program[-1])
        if apart and self.draw.random() < 0.5:
            program[-1].append(op)
        else:
            program.append([op])

    def schedule(self):
        return adhoc("allreduce", lambda p, rank: self.programs[rank], self.p, blocks=self.blocks)


@pytest.mark.parametrize("seed", range(120))
def test_random_schedules_are_lowered_right(seed):
    drawn = RandomAllreduce(seed).schedule()
    verify(drawn)
    check_tables(drawn)


def test_messages_of_one_step_keep_their_order():
    """Two messages between the same ranks: what is reduced first may be received first."""
    exchange = of_ranks(
        "allreduce",
        [(RecvReduce(1, (0,)), Recv(1, (1,), "a")), Reduce(Loc(VALUE, 1), Loc("a", 1)), Send(1, (0, 1))],
        [(Send(0, (0,)), Send(0, (1,))), Recv(0, (0, 1))],
        blocks=2,
    )
    verify(exchange)
    check_tables(exchange)


def test_a_schedule_that_reads_its_input_late_is_right_in_place_too():
    """dispatch/execute.py stages such a call, so that the tables of what really runs are the ones to prove."""

    def body(p, rank):
        for i in range(1, p):
            yield Send((rank + i) % p, (0,), INPUT), RecvReduce((rank - i) % p, (0,))

    late_reader = adhoc("allreduce", body, 3)
    verify(late_reader)
    check_tables(late_reader)


def test_scratch_is_used_again():
    """A chain of accumulators, each read once, needs room for two at a time."""
    places = [Loc(INPUT, 0), *(Loc(f"a{i}", 0) for i in range(6))]
    reductions = of_ranks("allreduce", [Reduce(dst, src) for src, dst in pairwise(places)])
    verify(reductions)
    (plan,) = lower_all(reductions, Case(64, 1, None, 4), False)
    assert plan.scratch_bytes == 2 * 64
    scratch = plan.segments[plan.segments[:, 0] == SCRATCH]
    assert np.unique(scratch[:, 1]).tolist() == [0, 64]
