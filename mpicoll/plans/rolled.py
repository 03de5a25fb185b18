"""Roll a plan into the form that engines run, in which steps that repeat with a stride are a loop.

The steps of a ring differ by constants: each sends to the same peer, from an offset that grows by a fixed stride. Such
steps become a loop: a body of one or two steps, and a number of turns. So the tables of a ring are as long for 65,536
ranks as for 8. `unrolled` is the inverse of `rolled`.

Tables (int64), with columns beside those of a plan:
    rows     kind, peer, first segment, end segment, stage, stride of the peer per turn
    segments base, offset, length, stride of the offset per turn
    steps    first row, end of the rows to post, end row, steps of the body, turns
The last step of a body has the number of turns: 1 for a step outside loops. The other steps of a body have 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from .plan import RECV, Plan, PlanTables, add_stride_column

MAX_BODY = 2  # steps of a body: some programs receive in one step and forward in the next
MIN_TURNS = 3  # of a loop
MIN_STEPS = 8  # of a plan that is searched for loops
PEER_STRIDE, OFFSET_STRIDE = 5, 3  # columns of rows and of segments
BODY, TURNS = 3, 4  # columns of steps
_ODD = 0x9E3779B97F4A7C15  # its powers are weights, so that a sum depends on the order of its terms


@dataclass(frozen=True, eq=False)
class RolledPlan(PlanTables):
    """A plan in the form that engines run."""

    def number(self, strand: int, step: int, turn: int) -> int:
        """Return the index in its strand that a step in a turn has in the unrolled plan."""
        first, before = int(self.strands[strand, 0]), 0
        at = first + int(self.steps[first, BODY]) - 1
        while at < step:  # at is the last step of a body
            before += int(self.steps[at, BODY] * self.steps[at, TURNS])
            at += int(self.steps[at + 1, BODY])
        body = int(self.steps[at, BODY])
        return before + turn * body + step - (at - body + 1)

    @property
    def all_rows(self) -> int:
        """Return the number of rows of the unrolled plan."""
        return int(self._turns_of_rows.sum())

    @cached_property
    def received_bytes(self) -> int:
        """Return the bytes that this rank receives in all chunks."""
        received = np.flatnonzero(self.rows[:, 0] == RECV)
        first, end = self.rows[received, 2], self.rows[received, 3]
        lengths = np.append(0, np.cumsum(self.segments[:, 2]))
        return int(((lengths[end] - lengths[first]) * self._turns_of_rows[received]).sum())

    @property
    def _turns_of_rows(self) -> np.ndarray:
        """Return how often each row occurs in the unrolled plan."""
        last = np.flatnonzero(self.steps[:, TURNS])
        turns = np.repeat(self.steps[last, TURNS], self.steps[last, BODY])
        of_rows: np.ndarray = np.repeat(turns, self.steps[:, 2] - self.steps[:, 0])
        return of_rows


def rolled(plan: Plan) -> RolledPlan:
    """Return the form of a plan that engines run."""
    if len(plan.steps) >= MIN_STEPS:
        loops = _loops(plan)
        if len(loops) < len(plan.steps):
            rolled_plan = _rolled(plan, np.array(loops, np.int64))
            if equal(unrolled(rolled_plan), plan):  # otherwise two fingerprints were equal by chance
                return rolled_plan
    tables = add_stride_column(plan.rows), add_stride_column(plan.segments), add_loop_columns(plan.steps)
    return RolledPlan(*tables, plan.strands, *plan.scalars)


def add_loop_columns(steps: np.ndarray) -> np.ndarray:
    """Return the steps of a plan with the columns BODY and TURNS, all 1."""
    return np.hstack([steps, np.ones((len(steps), 2), np.int64)])


def following(step: int, turn: int, body: int, turns: int) -> tuple[int, int]:
    """Return the step and turn after a step and its turn; body and turns are columns of the step."""
    if turn + 1 < turns:
        return step - body + 1, turn + 1
    return step + 1, turn if turns == 0 else 0


def unrolled(plan: RolledPlan) -> Plan:
    """Return the plan with all loops unrolled."""
    if (plan.steps[:, TURNS] == 1).all() and (plan.steps[:, BODY] == 1).all():  # no loops
        return Plan(plan.rows[:, :5], plan.segments[:, :3], plan.steps[:, :3], plan.strands, *plan.scalars)
    last = np.flatnonzero(plan.steps[:, TURNS])
    body, turns = plan.steps[last, BODY], plan.steps[last, TURNS]
    length, nth = np.repeat(body, body * turns), _nth(body * turns)
    turn = nth // length
    rows, segments, steps, at = _select_steps(plan, np.repeat(last - body + 1, body * turns) + nth % length)
    turn_of_row = turn[at.step]
    rows[:, 1] += plan.rows[at.row, PEER_STRIDE] * turn_of_row
    segments[:, 1] += plan.segments[at.segment, OFFSET_STRIDE] * turn_of_row[at.owner]
    begins = np.append(0, np.cumsum(body * turns))
    strands = begins[np.searchsorted(last - body + 1, plan.strands)]
    return Plan(rows, segments, steps, strands, *plan.scalars)


def equal(plan: Plan, other: Plan) -> bool:
    """Return whether two plans have equal tables and scalars."""
    tables = zip(plan.tables, other.tables, strict=True)
    return plan.scalars == other.scalars and all(np.array_equal(a, b) for a, b in tables)


def _rolled(plan: Plan, loops: np.ndarray) -> RolledPlan:
    """Return a plan with these loops, (first step, steps of the body, turns), which cover all its steps."""
    first, body, turns = loops.T
    nth, loop = _nth(body), np.repeat(np.arange(len(loops)), body)
    step = first[loop] + nth
    rows, segments, steps, _ = _select_steps(plan, step)
    _, _, _, later = _select_steps(plan, step + (body * (turns > 1))[loop])
    peers = plan.rows[later.row, 1] - rows[:, 1]
    offsets = plan.segments[later.segment, 1] - segments[:, 1]
    ends = nth == body[loop] - 1
    steps = np.column_stack([steps, body[loop], np.where(ends, turns[loop], 0)])
    strands = np.searchsorted(step, plan.strands)
    return RolledPlan(
        np.column_stack([rows, peers]), np.column_stack([segments, offsets]), steps, strands, *plan.scalars
    )


class _Selection(NamedTuple):
    """The selected rows and segments: for each row its step, for each segment its row, by index in the selection."""

    row: np.ndarray
    step: np.ndarray
    segment: np.ndarray
    owner: np.ndarray


def _select_steps(plan: PlanTables, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, _Selection]:
    """Return the rows, segments and steps (with the columns of a plan) of selected steps, and their origin."""
    steps = plan.steps[at]
    counts = steps[:, 2] - steps[:, 0]
    row = _ranges(steps[:, 0], counts)
    rows = plan.rows[row, :5]
    widths = rows[:, 3] - rows[:, 2]
    segment = _ranges(rows[:, 2], widths)
    rows[:, 3] = np.cumsum(widths)
    rows[:, 2] = rows[:, 3] - widths
    ends = np.cumsum(counts)
    begins = ends - counts
    new_steps = np.column_stack([begins, begins + steps[:, 1] - steps[:, 0], ends])
    which = _Selection(row, np.repeat(np.arange(len(at)), counts), segment, np.repeat(np.arange(len(row)), widths))
    return rows, plan.segments[segment, :3], new_steps, which


def _ranges(first: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return counts[0] numbers from first[0] on, then counts[1] from first[1] on, and so forth."""
    numbers: np.ndarray = _nth(counts) + np.repeat(first, counts)
    return numbers


