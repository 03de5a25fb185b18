"""Execute the p ranks of a schedule symbolically, with sends that wait for their receive (rendezvous).

Nothing is buffered: a message completes when both sides have posted it, a step completes with all its messages, and a
strand then begins its next step. The result is the trace: which rank sent which blocks to which rank in which step, and
the contributions in them. A deadlock, or an outcome that could differ between two runs, raises VerifyError.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

from ..errors import VerifyError
from ..schedules.collectives import Block
from ..schedules.ir import (
    CODED,
    INPUT,
    VALUE,
    Copy,
    Loc,
    Local,
    Op,
    Recv,
    RecvReduce,
    Reduce,
    Send,
    Step,
    Strand,
    is_coded,
)
from ..schedules.liveness import Place, read, written
from ..schedules.schedule import Schedule
from .values import Interval, Value, combine, show


class Message(NamedTuple):
    """A completed message: its start and end in steps of unit length, its blocks and their values."""

    source: int
    destination: int
    strand: int
    step: int
    start: int
    blocks: tuple[Block, ...]
    values: tuple[Value, ...]
    reduces: bool = False
    buffer: str = VALUE  # of the sender

    @property
    def end(self) -> int:
        """Return the time at which the message has arrived."""
        return self.start + 1


Memory = defaultdict[str, dict[Block, Value]]  # of a rank: the values in each of its buffers


@dataclass
class Trace:
    """The result of a symbolic execution: its messages in order, and every rank's final memory."""

    completed: list[tuple[_Posted, _Posted, int]] = field(default_factory=list)  # sends, their receives, and starts
    memory: list[Memory] = field(default_factory=list)
    known: list[int] = field(default_factory=list)
    steps: int = 0
    sent: list[int] = field(default_factory=list)  # blocks per rank
    received: list[int] = field(default_factory=list)
    codes_sent: list[int] = field(default_factory=list)  # the same of encoded blocks
    codes_received: list[int] = field(default_factory=list)

    @property
    def messages(self) -> list[Message]:
        """Return the completed messages, in the order of their completion."""
        return [_message(*ends) for ends in self.completed]


class _Line:
    """One strand of one rank, with its current step."""

    __slots__ = ("clock", "finish", "index", "pending", "rank", "steps", "strand", "taken")

    def __init__(self, rank: int, strand: int, steps: Strand) -> None:
        self.rank, self.strand, self.steps = rank, strand, steps
        self.index = self.pending = self.clock = self.finish = 0
        self.taken: dict[int, tuple[Value, ...]] = {}


class _Posted(NamedTuple):
    """A posted send or receive: operation k of a step of a line."""

    line: _Line
    step: int
    k: int
    op: Send | Recv | RecvReduce
    at: int
    values: tuple[Value, ...] = ()
    known: int = 0


LOCAL = (Reduce, Copy)  # isinstance() takes a tuple in less time than a union
_Operand = tuple[Value, Op | None]  # the value, and the operation that brought it; None if it was local


