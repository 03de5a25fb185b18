"""The proof of lowered tables finds what is broken, and random schedules come through lowering right."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from unit.every import EVERY, served
from unit.mutants import adhoc, changed, faults, same_result, table_mutants

from mpicoll.errors import VerifyError
from mpicoll.plans.plan import FOLD, IN, OUT, RECV, SCRATCH, SEND
from mpicoll.proofs import check_plan
from mpicoll.proofs.check_plan import Case, check_tables, in_place_forms, lower_all
from mpicoll.proofs.check_schedule import verify
from mpicoll.proofs.prove import schedules
from mpicoll.schedules.ir import INPUT, VALUE, Loc, Recv, RecvReduce, Reduce, Send
from mpicoll.schedules.registry import registered
from mpicoll.schedules.schedule import Schedule, schedule

AVERAGED = ("reduce", "reduce_scatter", "allreduce")
MANY = 400  # mutants of an algorithm's tables


def small_cases(made):
    """Whole blocks and chunks, both uneven, elements of two bytes."""
    if made.collective.naming == "none":
        return [Case(0, 1, None, 4)]
    k = max(1, len(made.blocks)) if made.collective.naming == "vector" else 1
    found = [Case(k + 1, 2, None, 4), Case(5 * k + 2, 2, 4, 2)]
    if made.collective.name == "reduce_scatter":
        found.append(Case(tuple(3 * r % 5 for r in range(made.p)), 2, 4, 2))
    if check_plan.averages(made):
        found += [Case(k + 1, 2, None, 4, averaged=True), Case(3 * k + 1, 2, 4, 2, averaged=True)]
    return found


def caught(made, case, in_place, plans):
    """Whether the proof refuses these plans."""
    try:
        check_plan.run(made, case, in_place, plans)
    except VerifyError as error:
        assert (error.algorithm, error.p) == (made.title, made.p)
        return True
    return False


def refused(made, case, change, in_place=False):
    """The error of all ranks' plans, some of them changed: change(rank, plan)."""
    plans = [change(rank, plan) for rank, plan in enumerate(lower_all(made, case, in_place))]
    with pytest.raises(VerifyError) as error:
        check_plan.run(made, case, in_place, plans)
    return error.value


# -- every single change is found ---------------------------------------------------------------------------


