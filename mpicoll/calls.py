"""From checked arguments to a collective under way: which plan serves the call, on which memory.

Only values that are equal on every rank decide what is sent (collective, bytes, operator, root). What is one
rank's own affair (a layout with holes, MPI.IN_PLACE at the root) is settled here by packing or staging.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from .buffers import Arguments, settle_counts
from .channel import SPIN, Channel
from .check import Exchange
from .collectives import COLLECTIVES
from .engines import Execution, Waiting, engine_named
from .errors import MismatchError, PreconditionError, spans
from .flight import Flight, Record, Stage
from .lowering import lower, reads_input
from .memory import Memory, place
from .operators import Operator, operator
from .plan import Plan
from .schedule import schedule
from .select import NATIVE, Choice, choose, native_choice

_STAGED = ("reduce_scatter", "alltoall")  # in place, their results would lie across their input


class Call:
    """One call as every rank describes it: counts of `unit` bytes (see plan.layout), root and operator."""

    __slots__ = ("arguments", "collective", "counts", "operator", "root", "unit")

    def __init__(
        self,
        collective: str,
        arguments: Arguments | None,
        counts: int | tuple[int, ...] = 0,
        unit: int = 1,
        root: int = 0,
        operator: Operator | None = None,
    ) -> None:
        self.collective, self.arguments, self.counts, self.unit = collective, arguments, counts, unit
        self.root, self.operator = root, operator

    @property
    def commutative(self) -> bool:
        """Whether operands may be combined in any order."""
        return self.operator is None or self.operator.commutative

    @property
    def missing(self) -> str:
        """Why no kernel serves the operator; empty where one does."""
        return self.operator.missing if self.operator is not None else ""

    def nbytes(self, p: int) -> int:
        """The bytes selection looks at: the whole vector, or one rank's send buffer for alltoall."""
        if isinstance(self.counts, tuple):
            return sum(self.counts) * self.unit
        shares = 1 if COLLECTIVES[self.collective].naming == "vector" else p
        return self.counts * self.unit * shares


@dataclass
class Prepared:
    """What serves calls of one kind: the choice, its plan (None for native), and idle executions to use again."""

    choice: Choice
    nbytes: int
    plan: Plan | None
    staged: bool
    engine: Any
    idle: list[Execution]

    def take(self, comm: MPI.Comm) -> Execution:
        """An execution to bind."""
        assert self.plan is not None
        return self.idle.pop() if self.idle else self.engine.Execution(self.plan, comm)


