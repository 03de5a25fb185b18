"""Blocks with sizes and places of their own: their layout, how they are cut, and that a wrong plan is found."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from unit.every import cases, served

from mpicoll.errors import VerifyError
from mpicoll.plans.lowering import lower
from mpicoll.plans.plan import MAX_MESSAGE, WHOLE, Shares, layout
from mpicoll.proofs import check_plan
from mpicoll.proofs.cases import Spread, uneven
from mpicoll.proofs.check_plan import Case, in_place_forms, lower_all
from mpicoll.proofs.wellformed import faults
from mpicoll.schedules.registry import registered
from mpicoll.schedules.schedule import Schedule, schedule

SHARED = cases(
    *(a for a in registered() if a.collective.naming in ("rank", "pair") and a.collective.name != "reduce_scatter")
)


def test_layout_of_a_root_that_gathers():
    linear = schedule("gather", "linear", 3, root=1)
    placed = layout(linear, Shares((4,), (2, 4, 0), (7,), (9, 1, 0)), 1, False, 1)
    assert [(placed.size(b), placed.output_at(b)) for b in range(3)] == [(2, 9), (4, 1), (0, 0)]
    assert placed.input_at(1) == 7 and placed.largest == 4


def test_layout_of_pairs_is_of_one_rank():
    pairwise = schedule("alltoall", "pairwise", 2)
    placed = layout(pairwise, Shares((5, 6), (7, 6), (0, 10), (20, 30)), 1, False, 1)
    assert [placed.size(b) for b in ((1, 0), (1, 1), (0, 1))] == [5, 6, 7]
    assert (placed.input_at((1, 0)), placed.input_at((1, 1))) == (0, 10)
    assert (placed.output_at((0, 1)), placed.output_at((1, 1))) == (20, 30)
    with pytest.raises(KeyError):
        placed.size((0, 0))  # no rank sent it to this one


def test_all_sizes_may_be_known():
    bruck = schedule("alltoall", "bruck", 2)
    placed = layout(bruck, Shares((3, 4), (2, 4), (0, 3), (0, 2), (1, 2, 3, 4)), 1, False, 1)
    assert [placed.size(b) for b in bruck.blocks] == [1, 2, 3, 4]


def test_layout_of_parts_of_shares():
    """A share is cut where it lies, the larger parts first, and a rank's own share begins its input."""
    segments = schedule("allgather", "circulant_segments", 2, segments=3)
    placed = layout(segments, Shares((4,), (2, 4), (7,), (9, 1), (2, 4)), 1, False, 1)
    assert [placed.size(b) for b in segments.blocks] == [1, 1, 0, 2, 1, 1]
    assert [placed.output_at(b) for b in segments.blocks] == [9, 10, 11, 1, 3, 4]
    assert [placed.input_at(b) for b in segments.starts(1)] == [7, 9, 10]
    equal = layout(segments, 4, 2, False, 1)
    assert [equal.output_at(b) for b in segments.blocks] == [0, 4, 6, 8, 12, 14]
    assert [equal.input_at(b) for b in segments.starts(1)] == [0, 4, 6]


@pytest.mark.parametrize("window", [1, 2, 3, 4, 9, 32])
def test_lanes_of_ranks_that_know_only_their_own(window):
    """Fewer at some than at others; what two share has the same slices, and the same slots."""
    linear, sizes = schedule("gather", "linear", 5), (0, 1, 17, 64, 200)
    plans = lower_all(linear, Case(Spread(sizes, known=False), 1, 8, window), False)
    assert [plan.lanes for plan in plans] == [25, 1, 3, 8, 25]
    for rank in range(1, 5):
        assert plans[rank].slice == (WHOLE if rank == 1 else 8)
        for lane in range(plans[rank].lanes):
            assert lane % plans[rank].window == lane % plans[0].window


def test_a_block_beyond_the_limit_is_cut():
    """Compare with the limit itself, since this rank does not know the lengths of the others' blocks."""
    pairwise, n = schedule("alltoall", "pairwise", 2), 3 * MAX_MESSAGE + 1
    plan = lower(pairwise, 0, Shares((1, n), (1, 2), (0, 1), (0, 1)), 1, chunk_bytes=1 << 40)
    assert (plan.slice, plan.lanes) == (MAX_MESSAGE, 4)
    plan = lower(pairwise, 1, Shares((2, 1), (n, 1), (0, 1), (0, 1)), 1)
    assert (plan.slice, plan.lanes) == (MAX_MESSAGE, 4)


def test_messages_of_many_pairs_stay_below_the_limit():
    """The bound is for any program: of all pairs' blocks, not of one rank's."""
    p, n = 4, MAX_MESSAGE // 10
    regular = lower(schedule("alltoall", "bruck", p), 0, n, 1)
    assert regular.slice == MAX_MESSAGE // p**2
    every = Shares((n,) * p, (n,) * p, (0,) * p, (0,) * p, (n,) * p**2)
    assert lower(schedule("alltoall", "bruck", p), 0, every, 1).slice == MAX_MESSAGE // p**2
    assert lower(schedule("alltoall", "pairwise", p), 0, n, 1).lanes == 1  # one block each


@pytest.mark.parametrize("entry", SHARED)
def test_standing_cases_hold_all_kinds_of_blocks(entry):
    """Empty ones and others, out of order, with gaps; whole and cut; and no more is known than a call would know."""
    schedule = Schedule(entry, served(entry, 4))
    spreads = [case for case in check_plan.cases(schedule) if isinstance(case.counts, Spread)]
    assert {case.chunk_bytes for case in spreads} == {None, 2}
    for case in spreads:
        assert 0 in case.counts.sizes and len(set(case.counts.sizes)) > 3
        assert case.counts.known == (not entry.direct or entry.collective.name == "allgather")
        for shares in (case.of(schedule, rank) for rank in range(schedule.p)):
            for sizes, at in ((shares.sends, shares.send_at), (shares.receives, shares.recv_at)):
                spans = sorted((a, a + n) for a, n in zip(at, sizes) if n)
                assert all(end <= start for (_, end), (start, _) in pairwise(spans))
                if len(spans) > 3:
                    assert list(at) != sorted(at)
                    assert any(end < start for (_, end), (start, _) in pairwise(spans))


@pytest.mark.parametrize("entry", SHARED)
@pytest.mark.parametrize("what", ["place", "size"])
def test_errors_of_one_rank_are_found(entry, what):
    """A block of one rank that its plan has elsewhere, or longer, than the call says."""
    schedule = Schedule(entry, 4)
    case = Case(uneven(schedule, 4), 1, None, 4)
    for in_place in in_place_forms(schedule):
        check_plan.run(schedule, case, in_place)
        plans = lower_all(schedule, case, in_place)
        for rank, plan in enumerate(plans):
            for row in range(len(plan.segments)):
                base, at, length = plan.segments[row].tolist()
                broken = plan.segments.copy()
                broken[row] = (base, at + 1, length) if what == "place" else (base, at, length + 1)
                changed = [*plans[:rank], replace(plan, segments=broken), *plans[rank + 1 :]]
                if not faults(changed[rank]):
                    with pytest.raises(VerifyError):
                        check_plan.run(schedule, case, in_place, changed)
