"""Check that a plan's tables are well formed. Engines check nothing: a wrong number would corrupt memory."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..plans.plan import ALIGN, CODED, IN, MAX_WINDOW, OUT, RECV, REDUCE, REDUCE_SCALE, SCRATCH, SEND, WHOLE, Plan


def faults(plan: Plan) -> list[str]:
    """Return the rules that a plan's tables break, in words; empty if the plan is well formed."""
    violations: list[str] = []
    rows, segments, steps = plan.rows.tolist(), plan.segments.tolist(), plan.steps.tolist()

    def expect(holds: bool, what: str) -> None:
        if not holds:
            violations.append(what)

    expect(consecutive(plan.strands.tolist(), len(steps)), "strands divide the steps")
    expect(consecutive([(first, end) for first, _, end in steps], len(rows)), "steps divide the rows")
    expect(consecutive([row[2:4] for row in rows], len(segments)), "rows divide the segments")
    expect(all(first <= posts <= end for first, posts, end in steps), "what is posted is a part of the step")
    expect(all(row[0] in (SEND, RECV, REDUCE, REDUCE_SCALE) for row in rows), "kinds")
    expect(all(base in (IN, OUT, SCRATCH, CODED) for base, _, _ in segments), "bases")
    expect(all(at >= 0 and length > 0 for _, at, length in segments), "places and lengths")
    plain = [length for base, _, length in segments if base != CODED]
    expect(all(length % plan.itemsize == 0 for length in plain), "whole elements in every block")
    expect(
        plan.slice == WHOLE if plan.lanes == 1 else plan.slice % (plan.itemsize * plan.group) == 0,
        "whole elements in every slice",
    )
    expect(1 <= plan.window <= min(plan.lanes, MAX_WINDOW), "the window")
    expect(plan.lane_scratch % ALIGN == 0, "aligned lanes")
    written = sorted({(at, length) for base, at, length in segments if base == OUT}) if plan.lanes > 1 else []
    expect(all(a + n <= b for (a, n), (b, _) in pairwise(written)), "blocks apart, so that lanes are")
    if not violations:
        for number, row in enumerate(rows):
            expect(sound_row(plan, row, segments[row[2] : row[3]]), f"row {number}")
        expect(
            all(
                row[0] == REDUCE and [base for base, _, _ in segments[row[2] : row[3]]] == [OUT, IN]
                for first, posts, _ in steps
                for row in rows[first:posts]
                if row[0] in (REDUCE, REDUCE_SCALE)
            ),
            "only the input is copied before the messages of a step are in",
        )
        expect(plan.most_messages == max(map(len, messages(plan)), default=0), "room for the messages of a step")
        expect(_strands_are_apart(plan, rows, segments, steps), "strands apart in the output, as they do not wait")
    return violations


def consecutive(pairs: Sequence[Sequence[int]], total: int) -> bool:
    """Return whether (first, end) pairs follow each other and cover 0..total."""
    return [0, *(end for _, end in pairs)] == [*(first for first, _ in pairs), total] and all(a <= b for a, b in pairs)


def _strands_are_apart(
    plan: Plan, rows: Sequence[Sequence[int]], segments: Sequence[Sequence[int]], steps: Sequence[Sequence[int]]
) -> bool:
    """Return whether no strand touches a byte of the output that another strand writes."""
    if len(plan.strands) < 2:
        return True
    used: set[tuple[int, int, int, bool]] = set()  # strand, first byte, end, and whether it writes there
    for strand, (first, end) in enumerate(plan.strands.tolist()):
        for kind, _, begin, stop, _ in rows[steps[first][0] : steps[end - 1][2]] if first < end else ():
            written = range(begin, stop if kind == RECV else begin if kind == SEND else begin + 1)
            for i in range(begin, stop):
                base, at, length = segments[i]
                if base == OUT:
                    used.add((strand, at, at + length, i in written))
    writes = [(strand, at, end) for strand, at, end, is_written in used if is_written]
    return not any(s != t and a < d and c < b for s, a, b in writes for t, c, d, _ in used)


def messages(plan: Plan) -> list[list[int]]:
    """Return the rows of each step that are messages."""
    kinds = plan.rows[:, 0].tolist()
    return [[r for r in range(first, posts) if kinds[r] in (SEND, RECV)] for first, posts, _ in plan.steps.tolist()]


def sound_row(plan: Plan, row: Sequence[int], segments: Sequence[Sequence[int]]) -> bool:
    """Return whether the segments of a row suit its kind and fit into a lane's scratch."""
    kind, stage = row[0], row[4]
    if len(segments) == 1 and segments[0][0] in (OUT, SCRATCH) and kind in (SEND, RECV):  # most rows
        (only,) = segments
        return stage == -1 and (only[0] == OUT or only[1] + min(only[2], plan.slice) <= plan.lane_scratch)
    whole = [min(length, plan.code_slice if base == CODED else plan.slice) for base, _, length in segments]
    within = all(base < SCRATCH or at + n <= plan.lane_scratch for (base, at, _), n in zip(segments, whole))
    if kind in (REDUCE, REDUCE_SCALE):
        to, *operands = segments or [[]]
        keeps_residual = plan.group_bytes > 0 and len(operands) == 1  # an encoding may write its residual to the input
        within = within and (to[:1] != [IN] or keeps_residual)
        late = [x for x in operands[2:] if x == to]  # overwritten only after all others are reduced
        by_strips = any(base == CODED for base, _, _ in segments)  # each strip is read before it is written
        sound = not late or by_strips or operands[0][0] == SCRATCH
        return within and len(operands) > 0 and _alike(plan, segments, whole) and sound
    within = within and (kind == SEND or all(base != IN for base, _, _ in segments))
    if len(segments) < 2:
        return within and stage == -1
    if stage < 0 or stage + sum(whole) > plan.lane_scratch:
        return False
    at = [stage + sum(whole[:i]) for i in range(len(whole))]
    return within and (kind == SEND or [(s[0] >= SCRATCH, s[1]) for s in segments] == [(True, a) for a in at])


def _alike(plan: Plan, segments: Sequence[Sequence[int]], whole: Sequence[int]) -> bool:
    """Return whether all segments of a reduction have the same bytes, and its codes too.

    Codes tell the number of their elements only if each element is encoded on its own.
    """
    plain = {n for (base, _, _), n in zip(segments, whole) if base != CODED}
    codes = {n for (base, _, _), n in zip(segments, whole) if base == CODED}
    return len(plain) <= 1 and len(codes) <= 1 and (bool(plain) or plan.group == 1)