def describe(collective: str, arguments: Arguments | None, root: int = 0, op: MPI.Op | None = None) -> Call:
    """A call from its arguments. Raises OperatorError for an operator the datatype does not allow."""
    if arguments is None:
        return Call(collective, None)
    one = arguments.send if arguments.send is not None else arguments.recv
    assert one is not None
    if op is None:
        return Call(collective, arguments, one.packed_nbytes // one.blocks, 1, root)
    facts = one.facts
    counts = arguments.counts if arguments.counts is not None else one.count
    return Call(collective, arguments, counts, facts.extent, root, operator(op, facts))


def settle(channel: Channel, arguments: Arguments) -> None:
    """Reduce_scatter without recvcounts: ask all ranks for theirs. In check mode, first whether all of them ask."""
    assert arguments.recv is not None
    if channel.settings.check:
        sequence = channel.next_sequence()
        _compare(channel, sequence, {"sequence": sequence, "collective": "reduce_scatter", "recvcounts": "left out"})
    settle_counts(arguments, channel.comm.allgather(arguments.recv.count), channel.rank)


def select(channel: Channel, collective: str, nbytes: int, commutative: bool, missing: str = "") -> Choice:
    """What runs such a call. Raises PreconditionError where what using() forced cannot."""
    engine = channel.overrides.engine or "auto"
    choice = choose(
        collective, nbytes, channel.size, commutative, channel.overrides, channel.engine if engine == "auto" else engine
    )
    if missing and choice.algorithm != NATIVE:
        if choice.forced:
            raise PreconditionError(f"{choice.algorithm} was chosen by using(), but there is {missing}; choose native")
        return native_choice(collective, missing)
    return choice


def prepare(channel: Channel, call: Call) -> Prepared:
    """What serves this call, from the channel's cache or made now. Raises PreconditionError, ValueError."""
    arguments = call.arguments
    in_place = arguments is not None and (arguments.in_place or call.collective == "bcast")
    key = (call.collective, call.counts, call.unit, call.root, call.commutative, call.missing, in_place)
    prepared = channel.prepared.get(key)
    if prepared is None:
        prepared = _prepare(channel, call, in_place)
        channel.remember(key, prepared)
    return prepared


def _prepare(channel: Channel, call: Call, in_place: bool) -> Prepared:
    nbytes = call.nbytes(channel.size)
    choice = select(channel, call.collective, nbytes, call.commutative, call.missing)
    if choice.algorithm == NATIVE:
        return Prepared(choice, nbytes, None, False, None, [])
    made = schedule(call.collective, choice.algorithm, channel.size, call.root, commutative=call.commutative)
    staged = in_place and (call.collective in _STAGED or reads_input(made, channel.rank))
    plan = lower(
        made,
        channel.rank,
        call.counts,
        call.unit,
        in_place=in_place and not staged,
        chunk_bytes=choice.chunk_bytes,
        window=choice.window,
    )
    return Prepared(choice, nbytes, plan, staged, engine_named(choice.engine), [])


# -- running --------------------------------------------------------------------------------------------


def run(channel: Channel, call: Call, prepared: Prepared) -> None:
    """Carry out a call and return when it is done; one that is done at once never becomes a flight."""
    if channel.flying or channel.settings.check:
        channel.run(flight(channel, call, prepared))
        return
    memory = place(call, prepared, channel)
    sequence = channel.next_sequence()
    execution = _bound(channel, call, prepared, memory, sequence)
    try:
        done = execution.advance(SPIN)
    except BaseException:  # Ctrl-C too: MPI may still write to this memory, so it must stay
        channel.abandoned.append((execution, memory, call))
        raise
    if done:
        _finish(channel, call, prepared, memory, execution, sequence)
    else:
        channel.run(_flight(channel, call, prepared, memory, sequence, [lambda: Running(execution)], [execution]))


def flight(channel: Channel, call: Call, prepared: Prepared) -> Flight:
    """The flight that carries out a call; not launched yet."""
    memory = place(call, prepared, channel)
    sequence = channel.next_sequence()
    made: list[Execution] = []

    def start() -> Stage:
        made.append(_bound(channel, call, prepared, memory, sequence))
        return Running(made[0])

    stages: list[Callable[[], Stage]] = [start]
    if channel.settings.check:
        exchange = Exchange(channel.comm, signature(call, prepared, sequence))  # now: all ranks in the order of calls
        stages.insert(0, lambda: exchange)
    return _flight(channel, call, prepared, memory, sequence, stages, made)


def _bound(channel: Channel, call: Call, prepared: Prepared, memory: Memory, sequence: int) -> Execution:
    execution = prepared.take(channel.comm)
    kernel = call.operator.kernel if call.operator is not None else 0
    execution.bind(sequence, (memory.source, memory.target, memory.scratch_address), kernel)
    return execution


def _flight(
    channel: Channel,
    call: Call,
    prepared: Prepared,
    memory: Memory,
    sequence: int,
    stages: list[Callable[[], Stage]],
    made: list[Execution],
) -> Flight:
    def finish() -> None:
        _finish(channel, call, prepared, memory, made[0], sequence)

    return Flight(prepared.choice, sequence, stages, finish, (call, memory))


def _finish(
    channel: Channel, call: Call, prepared: Prepared, memory: Memory, execution: Execution, sequence: int
) -> None:
    prepared.idle.append(execution)
    channel.give_scratch(memory.scratch)
    if call.operator is not None and call.operator.errors:
        raise call.operator.errors[0]
    if memory.after is not None:
        memory.after()
    if channel.traces:
        note(channel, prepared, sequence, execution.progress)


def check_native(channel: Channel, call: Call, prepared: Prepared) -> None:
    """Before MPI's own collective runs: in check mode, compare signatures and wait for that. Raises MismatchError."""
    channel.say_once(prepared.choice)
    sequence = channel.next_sequence()
    if channel.settings.check:
        _compare(channel, sequence, signature(call, prepared, sequence))
    note(channel, prepared, sequence, (0, 0, 0))


def refuse(channel: Channel, error: Exception) -> None:
    """In check mode, tell the others that this rank's arguments were wrong, so that they raise too."""
    if channel.settings.check:
        sequence = channel.next_sequence()
        with suppress(MismatchError):  # this rank raises its own error
            _compare(channel, sequence, {"sequence": sequence, "error": str(error)})


def _compare(channel: Channel, sequence: int, mine: dict[str, Any]) -> None:
    """Exchange signatures, and nothing else, in a flight of its own. Raises MismatchError."""
    exchange = Exchange(channel.comm, mine)
    choice = native_choice(mine.get("collective", "a call"), "comparing signatures")
    channel.run(Flight(choice, sequence, [lambda: exchange], lambda: None, None))


def signature(call: Call, prepared: Prepared, sequence: int) -> dict[str, Any]:
    """What all ranks must agree on, for check mode; None where this rank cannot know."""
    arguments = call.arguments
    one = (arguments.send or arguments.recv) if arguments is not None else None
    return {
        "sequence": sequence,
        "collective": call.collective,
        "recvcounts": "given" if call.collective == "reduce_scatter" else None,
        "root": call.root,
        "bytes": prepared.nbytes,
        "count": call.counts if COLLECTIVES[call.collective].reduces else None,
        "type": one.facts.basic if one is not None else None,
        "op": call.operator.name if call.operator else None,
        "algorithm": prepared.choice.algorithm,
        "chunk_bytes": prepared.choice.chunk_bytes,
    }


def note(channel: Channel, prepared: Prepared, sequence: int, progress: tuple[int, int, int]) -> None:
    """Leave a record where somebody traces."""
    choice = prepared.choice
    lanes = prepared.plan.lanes if prepared.plan else 0
    channel.record(
        Record(
            choice.collective,
            choice.algorithm,
            choice.engine,
            prepared.nbytes,
            choice.chunk_bytes,
            lanes,
            *progress[:2],
            sequence,
        )
    )


class Running:
    """A stage: a plan in its engine."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self.advance = execution.advance

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far."""
        return self.execution.progress

    def describe(self) -> list[str]:
        """What each lane waits for."""
        return [_line(w) for w in self.execution.waiting()]


def _line(w: Waiting) -> str:
    parts = [
        f"{what} rank{'s' * (len(peers) > 1)} {spans(peers)}"
        for what, peers in (("to receive from", w.receives), ("to send to", w.sends))
        if peers
    ]
    return f"step {w.step} of chunk {w.chunk}, strand {w.strand}, waits {' and '.join(parts) or 'for its turn'}"
