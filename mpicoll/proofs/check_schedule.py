"""Prove a schedule: it ends without deadlock or hazard, gives the right result, and costs what it claims.

execute() shows that every message is matched under rendezvous sends. Here every rank must end with the right
contributions to each of its blocks, each contribution once, and in rank order if the operator needs it. Steps and bytes
must equal the formulas of the docstring. check_plan.check_tables proves the lowered tables in the same way.
"""

from __future__ import annotations

from collections import defaultdict
from fractions import Fraction
from typing import Any

from ..errors import VerifyError
from ..schedules.collectives import Block
from ..schedules.ir import REST, VALUE, Local
from ..schedules.schedule import Schedule
from .encodings import Counts, encodings_of
from .symbolic import Trace, execute
from .values import Interval, Value, mask, show

Given = dict[str, Any]


def verify(schedule: Schedule) -> Trace:
    """Prove one schedule and return its trace. Raises VerifyError with coordinates."""
    trace = execute(schedule)
    check(schedule, trace)
    return trace


def check(schedule: Schedule, trace: Trace) -> None:
    """Check the final state and the cost of an executed schedule. Raises VerifyError with coordinates."""
    _check_result(schedule, trace)
    _check_residual(schedule, trace)
    _check_strands(schedule)
    if schedule.algorithm.direct:
        _check_direct(schedule)
    if schedule.root == 0:
        _check_claims(schedule, trace)
        if schedule.codec is not None:
            _check_encodings(schedule)


def expected_value(schedule: Schedule, rank: int, block: Block) -> Value:
    """Return the value that a block of a rank must have at the end."""
    if not schedule.collective.reduces:
        return 1 << schedule.source(block)
    covered = Interval(*schedule.collective.covers(schedule.p, rank))
    return mask(covered) if schedule.commutative else covered


def _check_result(schedule: Schedule, trace: Trace) -> None:
    s, everyone = schedule, (1 << schedule.p) - 1
    earlier: list[Block] = []
    expected: list[Value] = []
    for rank in range(s.p):
        ends, held = s.ends(rank), trace.memory[rank][VALUE]
        if s.collective.reduces:  # the same for all blocks
            expected = [expected_value(s, rank, None)] * len(ends)
        elif ends != earlier:  # mostly the same for all ranks
            earlier, expected = ends, [expected_value(s, rank, block) for block in ends]
        if (got := [held.get(block) for block in ends]) != expected:
            i = next(i for i in range(len(ends)) if got[i] != expected[i])
            op = f"the end of block {ends[i]}"
            raise VerifyError(s.title, s.p, rank, op=op, expected=show(expected[i]), got=show(got[i]))
        if s.collective.naming == "none" and trace.known[rank] != everyone:
            expected_words, got_words = "to have heard of every rank", f"heard of {show(trace.known[rank])}"
            raise VerifyError(s.title, s.p, rank, op="leaving the barrier", expected=expected_words, got=got_words)


def _check_residual(schedule: Schedule, trace: Trace) -> None:
    """Check that every rank keeps the residual of its own block if the schedule has feedback."""
    if schedule.parameters.get("feedback") != "yes" or schedule.p == 1:
        return
    for rank in range(schedule.p):
        if rank not in trace.memory[rank][REST]:
            what = f"the residual of block {rank}"
            raise VerifyError(schedule.title, schedule.p, rank, op="the end", expected=f"to keep {what}", got="nothing")


def _check_strands(schedule: Schedule) -> None:
    """Check that blocks move in the strands that the algorithm declares; compositions rely on that."""
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
    """Check that the ranks of a direct algorithm handle only blocks that they start or end with."""
    for rank in range(schedule.p):
        own = {*schedule.starts(rank), *schedule.ends(rank)}
        for s, strand in enumerate(schedule.program(rank)):
            for index, step in enumerate(strand):
                for op in step:
                    if not isinstance(op, Local) and not own.issuperset(op.blocks):
                        foreign = sorted(set(op.blocks) - own, key=str)[0]
                        expected = "only blocks this rank starts or ends with, as direct=True declares"
                        raise VerifyError(
                            schedule.title, schedule.p, rank, s, index, op, expected, f"block {foreign}"
                        )


def measured_bytes(schedule: Schedule, trace: Trace) -> Fraction:
    """Return the most any rank sends or receives, as a share of the vector's n bytes."""
    counts = {*zip(trace.sent + trace.received, trace.codes_sent + trace.codes_received, strict=True)}
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
    """Check that all ranks decode a block from the same codes, and check how often contributions are encoded.

    The root of a broadcast keeps its own block, so rooted collectives are left out.
    """
    claims, encodings = schedule.algorithm.claims, encodings_of(schedule)
    by_block: dict[Block, dict[int, Counts]] = defaultdict(dict)
    for rank in range(schedule.p if not schedule.collective.rooted else 0):
        for block in schedule.ends(rank):
            by_block[block][rank] = encodings.of(rank, block)
    for block, counts in by_block.items():
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
    got = encodings.most()
    if not claims.holds(claims.encoded, Fraction(got), schedule.p, **schedule.resolved):
        raise VerifyError(
            algorithm=schedule.title,
            p=schedule.p,
            op="the docstring's Encoded",
            expected=claims.encoded,
            got=str(got),
        )
