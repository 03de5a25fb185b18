"""The proof of a schedule: it runs without deadlock or hazard, ends right, and costs what it claims.

play() shows that every message is matched under rendezvous sends; here every rank must end with the
right contributions of every block it owns, each exactly once and, where the operator needs it, in rank
order; and steps and bytes must equal the formulas of the docstring. Lowered tables are proved the same
way by tables.check_tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache

from .errors import VerifyError
from .ir import VALUE, Loc
from .play import Interval, Trace, Value, play, show
from .schedule import Algorithm, Schedule, registered


def verify(schedule: Schedule) -> Trace:
    """Prove one schedule and return its trace. Raises VerifyError with coordinates."""
    trace = play(schedule)
    _check_result(schedule, trace)
    if not schedule.parameters and schedule.root == 0:
        _check_claims(schedule, trace)
    return trace


def _expected(schedule: Schedule, block: object) -> Value:
    p = schedule.p
    if not schedule.collective.reduces:
        return 1 << schedule.collective.source(block, schedule.root)
    return (1 << p) - 1 if schedule.commutative else Interval(0, p)


def _check_result(schedule: Schedule, trace: Trace) -> None:
    s = schedule
    for rank in range(s.p):
        for block in s.ends(rank):
            got, expected = trace.state[rank].get(Loc(VALUE, block)), _expected(s, block)
            if got != expected:
                raise VerifyError(
                    s.title, s.p, rank, op=f"the end of block {block}", expected=show(expected), got=show(got)
                )
        if s.collective.naming == "none" and trace.known[rank] != (1 << s.p) - 1:
            raise VerifyError(
                s.title,
                s.p,
                rank,
                op="leaving the barrier",
                expected="to have heard of every rank",
                got=f"heard of {show(trace.known[rank])}",
            )


def measured_bytes(schedule: Schedule, trace: Trace) -> Fraction:
    """The most any rank sends or receives, as a share of the vector's n bytes."""
    k = schedule.p if schedule.collective.naming == "pair" else max(1, len(schedule.blocks))
    return Fraction(max(trace.sent + trace.received), k)


def _check_claims(schedule: Schedule, trace: Trace) -> None:
    claims, p = schedule.algorithm.claims, schedule.p
    for what, formula, got in (
        ("Steps", claims.steps, Fraction(trace.steps)),
        ("Bytes per rank", claims.bytes_per_rank, measured_bytes(schedule, trace)),
    ):
        if claims.evaluate(formula, p) != got:
            raise VerifyError(
                algorithm=schedule.title,
                p=p,
                rank=None,
                strand=None,
                step=None,
                op=f"the docstring's {what}",
                expected=f"{formula} = {claims.evaluate(formula, p)}",
                got=str(got),
            )


class _Remembered(Schedule):
    """A schedule that makes each rank's program, starts and ends once: a proof asks for them many times."""

    def __init__(self, entry: Algorithm, p: int, root: int = 0, *, commutative: bool = True) -> None:
        super().__init__(entry, p, root, commutative=commutative)
        self.program = cache(super().program)  # type: ignore[method-assign]
        self.starts = cache(super().starts)  # type: ignore[method-assign]
        self.ends = cache(super().ends)  # type: ignore[method-assign]


def schedules(entry: Algorithm, p: int) -> Iterator[Schedule]:
    """All an algorithm is proved on at p ranks: every root, and rank order kept where it claims to.

    Where the operator's commuting makes no other program, the proof that order is kept is the proof of both.
    """
    for root in range(p) if entry.collective.rooted else (0,):
        if entry.keeps_order():
            yield _Remembered(entry, p, root, commutative=False)
        if root or not entry.keeps_order():
            yield _Remembered(entry, p, root)


def prove(entry: Algorithm, p: int) -> int:
    """Prove an algorithm at p ranks, schedules and lowered tables; returns how many of each were proved."""
    from .tables import check_scratch, check_tables

    count = 0
    for schedule in schedules(entry, p):
        verify(schedule)
        check_tables(schedule)
        if count == 0:  # root 0, as the docstring's formulas say
            check_scratch(schedule)
        count += 1
    return count


def selected(collective: str | None = None, name: str | None = None) -> list[Algorithm]:
    """The registered algorithms, all or of one collective or just one."""
    from .schedule import algorithms, find

    if collective is not None and name is not None:
        return [find(collective, name)]
    if collective is not None and collective not in algorithms():
        find(collective, "")
    return [a for a in registered() if collective in (None, a.collective.name)]
