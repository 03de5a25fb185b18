"""The proof of a schedule: it runs without deadlock or hazard, ends right, and costs what it claims.

play() shows that every message is matched under rendezvous sends; here every rank must end with the
right contributions of every block it owns, each exactly once and, where the operator needs it, in rank
order; and steps and bytes must equal the formulas of the docstring. Lowered tables are proved the same
way by tables.check_tables.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from ..errors import VerifyError
from ..schedules.ir import REST, VALUE, Loc, Local
from ..schedules.schedule import Schedule
from .encodings import Encodings
from .symbolic import Trace, play
from .values import Interval, Value, mask, show

Given = dict[str, Any]


def verify(schedule: Schedule) -> Trace:
    """Prove one schedule and return its trace. Raises VerifyError with coordinates."""
    trace = play(schedule)
    check(schedule, trace)
    return trace


def check(schedule: Schedule, trace: Trace) -> None:
    """Check what a played schedule left and cost. Raises VerifyError with coordinates."""
    _check_result(schedule, trace)
    _check_residual(schedule, trace)
    _check_strands(schedule)
    if schedule.algorithm.direct:
        _check_direct(schedule)
    if schedule.root == 0:
        _check_claims(schedule, trace)
        if schedule.codec is not None:
            _check_encodings(schedule)


def expected_value(schedule: Schedule, rank: int, block: object) -> Value:
    """Return what a block that a rank must end with has to hold."""
    if not schedule.collective.reduces:
        return 1 << schedule.collective.source(block, schedule.root)
    covered = Interval(*schedule.collective.covers(schedule.p, rank))
    return mask(covered) if schedule.commutative else covered


def _check_result(schedule: Schedule, trace: Trace) -> None:
    s = schedule
    for rank in range(s.p):
        for block in s.ends(rank):
            got, expected = trace.state[rank].get(Loc(VALUE, block)), expected_value(s, rank, block)
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


def _check_residual(schedule: Schedule, trace: Trace) -> None:
    """With feedback every rank keeps what the codes of its own block lack."""
    if schedule.parameters.get("feedback") != "yes" or schedule.p == 1:
        return
    for rank in range(schedule.p):
        if Loc(REST, rank) not in trace.state[rank]:
            what = f"what the codes of block {rank} lack"
            raise VerifyError(schedule.title, schedule.p, rank, op="the end", expected=f"to keep {what}", got="nothing")


def _check_strands(schedule: Schedule) -> None:
    """Blocks move in the strands the algorithm declares, on which compositions rely."""
    for rank in range(schedule.p):
        program = schedule.program(rank)
        for s, strand in enumerate(program if len(program) > 1 else ()):
            for index, step in enumerate(strand):
                for op in step:
                    for block in (op.dst.block,) if isinstance(op, Local) else op.blocks:
                        if schedule.strand(block) != s:
                            expected = f"block {block} in strand {schedule.strand(block)}, as declared"
                            raise VerifyError(schedule.title, schedule.p, rank, s, index, op, expected, f"strand {s}")


def _check_direct(schedule: Schedule) -> None:
    """Check that a direct algorithm's ranks handle nothing but what they start or end with."""
    for rank in range(schedule.p):
        own = {*schedule.starts(rank), *schedule.ends(rank)}
        for s, strand in enumerate(schedule.program(rank)):
            for index, step in enumerate(strand):
                for op in step:
                    if not isinstance(op, Local) and not own.issuperset(op.blocks):
                        strange = sorted(set(op.blocks) - own, key=str)[0]
                        expected = "only blocks this rank starts or ends with, as direct=True declares"
                        raise VerifyError(
                            schedule.title, schedule.p, rank, s, index, op, expected, f"block {strange}"
                        )


def measured_bytes(schedule: Schedule, trace: Trace) -> Fraction:
    """Return the most any rank sends or receives, as a share of the vector's n bytes."""
    counts = zip(trace.sent + trace.received, trace.codes_sent + trace.codes_received, strict=True)
    return Fraction(max(blocks + codes * schedule.code_share for blocks, codes in counts), schedule.blocks_of_n)


def _check_claims(schedule: Schedule, trace: Trace) -> None:
    claims, p = schedule.algorithm.claims, schedule.p
    for what, formula, got in (
        ("Steps", claims.steps, Fraction(trace.steps)),
        ("Bytes per rank", claims.bytes_per_rank, measured_bytes(schedule, trace)),
    ):
        if not claims.holds(formula, got, p, **schedule.resolved):
            raise VerifyError(
                algorithm=schedule.title,
                p=p,
                rank=None,
                strand=None,
                step=None,
                op=f"the docstring's {what}",
                expected=f"{formula} = {claims.evaluate(formula, p, **schedule.resolved)}",
                got=str(got),
            )


def _check_encodings(schedule: Schedule) -> None:
    """Check that ranks with the same block have it out of the same codes, and how often contributions are encoded.

    The root of a broadcast keeps what it has.
    """
    claims, played = schedule.algorithm.claims, Encodings(schedule)
    for block in schedule.blocks if not schedule.collective.rooted else ():
        counts = {rank: played.of(rank, block) for rank in range(schedule.p) if block in schedule.ends(rank)}
        odd = [rank for rank in counts if counts[rank] != counts[min(counts)]]
        if odd:
            raise VerifyError(
                algorithm=schedule.title,
                p=schedule.p,
                rank=odd[0],
                op=f"the end of block {block}",
                expected=f"contributions that were encoded as on rank {min(counts)}: "
                f"(rank, times) {counts[min(counts)]}",
                got=str(counts[odd[0]]),
            )
    if not claims.encoded:
        return
    got = played.most()
    if not claims.holds(claims.encoded, Fraction(got), schedule.p, **schedule.resolved):
        raise VerifyError(
            algorithm=schedule.title,
            p=schedule.p,
            op="the docstring's Encoded",
            expected=claims.encoded,
            got=str(got),
        )