def check_mutant(made, case, in_place, plans, rank, what, broken):
    """A change is found in the plan's form or by running it, or it is shown to change nothing."""
    others = [*plans[:rank], broken, *plans[rank + 1 :]]
    if not faults(broken) and not caught(made, case, in_place, others):
        assert same_result(plans, others), (
            f"{made} {case} in_place={in_place} rank {rank}: {what} is not noticed in {plans[rank]}"
        )


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("p", [2, 3, 4])
def test_every_mutant_is_caught(entry, p):
    """Any number of any table, rows dropped, segments swapped, chunks dropped, lanes laid on each other.

    For more than two ranks MANY of them, drawn anew each time; the seed is printed with a failure.
    """
    every = []
    for made in schedules(entry, p):
        if not made.parameters and (made.root == p // 2 or not entry.collective.rooted):
            for case in small_cases(made):
                for in_place in in_place_forms(made):
                    plans = lower_all(made, case, in_place)
                    assert [faults(plan) for plan in plans] == [[]] * p
                    for rank, plan in enumerate(plans):
                        mutants = table_mutants(plan, made.commutative or case.averaged)
                        every += [(made, case, in_place, plans, rank, *mutant) for mutant in mutants]
    assert len(every) > 10 * p or not entry.serves(p)
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    for mutant in every if p == 2 else random.Random(seed).sample(every, min(MANY, len(every))):
        check_mutant(*mutant)


@pytest.mark.parametrize("entry", EVERY)
def test_a_few_mutants_at_larger_p(entry):
    """Of its defaults and of some of its choices."""
    draw, p = random.Random(entry.title), served(entry, 7)
    choices = [made for made in schedules(entry, p) if made.root in (0, p - 1)]
    for made in [Schedule(entry, p), *draw.sample(choices, min(4, len(choices)))]:
        case = small_cases(made)[-1]
        for in_place in in_place_forms(made):
            plans = lower_all(made, case, in_place)
            either = made.commutative or case.averaged
            every = [(r, what, broken) for r in range(p) for what, broken in table_mutants(plans[r], either)]
            for rank, what, broken in draw.sample(every, min(20, len(every))):
                check_mutant(made, case, in_place, plans, rank, what, broken)


def test_changes_that_change_nothing():
    """exscan's rank 1 keeps what arrived and folds into a copy of it, on which nobody else looks."""

    def alike(made, case):
        plans = lower_all(made, case, False)
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
    made, case = schedule("allgather", "ring", 3), Case(2, 2, None, 4)
    plans = lower_all(made, case, False)
    at = next(a for kind, _, a, _, _ in plans[0].rows.tolist() if kind == SEND)
    broken = changed(plans[0], "segments", (at, 0), OUT)
    assert same_result(plans, plans)
    assert not same_result(plans, [broken, *plans[1:]])
    assert caught(made, case, False, [broken, *plans[1:]])


def test_lanes_that_meet_in_the_output():
    """A value that nobody looks at, put where another lane's result comes, is found whoever is faster."""
    made, case = schedule("reduce_scatter", "recursive_doubling", 4), Case((0, 3, 1, 4), 2, 4, 2)
    plan = lower_all(made, case, False)[1]
    assert faults(plan) == []
    dead = plan.segments.tolist().index([SCRATCH, 4, 2], 3)
    assert faults(changed(plan, "segments", (dead, 0), OUT)) == ["blocks apart, so that lanes are"]


def test_nobody_writes_the_input():
    """Not even what is there already."""
    (plan,) = lower_all(schedule("allreduce", "ring", 1), Case(4, 2, None, 4), False)
    assert "row 0" in faults(changed(plan, "segments", (0, 0), IN))
    plan = lower_all(schedule("bcast", "chain", 2), Case(4, 2, None, 4), True)[1]
    assert faults(changed(plan, "segments", (0, 0), IN)) == ["row 0"]


# -- some of them on all ranks at once, with their coordinates ----------------------------------------------

RING = schedule("allreduce", "ring", 3)
CHUNKED = Case(17, 2, 4, 2)


def test_right_as_they_are():
    for made, case in ((RING, CHUNKED), (schedule("allgather", "bruck", 5), Case(5, 2, 4, 2))):
        check_plan.run(made, case, False, lower_all(made, case, False))
        check_plan.run(made, case, False)


def test_a_chunk_dropped_everywhere():
    error = refused(RING, CHUNKED, lambda rank, plan: replace(plan, lanes=plan.lanes - 1))
    assert (error.rank, error.expected) == (0, "block 0 whole")
    assert "Case(counts=17" in error.op and "in_place=False" in error.op


def test_a_chunk_dropped_at_one_rank():
    error = refused(RING, CHUNKED, lambda rank, plan: replace(plan, lanes=plan.lanes - (rank == 1)))
    assert (error.expected, error.got) == ("every message matched", "deadlock")
    assert error.op.endswith(", lane 2")


def test_lanes_that_share_scratch():
    assert refused(RING, Case(90, 2, 4, 3), lambda rank, plan: replace(plan, lane_scratch=0)).expected == "row 0"


def test_a_fold_the_wrong_way_round():
    made = schedule("allreduce", "recursive_doubling", 4, commutative=False)

    def swap(rank, plan):
        first = next(a for kind, _, a, _, _ in plan.rows.tolist() if kind == FOLD) + 1
        segments = plan.segments.copy()
        segments[[first, first + 1]] = segments[[first + 1, first]]
        return replace(plan, segments=segments) if rank == 2 else plan

    error = refused(made, Case(4, 2, None, 4), swap)
    assert (error.rank, error.strand, error.step) == (2, 0, 0)
    assert error.expected == "each contribution once, in order"
    assert error.algorithm == "allreduce recursive_doubling in rank order"


def test_folds_of_different_elements():
    def shift(rank, plan):
        row = next(r for r in plan.rows.tolist() if r[0] == FOLD)
        at = (row[2] + 1, 1)
        return changed(plan, "segments", at, int(plan.segments[at]) + 2) if rank == 0 else plan

    error = refused(RING, CHUNKED, shift)
    assert (error.rank, error.step) == (0, 0)


def test_two_ranks_that_agree_on_the_wrong_peer():
    """Ranks 0 and 1 each think they are the other: everything matches, and all ends in the wrong place."""
    made = schedule("allgather", "ring", 2)
    plans = lower_all(made, Case(3, 2, None, 4), False)
    moved = [replace(plan, rows=plan.rows.copy(), segments=plan.segments.copy()) for plan in plans]
    for plan in moved:
        for kind, _, a, _, _ in plan.rows.tolist():
            if kind == RECV:
                plan.segments[a, 1] = 6 - plan.segments[a, 1]
    assert caught(made, Case(3, 2, None, 4), False, moved)


def test_merged_where_a_neighbour_does_not_follow():
    """Two segments made one although something lies between them."""
    made, case = schedule("scatter", "binomial", 4), Case(3, 2, None, 4)

    def widen(rank, plan):
        longest = int(plan.segments[:, 2].argmax())
        return changed(plan, "segments", (longest, 1), int(plan.segments[longest, 1]) + 6) if rank == 0 else plan

    assert refused(made, case, widen).p == 4


def test_steps_of_one_rank_in_another_order():
    def swap(rank, plan):
        return replace(plan, steps=plan.steps[::-1].copy()) if rank == 1 else plan

    assert refused(RING, CHUNKED, swap).expected


@pytest.mark.parametrize("p", [2, 3, 5])
def test_a_window_that_ranks_disagree_on(p):
    made = schedule("bcast", "chain", p)
    error = refused(made, Case(9, 2, 4, 3), lambda rank, plan: replace(plan, window=3 - (rank == 1)), in_place=True)
    assert error.strand == 0 and "lane" in error.op


# -- cases --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", EVERY)
def test_cases(entry):
    """For small p: nothing, few elements, uneven blocks, and more chunks than fit in the window."""
    made = Schedule(entry, served(entry, 5))
    found = list(check_plan.cases(made))
    if entry.collective.naming == "none":
        assert len(found) == 1
        return
    lanes = [plan.lanes for case in found for plan in lower_all(made, case, False)[:1]]
    assert {0, 1} <= {case.counts for case in found}
    assert max(lanes) > max(case.window for case in found if case.chunk_bytes)
    averaged = [case.averaged for case in check_plan.cases(Schedule(entry, served(entry, 33)))]
    assert averaged == ([False, True] if entry.collective.name in AVERAGED else [False])


@pytest.mark.parametrize(
    ("collective", "forms"),
    [
        ("bcast", (True,)),
        ("barrier", (False,)),
        ("alltoall", (False,)),
        ("reduce_scatter", (False,)),
        ("allreduce", (False, True)),
        ("gather", (False, True)),
        ("scatter", (False, True)),
    ],
)
def test_placements(collective, forms):
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
        for phase, folds in ((up, True), (down, False)):
            for source, target, blocks in self.messages([list(x) for x in phase]):
                self.emit(source, target, blocks, folds)

    def trees(self, block):
        """(child, parent, block), children first, and (parent, child, block), parents first."""
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

    def emit(self, source, target, blocks, folds):
        """One message: folded in at once, or from an accumulator, or just received."""
        self.add(source, Send(target, blocks))
        side = self.draw.choice(["left", "right"])
        if not folds:
            self.add(target, Recv(source, blocks))
        elif self.draw.random() < 0.6:
            self.add(target, RecvReduce(source, blocks, side))
        else:
            self.fresh += 1
            name = f"a{self.fresh}"
            self.add(target, Recv(source, blocks, name))
            self.programs[target].append([Reduce(Loc(VALUE, b), Loc(name, b), side) for b in blocks])

    def add(self, rank, op):
        """As a step of its own, or in the last one where that has other blocks only."""
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
    made = RandomAllreduce(seed).schedule()
    verify(made)
    check_tables(made)
    for case in small_cases(made):
        for in_place in (False, True):
            assert [faults(plan) for plan in lower_all(made, case, in_place)] == [[]] * made.p


def test_random_schedules_use_everything():
    """The generator makes staged messages, folds in scratch, accumulators and steps of several messages."""
    rows, steps, ops = [], [], []
    for seed in range(40):
        made = RandomAllreduce(seed).schedule()
        ops += [op for rank in range(made.p) for strand in made.program(rank) for step in strand for op in step]
        for plan in lower_all(made, Case(23, 2, 4, 2), False):
            rows += [(kind, stage >= 0, end - first) for kind, _, first, end, stage in plan.rows.tolist()]
            steps += [b - a for a, b, _ in plan.steps.tolist()]
    assert {(SEND, True, 2), (RECV, True, 3), (FOLD, False, 3)} <= set(rows)
    assert max(steps) > 2
    assert {type(op) for op in ops} == {Send, Recv, RecvReduce, Reduce}


def test_messages_of_one_step_keep_their_order():
    """Two messages between the same ranks: what is folded in first may be received first."""

    def body(p, rank):
        if rank == 0:
            yield RecvReduce(1, (0,)), Recv(1, (1,), "a")
            yield Reduce(Loc(VALUE, 1), Loc("a", 1))
            yield Send(1, (0, 1))
        else:
            yield Send(0, (0,)), Send(0, (1,))
            yield Recv(0, (0, 1))

    made = adhoc("allreduce", body, 2, blocks=2)
    verify(made)
    check_tables(made)


def test_a_schedule_that_reads_its_input_late_is_right_in_place_too():
    """dispatch/execute.py stages such a call, so that the tables of what really runs are the ones to prove."""

    def body(p, rank):
        for i in range(1, p):
            yield Send((rank + i) % p, (0,), INPUT), RecvReduce((rank - i) % p, (0,))

    made = adhoc("allreduce", body, 3)
    verify(made)
    check_tables(made)


@pytest.mark.parametrize("seed", range(20))
def test_random_schedules_with_a_message_dropped_deadlock(seed):
    found = RandomAllreduce(seed)
    messages = [
        (r, i)
        for r, program in enumerate(found.programs)
        for i, step in enumerate(program)
        if not isinstance(step[0], Reduce)
    ]
    if messages:
        rank, step = found.draw.choice(messages)
        del found.programs[rank][step]
        with pytest.raises(VerifyError):
            verify(found.schedule())


# -- scratch ------------------------------------------------------------------------------------------------


def test_scratch_is_used_again():
    """A chain of accumulators, each read once, needs room for two at a time."""

    def body(p, rank):
        last = Loc(INPUT, 0)
        for i in range(6):
            yield Reduce(Loc(f"a{i}", 0), last)
            last = Loc(f"a{i}", 0)

    made = adhoc("allreduce", body, 1)
    verify(made)
    (plan,) = lower_all(made, Case(64, 1, None, 4), False)
    assert plan.scratch_bytes == 2 * 64
    scratch = plan.segments[plan.segments[:, 0] == SCRATCH]
    assert np.unique(scratch[:, 1]).tolist() == [0, 64]
