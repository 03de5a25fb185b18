"""The content of a picture of a schedule: its messages, and the blocks that each step gave every rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

from ..errors import spans
from ..proofs.check_schedule import measured_bytes
from ..proofs.symbolic import Message, SymbolicExecution, Trace
from ..proofs.values import Value, contributors
from ..schedules.ir import VALUE, Loc, Local, RecvReduce, Send
from ..schedules.schedule import Schedule

Block = Hashable


class Note(NamedTuple):
    """Blocks that a rank got in a step, with their contributors; done: nothing is missing any more."""

    text: str
    done: bool
    strand: int
    sources: tuple[int, ...]
    reduces: bool


class Picture:
    """The items to draw: messages by the step they start in, notes by step and rank."""

    def __init__(self, schedule: Schedule) -> None:
        execution = Recorder(schedule)
        trace = execution.execute()
        self.schedule, self.p, self.steps = schedule, schedule.p, trace.steps
        self.headline = headline(schedule, trace)
        self.messages: dict[int, list[Message]] = defaultdict(list)
        for message in trace.messages:
            self.messages[message.start + 1].append(message)
        self.notes: dict[tuple[int, int], list[Note]] = defaultdict(list)
        ends = [set(schedule.ends(rank)) for rank in range(self.p)]
        for got in execution.got:
            self.notes[got.end, got.rank] += self._notes(got, ends[got.rank])

    @property
    def total(self) -> int:
        """Return the number of messages."""
        return sum(map(len, self.messages.values()))

    @property
    def strands(self) -> dict[int, list[Block]]:
        """Return the strands that send messages, each with the blocks that move in it."""
        blocks: dict[int, dict[Block, None]] = defaultdict(dict)
        for at in self.messages.values():
            for message in at:
                blocks[message.strand].update(dict.fromkeys(message.blocks))
        return {strand: list(blocks[strand]) for strand in sorted(blocks)}

    def _notes(self, got: Got, ends: set[Block]) -> Iterator[Note]:
        """Yield one note for all blocks with the same contributors."""
        collective = self.schedule.collective
        if collective.naming == "none":
            complete = got.known == (1 << self.p) - 1
            yield Note(f"heard {ranks(contributors(got.known))}", complete, got.strand, got.sources, False)
            return
        same: dict[tuple[str, Value | None, bool], list[Block]] = defaultdict(list)
        for loc, value in got.values.items():
            same[loc.buffer, value if collective.reduces else None, loc in got.reduced].append(loc.block)
        for (buffer, held, reduces), blocks in same.items():
            who = contributors(held) if held is not None else []
            label = ("" if buffer == VALUE else f"{buffer} ") + names(blocks) + (f": {ranks(who)}" if who else "")
            whole = list(range(*collective.covers(self.p, got.rank)))
            done = who == whole if collective.reduces else ends.issuperset(blocks)
            yield Note(label, done and buffer == VALUE, got.strand, got.sources_of(reduces), reduces)


@dataclass
class Got:
    """The end of one step of one rank: the values of all places that the step wrote."""

    rank: int
    strand: int
    step: int
    end: int
    values: dict[Loc, Value]
    reduced: set[Loc]
    known: int
    reduced_from: tuple[int, ...]
    plain_from: tuple[int, ...]

    @property
    def sources(self) -> tuple[int, ...]:
        return self.reduced_from + self.plain_from

    def sources_of(self, reduces: bool) -> tuple[int, ...]:
        """Return the ranks whose messages were reduced, or those whose messages were not."""
        return self.reduced_from if reduces else self.plain_from


class Recorder(SymbolicExecution):
    """A symbolic execution that records the values each step writes."""

    def __init__(self, schedule: Schedule) -> None:
        super().__init__(schedule)
        self.got: list[Got] = []

    def _finish(self, line: Any) -> None:
        super()._finish(line)
        step, memory = line.steps[line.index], self.trace.memory[line.rank]
        if all(isinstance(op, Send) for op in step):
            return
        reduced = {Loc(op.buffer, b) for op in step if isinstance(op, RecvReduce) for b in op.blocks}
        local = [op.dst for op in step if isinstance(op, Local)]
        plain = [op for op in step if not isinstance(op, Send | RecvReduce | Local)]
        written = [Loc(op.buffer, b) for op in step if not isinstance(op, Send | Local) for b in op.blocks]
        self.got.append(
            Got(
                line.rank, line.strand, line.index, line.finish,
                {loc: memory[loc.buffer][loc.block] for loc in written + local}, reduced,
                self.trace.known[line.rank],
                tuple(op.peer for op in step if isinstance(op, RecvReduce)), tuple(op.peer for op in plain),
            )
        )  # fmt: skip


def headline(schedule: Schedule, trace: Trace) -> str:
    """Return a one-line summary: steps, messages, and the most bytes that a rank sends or receives."""
    counts = f"{many(trace.steps, 'step')}, {many(len(trace.messages), 'message')}"
    if schedule.collective.naming != "none":
        counts += f", at most {share(measured_bytes(schedule, trace))} bytes per rank"
    return f"{schedule.title}, p = {schedule.p}: {counts}"


# -- labels -------------------------------------------------------------------------------------------------


def many(n: int, what: str) -> str:
    """Return a number of things in words: 1 step, 2 steps."""
    return f"{n} {what}{'s' * (n != 1)}"


def share(of_n: Fraction) -> str:
    """Return a part of the vector's n bytes, or several times as much.

    >>> share(Fraction(24, 13)), share(Fraction(1)), share(Fraction(0))
    ('1.85 n', 'n', '0')
    """
    names: dict[Fraction | int, str] = {0: "0", 1: "n"}
    return names.get(of_n, f"{float(of_n):.3g} n")


def ranks(who: Iterable[int]) -> str:
    """Return ranks in short form, without spaces.

    >>> ranks([0, 1, 2, 4])
    '0-2,4'
    """
    return spans(who).replace(" ", "")


def names(blocks: Sequence[Any], most: int = 3) -> str:
    """Return blocks in short form: b0-2,4 or, for pairs, 0→1 0→2 +4; nothing for a token.

    A second and third edge from one rank to another have primes.

    >>> names([4, 0, 1]), names([(0, 1)]), names([(0, i) for i in range(5)]), names([(0, 1, 0), (0, 1, 2)])
    ('b0-1,4', '0→1', '0→0 0→1 0→2 +2', "0→1 0→1''")
    """
    if not blocks:
        return ""
    if isinstance(blocks[0], int):
        return f"b{ranks(blocks)}"
    shown = " ".join(f"{s}→{d}" + "'" * sum(k) for s, d, *k in blocks[:most])
    return shown + (f" +{len(blocks) - most}" if len(blocks) > most else "")


def clip(text: str, width: int) -> str:
    """Return a text in at most that many characters.

    >>> clip("b0-3: 0-4", 6)
    'b0-3:…'
    """
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def strand_labels(picture: Picture) -> dict[int, str]:
    """Return which strand moves what, where there are several."""
    strands = picture.strands
    return {s: f"strand {s}: {names(blocks, 1)}" for s, blocks in strands.items()} if len(strands) > 1 else {}


KEY = "the blocks that a rank has just got, and the ranks whose contributions are in them"


def legend(picture: Picture, table: bool) -> str:
    """Return how to read the picture."""
    collective = picture.schedule.collective
    if collective.naming == "none":
        return "Below the arrows: the ranks that each rank has heard of."
    below = "In each cell: source and" if table else "Below the arrows:"
    where = "⊕ reduced, ▸ received" if table else "─⊕ reduced, ╌● received"
    if not collective.reduces:
        owner = {
            "rank": "block b is rank b's",
            "pair": "s→d is rank s's block for rank d",
            "edge": "s→d is rank s's block for its neighbour d",
        }.get(collective.naming)
        return f"{below} the blocks that a rank has just got" + (f"; {owner}." if owner else ".")
    return f"{where}. {below} {KEY}."