class SymbolicExecution:
    """The state of all ranks during a symbolic execution; execute() runs the schedule to its end."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.ordered = schedule.collective.reduces and not schedule.commutative
        p = schedule.p
        self.trace = Trace(
            memory=[self._start(rank) for rank in range(p)],
            known=[1 << r for r in range(p)],
            sent=[0] * p,
            received=[0] * p,
            codes_sent=[0] * p,
            codes_received=[0] * p,
        )
        programs = [schedule.program(rank) for rank in range(p)]
        for rank, program in enumerate(programs):
            self._check_strands_apart(rank, program)
        self.lines = {
            (r, s): _Line(r, s, steps) for r, program in enumerate(programs) for s, steps in enumerate(program)
        }
        self.unmatched: dict[tuple[int, int, int], list[_Posted]] = {}  # by source, destination, strand
        self.ready = deque(self.lines.values())

    def _start(self, rank: int) -> Memory:
        contributions = dict.fromkeys(self.schedule.starts(rank), self._contribution(rank))
        return defaultdict(dict, {VALUE: contributions, INPUT: contributions.copy()})

    def _contribution(self, rank: int) -> Value:
        """Return the value of a rank's contribution."""
        return Interval(rank, rank + 1) if self.ordered else 1 << rank

    def _combine(self, left: Value, right: Value) -> Value:
        """Return left∘right. Raises ValueError if a contribution would count twice or be out of order."""
        return combine(left, right)

    def execute(self) -> Trace:
        """Run all strands to their end. Raises VerifyError for a deadlock, a hazard or a mismatch."""
        for line in list(self.ready):
            self._post(line)
        while self.ready:
            line = self.ready.popleft()
            while line.index < len(line.steps) and not line.pending:
                self._finish(line)
                line.index += 1
                line.clock = max(line.clock, line.finish)
                self._post(line)
        stuck = [line for line in self.lines.values() if line.index < len(line.steps)]
        if stuck:
            line = stuck[0]
            waits = [op for op in line.steps[line.index] if not isinstance(op, Local)]
            others = ", ".join(f"rank {x.rank} in step {x.index}" for x in stuck[1:5])
            self._fail(
                line,
                waits[0],
                "every message matched",
                f"deadlock: {len(stuck)} strands wait forever ({others or 'no other'})",
            )
        self.trace.steps = max((line.clock for line in self.lines.values()), default=0)
        return self.trace

    def _fail(self, line: _Line, op: Any, expected: str, got: str) -> NoReturn:
        s = self.schedule
        raise VerifyError(
            algorithm=s.title,
            p=s.p,
            rank=line.rank,
            strand=line.strand,
            step=line.index,
            op=op,
            expected=expected,
            got=got,
        )

    def _check_strands_apart(self, rank: int, program: tuple[Strand, ...]) -> None:
        """Check that no strand touches a place that another writes, since strands run concurrently."""
        if len(program) < 2:
            return
        touched = [{x for step in strand for x in (*read(step), *written(step))} for strand in program]
        for s, strand in enumerate(program):
            for other in range(len(program)):
                if other == s:
                    continue
                for index, step in enumerate(strand):
                    if clash := touched[other].intersection(written(step)):
                        line = _Line(rank, s, strand)
                        line.index = index
                        self._fail(
                            line,
                            step,
                            f"places strand {other} does not touch",
                            f"it writes {Loc(*min(clash, key=str))}",
                        )

    # -- one step ---------------------------------------------------------------------------------------

    def _post(self, line: _Line) -> None:
        """Begin a step: check what it may do, and post its messages, with the values that are sent."""
        if line.index == len(line.steps):
            return
        index, rank, strand, at, step = line.index, line.rank, line.strand, line.clock, line.steps[line.index]
        line.taken, line.finish = {}, at
        memory, known = self.trace.memory[rank], self.trace.known[rank]
        posted: list[tuple[tuple[int, int, int], _Posted]] = []
        receives = False
        for k, op in enumerate(step):
            if isinstance(op, LOCAL):
                self._check_local(line, op)
                continue
            self._check_message(line, op)
            if type(op) is Send:
                try:
                    values = tuple(map(memory[op.buffer].__getitem__, op.blocks))
                except KeyError as missing:
                    self._read(line, (op.buffer, missing.args[0]), op)
                    raise
                posted.append(((rank, op.peer, strand), _Posted(line, index, k, op, at, values, known)))
            else:
                receives = receives or type(op) is Recv
                posted.append(((op.peer, rank, strand), _Posted(line, index, k, op, at)))
        if receives and len(posted) > 1:
            self._check_targets(line, step)
        line.pending = len(posted)
        for key, message in posted:
            self._match(key, message)
        if not line.pending:
            self.ready.append(line)

    def _check_local(self, line: _Line, op: Local) -> None:
        if isinstance(op, Reduce):
            self._check_reduces(line, op)
        if op.dst.buffer == INPUT:
            self._fail(line, op, "a target other than the read-only input", "input")
        elif isinstance(op, Reduce) and (op.dst.buffer in CODED or op.src.buffer in CODED):
            self._fail(line, op, "codes to be decoded before they are reduced", "codes")
        elif isinstance(op, Copy) and op.dst.buffer in CODED and op.src.buffer in CODED:
            self._fail(line, op, "codes to be made of a block, or a block of codes", "codes of codes")

    def _check_reduces(self, line: _Line, op: Op) -> None:
        if not self.schedule.collective.reduces:
            self._fail(line, op, "no reduction in a collective that only moves data", "one")

    def _check_message(self, line: _Line, op: Send | Recv | RecvReduce) -> None:
        p, peer, blocks = self.schedule.p, op.peer, op.blocks
        if not 0 <= peer < p or peer == line.rank:
            self._fail(line, op, f"another rank in 0..{p - 1} as the peer", f"peer {peer}")
        if type(op) is Send:  # a receive has the same blocks, see _complete
            if len(blocks) > 1 and len(set(blocks)) < len(blocks):
                self._fail(line, op, "each block once in a message", f"blocks {blocks}")
            return
        if type(op) is RecvReduce:
            self._check_reduces(line, op)
        if op.buffer == VALUE:
            return
        if op.buffer == INPUT and blocks:
            self._fail(line, op, "a target other than the read-only input", "input")
        if op.buffer in CODED and type(op) is RecvReduce:
            self._fail(line, op, "codes to be decoded before they are reduced", "codes")

    def _check_targets(self, line: _Line, step: Step) -> None:
        """Check that a plain receive targets nothing that another message of its step uses."""
        used: defaultdict[str, set[Block]] = defaultdict(set)  # by sends and receives so far, by buffer
        for op in step:
            if type(op) is Send:
                used[op.buffer].update(op.blocks)
        receives = [op for op in step if type(op) is Recv]
        for op in receives:
            if not used[op.buffer].isdisjoint(op.blocks):
                clash = min(str(Loc(op.buffer, block)) for block in used[op.buffer].intersection(op.blocks))
                self._fail(line, op, "a target nothing else in this step uses", clash)
            if op is not receives[-1]:
                used[op.buffer].update(op.blocks)
        reduced = {(op.buffer, block) for op in step if type(op) is RecvReduce for block in op.blocks}
        landed = {(op.buffer, block) for op in step if type(op) is Recv for block in op.blocks} if reduced else set()
        if clashes := landed & reduced:
            expected = "no block both received and reduced into in one step"
            self._fail(line, step, expected, min(str(Loc(*place)) for place in clashes))

    def _read(self, line: _Line, place: Place, op: Op) -> Value:
        buffer, block = place
        value = self.trace.memory[line.rank][buffer].get(block)
        if value is None:
            self._fail(line, op, f"{Loc(*place)} to hold something", "it was never written")
        return value

    def _match(self, key: tuple[int, int, int], posted: _Posted) -> None:
        """Complete a message if its other side is posted. Otherwise it waits, beside none but others of its side."""
        waiting, sends = self.unmatched.setdefault(key, []), type(posted.op) is Send
        if not waiting or (type(waiting[0].op) is Send) == sends:
            waiting.append(posted)
        elif sends:
            self._complete(posted, waiting.pop(0))
        else:
            self._complete(waiting.pop(0), posted)

    def _complete(self, send: _Posted, receive: _Posted) -> None:
        sender, receiver, blocks = send.line, receive.line, send.op.blocks
        if blocks != receive.op.blocks:
            expected = f"blocks {receive.op.blocks}"
            self._fail(receiver, receive.op, expected, f"rank {sender.rank} sent blocks {blocks}")
        coded = is_coded(send.op)
        if coded != is_coded(receive.op):
            are = {True: "codes", False: "no codes"}
            self._fail(receiver, receive.op, are[not coded], are[coded])
        start = send.at if send.at > receive.at else receive.at
        receiver.taken[receive.k] = send.values
        trace, n = self.trace, len(blocks)
        trace.known[receiver.rank] |= send.known
        sent, received = (trace.codes_sent, trace.codes_received) if coded else (trace.sent, trace.received)
        sent[sender.rank] += n
        received[receiver.rank] += n
        trace.completed.append((send, receive, start))
        for line in (sender, receiver):
            if line.finish <= start:
                line.finish = start + 1
            line.pending -= 1
            if not line.pending:
                self.ready.append(line)

    def _finish(self, line: _Line) -> None:
        """End a step: store what was received, reduce what RecvReduce received, then do local operations."""
        memory, reduced, local = self.trace.memory[line.rank], list[tuple[int, RecvReduce]](), list[Local]()
        for k, op in enumerate(line.steps[line.index]):
            if type(op) is Recv:
                memory[op.buffer].update(zip(op.blocks, line.taken[k], strict=True))
            elif type(op) is RecvReduce:
                reduced.append((k, op))
            elif isinstance(op, LOCAL):
                local.append(op)
        if reduced and (len(reduced) > 1 or not self._reduce_message(line, *reduced[0])):
            self._reduce_messages(line, reduced)
        for op in local:
            self._work(line, op)

    def _reduce_message(self, line: _Line, k: int, op: RecvReduce) -> bool:
        """Reduce the blocks of a message. Return False if one of them cannot be, and change nothing then."""
        held, received = self.trace.memory[line.rank][op.buffer], line.taken[k]
        results: list[Value] = []
        earlier: tuple[Value, Value] | None = None
        try:
            own = map(held.__getitem__, op.blocks)
            for pair in zip(received, own) if op.side == "left" else zip(own, received):
                if pair != earlier:  # neighbours mostly hold the same
                    earlier, result = pair, self._combine(*pair)
                results.append(result)
        except (KeyError, ValueError):
            return False
        held.update(zip(op.blocks, results, strict=True))
        return True

    def _reduce_messages(self, line: _Line, reduced: list[tuple[int, RecvReduce]]) -> None:
        """Reduce the blocks of all messages of a step. Raises VerifyError with the place that cannot be."""
        operands_of: dict[Place, list[_Operand]] = {}
        for k, op in reduced:
            for block, value in zip(op.blocks, line.taken[k], strict=True):
                place = (op.buffer, block)
                if (operands := operands_of.get(place)) is None:
                    operands = operands_of[place] = [(self._read(line, place, op), None)]
                operands.insert(0 if op.side == "left" else len(operands), (value, op))
        for place, operands in operands_of.items():
            self._reduce(line, place, operands)

    def _work(self, line: _Line, op: Local) -> None:
        """Execute a local operation."""
        buffer, block = op.dst
        held, value = self.trace.memory[line.rank][buffer], self._read(line, op.src, op)
        if isinstance(op, Copy):
            held[block] = self._copied(value, op)
        elif block in held:
            local = (held[block], None)
            self._reduce(line, op.dst, [(value, op), local] if op.side == "left" else [local, (value, op)])
        else:
            held[block] = value

    def _copied(self, value: Value, op: Copy) -> Value:
        """Return the value that a copy writes."""
        return value

    def _reduce(self, line: _Line, place: Place, operands: list[_Operand]) -> None:
        """Reduce all operands of one place from left to right, as a plan's row does."""
        value, op = operands[0]
        for right, other in operands[1:]:
            op = other or op
            try:
                value = self._combine(value, right)
            except ValueError as e:
                expected = f"{show(value)} and {show(right)} to combine in this order at {Loc(*place)}"
                self._fail(line, op, expected, str(e))
        buffer, block = place
        self.trace.memory[line.rank][buffer][block] = value


def _message(send: _Posted, receive: _Posted, start: int) -> Message:
    source, destination = send.line, receive.line
    reduces = type(receive.op) is RecvReduce
    ends = source.rank, destination.rank, source.strand, receive.step
    return Message(*ends, start, send.op.blocks, send.values, reduces, send.op.buffer)


def execute(schedule: Schedule) -> Trace:
    """Execute a schedule symbolically and return its trace. Raises VerifyError if it is wrong."""
    return SymbolicExecution(schedule).execute()
