"""Record one schedule for the page: its messages, what every step writes, and the fault that a proof reports.

The page executes nothing: it shows the values of the symbolic execution. The state after step t is every write whose
step ended at t or before, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...errors import VerifyError
from ...proofs.check_schedule import check, expected_value, measured_bytes
from ...proofs.symbolic import Message
from ...proofs.values import Interval, Value, contributors
from ...schedules.collectives import Block
from ...schedules.ir import CODED, INPUT, VALUE, Loc, Send
from ...schedules.liveness import Place
from ...schedules.schedule import Schedule
from ..picture import Got, Recorder, headline, names, ranks, share
from .timing import Clock, StepId, times

if TYPE_CHECKING:
    from .recording import Recording

REDUCED, DONE = 1, 2  # flags of a write
REDUCES, ENCODED = 1, 2  # flags of a message
HEARD = "heard of"  # the buffer that stands for what a barrier's ranks know
Record = dict[str, Any]


@dataclass
class Words:
    """Texts that the page has once, each with a number."""

    texts: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a text."""
        if (number := self.numbers.get(text)) is None:
            number = self.numbers[text] = len(self.texts)
            self.texts.append(text)
        return number


Wrong = tuple[int, str, Block, list[int], list[int], list[int]]


@dataclass
class Fault:
    """The point at which an execution failed, or the blocks that are wrong at its end.

    places: (rank, buffer, block, missing contributors, those that would count twice, those that must not be there).
    waits: (rank, peer, whether it sends, blocks) of each message that has no other side.
    """

    words: str = ""
    time: int = 0
    rank: int | None = None
    places: list[Wrong] = field(default_factory=list)
    waits: list[tuple[int, int, bool, tuple[Block, ...]]] = field(default_factory=list)


class Witness(Recorder):
    """A recorder that also keeps the point at which the execution failed."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.fault = Fault()
        self.has_ended = False
        self.ends = [frozenset(schedule.ends(rank)) for rank in range(schedule.p)]

    def run(self) -> None:
        """Execute the schedule and check its result; record the first failure."""
        try:
            self.execute()
            self.has_ended = True
            check(self.schedule, self.trace)
        except VerifyError as error:
            self.fault.words, self.fault.rank = str(error), error.rank
            if not self.has_ended:
                self.trace.steps = self.fault.time
                return
            self.fault.time = self.trace.steps
            self.fault.places += _wrong_ends(self.schedule, self)

    def _fail(self, line: Any, op: Any, expected: str, got: str) -> Any:
        fault = self.fault
        fault.time = max(line.clock, line.finish)
        if "deadlock" in got:
            fault.time = max(line.clock for line in self.lines.values()) + 1
            waiting = [posted for of_one_side in self.unmatched.values() for posted in of_one_side]
            waits = [(x.line.rank, x.op.peer, isinstance(x.op, Send), x.op.blocks) for x in waiting]
            fault.waits += sorted(waits, key=lambda wait: not wait[2])  # sends first
        super()._fail(line, op, expected, got)

    def _reduce(self, line: Any, place: Place, operands: list[Any]) -> None:
        try:
            super()._reduce(line, place, operands)
        except VerifyError:
            doubled = sorted(_doubled([value for value, _ in operands]))
            self.fault.places.append((line.rank, *place, [], doubled, []))
            raise


def _doubled(values: list[Value]) -> set[int]:
    """Return the contributors that are in more than one of the operands."""
    sets = [set(contributors(value)) for value in values]
    return {rank for i, some in enumerate(sets) for other in sets[:i] for rank in some & other}


def record(
    schedule: Schedule, words: Words, clock: Clock | None = None, recordings: Sequence[Recording] = ()
) -> Record:
    """Return what the page shows of a schedule; of one that a proof rejects, up to the fault, and the fault.

    clock: what its times are taken from, if the page is to have them; recordings: measured calls to show beside it.
    """
    witness = Witness(schedule)
    witness.run()
    trace, p, buffers = witness.trace, schedule.p, [VALUE]
    places = {block: i for i, block in enumerate(schedule.blocks)}
    sent, written = sorted(trace.messages, key=lambda m: m.start), list(_writes(schedule, witness))
    messages = [_message(message, places, words) for message in sent]
    writes = [_row(witness, write, buffers, places, words) for write in written]
    entry: Record = {
        "p": p,
        "steps": trace.steps,
        "blocks": len(places),
        "of_n": str(Fraction(1, schedule.blocks_of_n)),
        "code_share": float(schedule.code_share),
        "buffers": buffers,
        "messages": messages,
        "writes": writes,
        "starts": [[places[b] for b in schedule.starts(rank)] for rank in range(p)],
        "ends": [[places[b] for b in schedule.ends(rank)] for rank in range(p)],
        **_numbers(schedule, witness),
    }
    fault = witness.fault
    if clock is not None and witness.has_ended:
        steps, steps_of_writes = [(m.source, m.destination, m.strand) for m in sent], [write[-1] for write in written]
        entry["time"] = times(clock.simulate(schedule), steps, steps_of_writes)
        if recordings:
            entry["measured"] = [x.beside_model(schedule, clock, sent, steps_of_writes) for x in recordings]
    if schedule.collective.naming == "edge":
        entry["names"] = [names([block]) for block in schedule.blocks]
    if fault.words:
        entry["fault"] = {
            "words": fault.words,
            "time": min(fault.time, trace.steps),
            "rank": fault.rank,
            "places": [[rank, buffer, places.get(block, -1), *who] for rank, buffer, block, *who in fault.places],
            "waits": [[r, peer, sends, [places.get(b, -1) for b in some]] for r, peer, sends, some in fault.waits],
        }
    return entry


def _message(message: Message, places: dict[Block, int], words: Words) -> list[Any]:
    """Return start, sender, receiver, strand, flags, the sender's buffer, blocks and the values that they have."""
    flags = REDUCES * message.reduces + ENCODED * (message.buffer in CODED)
    values = [words.number(ranks(contributors(value))) for value in message.values]
    blocks = [places.get(block, -1) for block in message.blocks]
    return [message.start, message.source, message.destination, message.strand, flags, message.buffer, blocks, values]


