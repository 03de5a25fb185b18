"""Plans of averages: who divides what and when, and what the proof says of plans that do otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from unit.every import AVERAGED
from unit.mutants import adhoc, changed, faults, of_ranks, refused_tables

from mpicoll.errors import VerifyError
from mpicoll.plans.plan import IN, OUT, REDUCE, REDUCE_SCALE, SCRATCH
from mpicoll.proofs import check_plan
from mpicoll.proofs.check_plan import Case, check_tables, lower_all
from mpicoll.schedules.ir import VALUE, Loc, Local, Recv, RecvReduce, Reduce, Send
from mpicoll.schedules.registry import find, registered
from mpicoll.schedules.schedule import Schedule, schedule


def rows_of(plan, kind):
    """Return the segments of each row of a kind."""
    return [plan.segments[a:b].tolist() for k, _, a, b, _ in plan.rows.tolist() if k == kind]


def divided(plan):
    """Return the number of bytes that a rank divides."""
    return sum(segments[0][2] for segments in rows_of(plan, REDUCE_SCALE))


# -- where divisions are ------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2, 3, 4, 7])
def test_the_dividing_rank(p):
    """As much as is kept where sums travel; of what travels divided, each block once."""
    count = 12 * p
    case = Case(count, 8, None, 4, averaged=True)
    ring = [divided(plan) for plan in lower_all(schedule("allreduce", "ring", p), case, False)]
    assert ring == [count // p * 8] * p
    tree = [divided(plan) for plan in lower_all(schedule("allreduce", "tree", p), case, False)]
    assert tree == [count * 8] + [0] * (p - 1)
    for late in ("naive", "reduce_bcast"):
        assert [divided(plan) for plan in lower_all(schedule("allreduce", late, p), case, False)] == [count * 8] * p
    at_root = [divided(plan) for plan in lower_all(schedule("reduce", "binomial", p, root=1), case, False)]
    assert at_root == [count * 8 * (rank == 1) for rank in range(p)]


@pytest.mark.parametrize("entry", AVERAGED)
@pytest.mark.parametrize("p", [2, 3, 5, 8])
def test_the_last_reduction_divides(entry, p):
    """No rank goes over its results once more, but those of what does not finish where it is kept.

    Of these a rank divides apart what it does not reduce in the last step that uses it.
    """

    def touched(op):
        return {op.dst, op.src} if isinstance(op, Local) else {Loc(op.buffer, block) for block in op.blocks}

    def reduced_last(rank, block):
        steps = [step for strand in scheduled.program(rank) for step in strand]
        used = [step for step in steps if any(Loc(VALUE, block) in touched(op) for op in step)]
        return any(isinstance(op, RecvReduce) and Loc(VALUE, block) in touched(op) for op in used[-1])

    scheduled = Schedule(entry, p)
    plans = lower_all(scheduled, Case(40, 8, 16, 2, averaged=True), False)
    alone = {rank for rank, plan in enumerate(plans) if any(len(s) == 2 for s in rows_of(plan, REDUCE_SCALE))}
    late = {rank for rank in range(p) if not all(reduced_last(rank, block) for block in scheduled.ends(rank))}
    assert alone == (set() if entry.divides_where_owned(p, scheduled.resolved) else late)


@pytest.mark.parametrize("entry", AVERAGED)
def test_other_plans_know_nothing_of_it(entry):
    for p in (1, 2, 5):
        case = Case(40, 8, 16, 2)
        for plain, averaging in zip(*(lower_all(Schedule(entry, p), replace(case, averaged=a), False) for a in (0, 1))):
            assert not rows_of(plain, REDUCE_SCALE)
            assert p > 1 or np.array_equal(plain.rows, averaging.rows), "alone there is nothing to divide"
            assert plain.scratch_bytes == averaging.scratch_bytes


def test_rows_for_several_blocks():
    """Late, neighbours that fall due together are divided in one go: those sent last, and those received last."""
    undivided = replace(find("allreduce", "rabenseifner"), divides_at_owner=False)
    (*_, plan) = lower_all(Schedule(undivided, 4), Case(16, 8, None, 4, averaged=True), False)
    assert rows_of(plan, REDUCE_SCALE) == [[[OUT, 64, 64]] * 2, [[OUT, 0, 64]] * 2]


def test_neighbours_of_which_one_is_due():
    """Two blocks reduced in one step, one of them for the last time, stay two rows."""

    scheduled = of_ranks(
        "allreduce",
        [RecvReduce(1, (0, 1)), RecvReduce(2, (1,)), (Send(1, (0, 1)), Send(2, (0, 1)))],
        [RecvReduce(2, (0,)), Send(0, (0, 1)), Recv(0, (0, 1))],
        [Send(1, (0,)), Send(0, (1,)), Recv(0, (0, 1))],
        blocks=2,
        divides_at_owner=True,
    )
    check_tables(scheduled)
    plan = lower_all(scheduled, Case(4, 8, None, 4, averaged=True), False)[0]
    assert (len(rows_of(plan, REDUCE)), len(rows_of(plan, REDUCE_SCALE))) == (1, 2)


def test_copied_blocks_are_divided_before_the_copy():
    scheduled = of_ranks(
        "allreduce",
        [RecvReduce(1, (0, 1, 2)), Send(1, (2, 0, 1))],
        [Send(0, (0, 1, 2)), Recv(0, (2, 0, 1))],
        blocks=3,
    )
    check_tables(scheduled)
    (_, plan) = lower_all(scheduled, Case(6, 8, None, 4, averaged=True), False)
    assert rows_of(plan, REDUCE_SCALE) == [[[OUT, 32, 16], [SCRATCH, 0, 16]], [[OUT, 0, 32], [SCRATCH, 16, 32]]]


# -- schedules in which dividing early would be wrong --------------------------------------------------------


def handed_over(p, rank):
    """Rank 1 completes the sum, then rank 0 sends it to every rank, rank 1 too."""
    if rank == 1:
        yield tuple(RecvReduce(peer, (0,)) for peer in range(p) if peer != 1)
        yield Send(0, (0,))
        yield Recv(0, (0,))
    elif rank == 0:
        yield Send(1, (0,))
        yield Recv(1, (0,))
        yield tuple(Send(peer, (0,)) for peer in range(1, p))
    else:
        yield Send(1, (0,))
        yield Recv(0, (0,))


@pytest.mark.parametrize("p", [2, 3, 5])
def test_an_algorithm_that_declares_nothing_is_right(p):
    check_tables(adhoc("allreduce", handed_over, p))


@pytest.mark.parametrize("p", [2, 3, 5])
def test_one_that_declares_falsely_is_found_out(p):
    with pytest.raises(VerifyError, match="block 0 whole"):
        check_tables(adhoc("allreduce", handed_over, p, divides_at_owner=True))


def test_reductions_that_complete_blocks_for_others_do_not_divide():
    """Ranks that recursive halving folds away get their block from a neighbour that does not keep it."""
    entry = replace(find("reduce_scatter", "recursive_halving"), divides_at_owner=True)
    check_tables(Schedule(entry, 4))
    with pytest.raises(VerifyError, match="averaged=True"):
        check_tables(Schedule(entry, 3))


@pytest.mark.parametrize("p", [2, 3, 4])
def test_division_that_depends_on_parameters(p):
    """Divide at the root if trees reduce to it, elsewhere if a reduction gathers. Up to 4 ranks all is proved."""
    by_chain = lambda p, reduce, bcast: reduce.entry.name == "chain"
    trees = replace(find("allreduce", "reduce_bcast"), divides_at_owner=by_chain)
    for reduce, divides_at_owner in (("chain", True), ("rabenseifner", False)):
        scheduled = Schedule(trees, p, reduce=reduce)
        assert trees.divides_where_owned(p, scheduled.resolved) is divides_at_owner
        check_tables(scheduled)
    falsely = Schedule(replace(trees, divides_at_owner=True), p, reduce="rabenseifner")
    with pytest.raises(VerifyError, match="averaged=True"):
        check_tables(falsely)


# -- broken plans -------------------------------------------------------------------------------------------

RING = schedule("allreduce", "ring", 3)
CHUNKED = Case(17, 2, 4, 2, averaged=True)


def of_kind(plan, kind):
    """Return the rows of a kind."""
    return np.flatnonzero(plan.rows[:, 0] == kind)


def early(rank, plan):
    """Return a plan in which a reduction before the last divides."""
    return changed(plan, "rows", (of_kind(plan, REDUCE)[0], 0), REDUCE_SCALE) if rank == 1 else plan


def never(rank, plan):
    """Return a plan whose last reduction does not divide."""
    return changed(plan, "rows", (of_kind(plan, REDUCE_SCALE)[0], 0), REDUCE) if rank == 2 else plan


def twice(rank, plan):
    """Return a plan with a row copied, so that it reads the whole sum as its own first operand."""
    if rank:
        return plan
    row = of_kind(plan, REDUCE_SCALE)[0]
    a, b = plan.rows[row, 2:4]
    segments = np.concatenate([plan.segments[:b], plan.segments[[a, a]], plan.segments[b:]])
    rows = np.insert(plan.rows, row + 1, [REDUCE_SCALE, 0, b, b + 2, -1], axis=0)
    rows[row + 2 :, 2:4] += 2
    return replace(plan, rows=rows, segments=segments, steps=plan.steps + (plan.steps > row))


def late(rank, plan):
    """Return an undivided plan for all ranks but rank 0: every rank divides values that arrive divided."""
    undivided = Schedule(replace(RING.algorithm, divides_at_owner=False), 3)
    return lower_all(undivided, CHUNKED, False)[rank] if rank else plan


ONCE = "to divide once, when all contributions are in"


@pytest.mark.parametrize(
    ("change", "where", "expected"),
    [
        (early, (1, 0, 0), ONCE),
        (never, (0, None, None), "block 2 whole"),
        (twice, (0, 0, 1), ONCE),
        (late, (2, 0, 3), ONCE),
    ],
)
def test_wrong_divisions_are_found(change, where, expected):
    error = refused_tables(RING, CHUNKED, change)
    assert ((error.rank, error.strand, error.step), error.expected) == (where, expected)


def test_a_division_before_the_messages_are_in():
    """A copy of the input may be made then, a division may not: nothing is complete yet."""
    ring = schedule("allreduce", "ring", 1)
    (plan,) = lower_all(ring, Case(4, 2, None, 4), False)
    assert rows_of(plan, REDUCE) == [[[OUT, 0, 8], [IN, 0, 8]]]
    assert faults(plan) == []
    assert faults(changed(plan, "rows", (0, 0), REDUCE_SCALE)) == [
        "only the input is copied before the messages of a step are in"
    ]


def test_scans_do_not_average():
    assert not any(check_plan.averages(Schedule(a, 3)) for a in registered() if a.collective.name in ("scan", "exscan"))
    assert not check_plan.averages(schedule("bcast", "chain", 3))
    assert not check_plan.averages(schedule("reduce", "chain", 3, root=1, commutative=False)), "another program"
    assert check_plan.averages(schedule("reduce", "chain", 3, root=1))


def test_a_result_read_in_the_step_that_writes_it():
    """Late, what reads a sum in the step that makes it must get the sum: the division comes after it."""

    scheduled = of_ranks(
        "allreduce",
        [(RecvReduce(1, (0,)), Reduce(Loc("onward", 0), Loc(VALUE, 0))), Send(1, (0,), "onward")],
        [Send(0, (0,)), Recv(0, (0,))],
    )
    check_tables(scheduled)
    plan = lower_all(scheduled, Case(3, 2, None, 4, averaged=True), False)[0]
    assert [len(s) for s in rows_of(plan, REDUCE_SCALE)] == [2]
