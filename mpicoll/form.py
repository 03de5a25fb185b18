"""Whether a plan's tables are well formed: what an engine that believes every number would trip over."""

from __future__ import annotations

import numpy as np

from .plan import ALIGN, FOLD, IN, MAX_WINDOW, OUT, RECV, SCRATCH, SEND, WHOLE, Plan


def faults(plan: Plan) -> list[str]:
    """What is wrong with a plan's form, in words; empty where nothing is."""
    found: list[str] = []

    def expect(holds: bool, what: str) -> None:
        if not holds:
            found.append(what)

    expect(consecutive(plan.strands, len(plan.steps)), "strands divide the steps")
    expect(consecutive(plan.steps[:, ::2], len(plan.rows)), "steps divide the rows")
    expect(consecutive(plan.rows[:, 2:4], len(plan.segments)), "rows divide the segments")
    expect(
        bool((plan.steps[:, 1] >= plan.steps[:, 0]).all() and (plan.steps[:, 1] <= plan.steps[:, 2]).all()),
        "what is posted is a part of the step",
    )
    expect(bool(np.isin(plan.rows[:, 0], (SEND, RECV, FOLD)).all()), "kinds")
    expect(bool(np.isin(plan.segments[:, 0], (IN, OUT, SCRATCH)).all()), "bases")
    expect(bool((plan.segments[:, 1] >= 0).all() and (plan.segments[:, 2] > 0).all()), "places and lengths")
    expect(bool((plan.segments[:, 2] % plan.itemsize == 0).all()), "whole elements in every block")
    expect(
        plan.slice == WHOLE if plan.lanes == 1 else plan.slice % plan.itemsize == 0,
        "whole elements in every slice",
    )
    expect(1 <= plan.window <= min(plan.lanes, MAX_WINDOW), "the window")
    expect(plan.lane_scratch % ALIGN == 0, "aligned lanes")
    if not found:
        for row in range(len(plan.rows)):
            expect(sound_row(plan, row), f"row {row}")
        expect(
            all(
                sound_copy(plan, r)
                for first, posts, _ in plan.steps.tolist()
                for r in range(first, posts)
                if plan.rows[r, 0] == FOLD
            ),
            "only the input is copied before the messages of a step are in",
        )
        expect(plan.most_messages == max(map(len, messages(plan)), default=0), "room for the messages of a step")
    return found


def consecutive(table: np.ndarray, total: int) -> bool:
    """Whether (first, end) pairs follow each other and cover 0..total."""
    first, end = table[:, 0].tolist(), table[:, -1].tolist()
    return [0, *end] == [*first, total] and all(a <= b for a, b in zip(first, end))


def messages(plan: Plan) -> list[list[int]]:
    """The rows of each step that are messages."""
    return [[r for r in range(first, posts) if plan.rows[r, 0] != FOLD] for first, posts, _ in plan.steps.tolist()]


def sound_copy(plan: Plan, row: int) -> bool:
    """Whether a row copies a piece of the input to the output."""
    first, end = plan.rows[row, 2:4]
    return plan.segments[first:end, 0].tolist() == [OUT, IN]


def sound_row(plan: Plan, row: int) -> bool:
    """Whether one row's segments are what its kind needs, within a lane's scratch."""
    kind, _, first, end, stage = plan.rows[row].tolist()
    segments = plan.segments[first:end].tolist()
    whole = [min(length, plan.slice) for _, _, length in segments]
    within = all(base != SCRATCH or at + n <= plan.lane_scratch for (base, at, _), n in zip(segments, whole))
    if kind == FOLD:
        to, *operands = segments or [[]]
        late = [x for x in operands[2:] if x == to]  # overwritten only when all else is folded
        return within and len(operands) > 0 and len(set(whole)) == 1 and (not late or operands[0][0] == SCRATCH)
    if len(segments) < 2:
        return within and stage == -1
    if stage < 0 or stage + sum(whole) > plan.lane_scratch:
        return False
    at = [stage + sum(whole[:i]) for i in range(len(whole))]
    return within and (kind == SEND or [s[:2] for s in segments] == [[SCRATCH, a] for a in at])