_Write = tuple[int, int, Loc, Value, bool, StepId | None]  # end, rank, place, value, whether it was reduced, its step


def _writes(schedule: Schedule, witness: Witness) -> Iterator[_Write]:
    """Yield what the ranks begin with, at time 0, then what their steps write, by the time at which they end."""
    p, ordered = schedule.p, schedule.collective.reduces and not schedule.commutative
    for rank in range(p):
        own: Value = Interval(rank, rank + 1) if ordered else 1 << rank
        blocks = [Loc(HEARD, 0)] if _is_barrier(schedule) else [Loc(VALUE, b) for b in schedule.starts(rank)]
        yield from ((0, rank, loc, own, False, None) for loc in blocks)
    for got in sorted(witness.got, key=lambda got: got.end):
        if got.end > witness.trace.steps:
            continue
        if _is_barrier(schedule):
            yield got.end, got.rank, Loc(HEARD, 0), got.known, False, (got.rank, got.strand, got.step)
        yield from _of_step(got)


def _of_step(got: Got) -> Iterator[_Write]:
    for loc, value in got.values.items():
        if loc.buffer != INPUT:
            yield got.end, got.rank, loc, value, loc in got.reduced, (got.rank, got.strand, got.step)


def _is_barrier(schedule: Schedule) -> bool:
    return schedule.collective.naming == "none"


def _row(witness: Witness, write: _Write, buffers: list[str], places: dict[Block, int], words: Words) -> list[int]:
    """Return a write as numbers: end, rank, buffer, block, value, flags."""
    end, rank, loc, value, reduced, _ = write
    if loc.buffer not in buffers:
        buffers.append(loc.buffer)
    flags = REDUCED * reduced + DONE * _is_done(witness, rank, loc, value)
    text = words.number(ranks(contributors(value)))
    return [end, rank, buffers.index(loc.buffer), places.get(loc.block, 0), text, flags]


def _is_done(witness: Witness, rank: int, loc: Loc, value: Value) -> bool:
    """Return whether a place holds what the rank is to end with."""
    schedule = witness.schedule
    if _is_barrier(schedule):
        return value == (1 << schedule.p) - 1
    is_end = loc.buffer == VALUE and loc.block in witness.ends[rank]
    return is_end and value == expected_value(schedule, rank, loc.block)


def _numbers(schedule: Schedule, witness: Witness) -> Record:
    """Return the measured steps and bytes, and the values of the docstring's formulas."""
    claims, p = schedule.algorithm.claims, schedule.p
    claimed = {}
    for name in ("steps", "bytes_per_rank", "scratch"):
        value = claims.evaluate(getattr(claims, name), p, **schedule.resolved)
        claimed[name] = str(value) if name == "steps" else share(value)
    moved = measured_bytes(schedule, witness.trace)
    return {"headline": headline(schedule, witness.trace), "bytes": share(moved), "claimed": claimed}


def _wrong_ends(schedule: Schedule, witness: Witness) -> Iterator[Wrong]:
    """Yield every block that does not hold at the end what it has to."""
    for rank in range(schedule.p):
        for block in schedule.ends(rank):
            got = witness.trace.memory[rank][VALUE].get(block)
            has = set(contributors(got)) if got is not None else set()
            expected = set(contributors(expected_value(schedule, rank, block)))
            if has != expected:
                yield rank, VALUE, block, sorted(expected - has), [], sorted(has - expected)