def _nth(counts: np.ndarray) -> np.ndarray:
    """Return 0, 1, 2 … for each count.

    >>> _nth(np.array([3, 1, 2])).tolist()
    [0, 1, 2, 0, 0, 1]
    """
    nth: np.ndarray = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return nth


# -- finding loops ------------------------------------------------------------------------------------------


def _loops(plan: Plan) -> list[tuple[int, int, int]]:
    """Return loops, (first step, steps of the body, turns), that cover all steps of a plan in order."""
    loops: list[tuple[int, int, int]] = []
    shapes, positions = _fingerprints(plan)
    for first, end in plan.strands.tolist():
        fingerprints = shapes[first:end], positions[first:end]
        steady_lengths = {body: _steady_lengths(*fingerprints, body) for body in range(1, MAX_BODY + 1)}
        at = first
        while at < end:
            turns = {body: int(steps[at - first]) // body for body, steps in steady_lengths.items()}
            body = max(turns, key=lambda body: (turns[body] * body if turns[body] >= MIN_TURNS else 0, -body))
            loops.append((at, body, turns[body]) if turns[body] >= MIN_TURNS else (at, 1, 1))
            at += loops[-1][1] * loops[-1][2]
    return loops


def _steady_lengths(shapes: np.ndarray, positions: np.ndarray, body: int) -> np.ndarray:
    """Return for each step of a strand how many steps from there on could be turns of a body that begins there."""
    run_lengths = np.full(len(shapes), body)
    if len(shapes) > 2 * body:
        same, strides = shapes[body:] == shapes[:-body], positions[body:] - positions[:-body]
        holds = same[body:] & same[:-body] & (strides[body:] == strides[:-body])  # up to the step two turns on
        breaks = np.append(np.flatnonzero(~holds), len(holds))
        at = np.arange(len(holds))
        lasts = breaks[np.searchsorted(breaks, at)] - at
        run_lengths[: len(holds)] = np.where(lasts, lasts + 2 * body, body)
    return run_lengths


def _fingerprints(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return two fingerprints of each step: of its kinds and lengths, and of its peers and offsets.

    The second is a weighted sum of peers and offsets, modulo 2**64. So if turns have constant strides, this fingerprint
    grows by a constant, too.
    """
    rows, segments = plan.rows.view(np.uint64), plan.segments.view(np.uint64)
    widths = plan.rows[:, 3] - plan.rows[:, 2]
    weights = _weights(widths)
    pieces = segments[:, 0] + 3 * segments[:, 2], segments[:, 1]
    segment_shapes, offsets = (_range_sums(weights * piece, plan.rows[:, 2], plan.rows[:, 3]) for piece in pieces)
    counts, posts = plan.steps[:, 2] - plan.steps[:, 0], plan.steps[:, 1] - plan.steps[:, 0]
    weights = _weights(counts)
    row_shapes = rows[:, 0] + 5 * rows[:, 4] + 7 * widths.view(np.uint64) + 11 * segment_shapes
    row_positions = rows[:, 1] + 13 * offsets
    shapes, positions = (
        _range_sums(weights * values, plan.steps[:, 0], plan.steps[:, 2]) for values in (row_shapes, row_positions)
    )
    return shapes + 17 * posts.view(np.uint64) + 19 * counts.view(np.uint64), positions


def _weights(counts: np.ndarray) -> np.ndarray:
    """Return the first powers of _ODD, modulo 2**64, for each count."""
    powers: np.ndarray = np.cumprod(np.full(counts.max(initial=0) + 1, _ODD, np.uint64))[_nth(counts)]
    return powers


def _range_sums(values: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the sum of values[first:end] for each range."""
    sums = np.append(np.uint64(0), np.cumsum(values))
    range_sums: np.ndarray = sums[end] - sums[first]
    return range_sums
