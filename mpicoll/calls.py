"""From checked arguments to a flight: what is called, which algorithm serves it, on which memory.

Only values that are equal on every rank decide what is sent (collective, bytes, operator, root). What is one
rank's own affair (a layout with holes, MPI.IN_PLACE at the root) is settled here by packing or staging.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from mpi4py import MPI

from .buffers import Arguments, Buffer
from .channel import Channel
from .check import Exchange
from .collectives import COLLECTIVES
from .engines import Execution, Waiting, engine_named
from .errors import PreconditionError
from .flight import Flight, Record, Stage
from .operators import Operator, operator
from .plan import ALIGN, Plan, reads_input
from .schedule import schedule
from .select import NATIVE, Choice, choose, native_choice

_STAGED = ("reduce_scatter", "alltoall")  # in place, their results would lie across their input


@dataclass
class Call:
    """One call as every rank describes it: bytes is what selection looks at, unit the bytes of one count."""

    collective: str
    counts: int | tuple[int, ...] = 0
    unit: int = 1
    nbytes: int = 0
    root: int = 0
    operator: Operator | None = None
    arguments: Arguments | None = None

    @property
    def commutative(self) -> bool:
        """Whether operands may be combined in any order."""
        return self.operator is None or self.operator.commutative


@dataclass
class Memory:
    """What a plan works on: addresses of its input and output, and what brings the user's data there and back."""

    source: int = 0
    target: int = 0
    in_place: bool = False
    keep: list[Any] = field(default_factory=list)
    after: list[Callable[[], None]] = field(default_factory=list)


def describe(collective: str, arguments: Arguments | None, p: int, root: int = 0, op: MPI.Op | None = None) -> Call:
    """A call from its arguments. Raises OperatorError for an operator the datatype does not allow."""
    if arguments is None:
        return Call(collective)
    one = arguments.send if arguments.send is not None else arguments.recv
    assert one is not None
    if op is None:
        block = one.packed_nbytes // one.blocks
        shares = p if COLLECTIVES[collective].naming != "vector" else 1
        return Call(collective, block, 1, block * shares, root, None, arguments)
    facts = one.facts
    counts: int | tuple[int, ...] = one.count
    total = one.elements
    if arguments.counts is not None:
        counts, total = arguments.counts, sum(arguments.counts)
    return Call(collective, counts, facts.extent, total * facts.extent, root, operator(op, facts), arguments)


def select(channel: Channel, call: Call) -> Choice:
    """What runs this call. Raises PreconditionError where what using() forced cannot."""
    engine = channel.overrides.engine or "auto"
    choice = choose(
        call.collective, call.nbytes, channel.size, call.commutative, channel.overrides,
        channel.engine if engine == "auto" else engine,
    )  # fmt: skip
    if call.operator is not None and call.operator.missing and choice.algorithm != NATIVE:
        if choice.forced:
            raise PreconditionError(f"{choice.algorithm} was chosen by using(), but there is {call.operator.missing}; choose native")
        return native_choice(call.collective, call.operator.missing)
    return choice


def signature(call: Call, choice: Choice, sequence: int) -> dict[str, Any]:
    """What all ranks must agree on, for check mode; None where this rank cannot know."""
    arguments = call.arguments
    one = (arguments.send or arguments.recv) if arguments is not None else None
    reduces = COLLECTIVES[call.collective].reduces
    return {
        "sequence": sequence,
        "collective": call.collective,
        "root": call.root,
        "bytes": call.nbytes,
        "count": call.counts if reduces else None,
        "type": one.facts.basic if one is not None else None,
        "op": call.operator.name if call.operator else None,
        "algorithm": choice.algorithm,
        "chunk_bytes": choice.chunk_bytes,
    }


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
    ranks = f"rank{'s' * (len(w.peers) > 1)} {', '.join(map(str, w.peers))}"
    return f"step {w.step} of chunk {w.chunk}, strand {w.strand}, waits for {ranks}"


def flight(channel: Channel, call: Call, choice: Choice) -> Flight:
    """The flight that carries out a call by a plan; not launched yet."""
    memory = place(call, channel)
    plan = channel.plan(choice, call.root, call.commutative, call.counts, call.unit, memory.in_place)
    scratch = channel.take_scratch(plan.scratch_bytes)
    base = -(-MPI.Get_address(scratch) // ALIGN) * ALIGN
    sequence = channel.next_sequence()
    made: list[Execution] = []

    def run() -> Stage:
        kernel = call.operator.kernel if call.operator else 0
        engine = engine_named(choice.engine)
        made.append(engine.Execution(plan, channel.comm, sequence, (memory.source, memory.target, base), kernel))
        return Running(made[0])

    def finish() -> None:
        channel.give_scratch(scratch)
        if call.operator is not None and call.operator.errors:
            raise call.operator.errors[0]
        for step in memory.after:
            step()
        note(channel, call, choice, plan, sequence, made[0].progress)

    stages: list[Callable[[], Stage]] = [run]
    if channel.settings.check:
        stages.insert(0, lambda: Exchange(channel.comm, signature(call, choice, sequence)))
    return Flight(choice, sequence, stages, finish, (call, memory, scratch))


def check_native(channel: Channel, call: Call, choice: Choice) -> None:
    """In check mode, compare signatures before MPI's own collective runs too. Raises MismatchError."""
    channel.say_once(choice)
    sequence = channel.next_sequence()
    if channel.settings.check:
        stage = [lambda: Exchange(channel.comm, signature(call, choice, sequence))]
        channel.run(Flight(choice, sequence, stage, lambda: None, None))
    note(channel, call, choice, None, sequence, (0, 0, 0))


def refuse(channel: Channel, error: Exception) -> None:
    """In check mode, tell the others that this rank's arguments were wrong, so that they raise too."""
    if not channel.settings.check:
        return
    sequence = channel.next_sequence()
    stage = [lambda: Exchange(channel.comm, {"sequence": sequence, "error": str(error)})]
    told = Flight(native_choice("a call", "refused"), sequence, stage, lambda: None, None)
    channel.launch(told)
    try:
        channel.wait(told)
    except RuntimeError:
        pass  # this rank raises its own error


def note(
    channel: Channel, call: Call, choice: Choice, plan: Plan | None, sequence: int, progress: tuple[int, int, int]
) -> None:
    """Leave a record for traces."""
    if channel.traces:
        lanes = plan.lanes if plan else 0
        channel.record(
            Record(
                call.collective, choice.algorithm, choice.engine, call.nbytes, choice.chunk_bytes, lanes, progress[0], progress[1],
                sequence,
            )
        )  # fmt: skip


# -- memory ---------------------------------------------------------------------------------------------


def place(call: Call, channel: Channel) -> Memory:
    """Where the plan finds its input and leaves its output."""
    memory, arguments = Memory(), call.arguments
    if arguments is None:
        return memory
    if call.collective == "bcast":
        assert arguments.recv is not None
        memory.in_place, memory.target = True, _output(memory, arguments.recv, True, channel.rank != call.root)
        return memory
    if arguments.send is not None:
        memory.source = _input(memory, arguments.send)
    if not arguments.in_place:
        memory.target = _output(memory, arguments.recv, False) if arguments.recv is not None else 0
    elif arguments.recv is None:
        memory.in_place = True  # scatter: the root's block stays where it is
    elif call.collective in _STAGED or _goes_back(call, channel):
        _stage(memory, arguments.recv, call, channel.rank)
    else:
        memory.in_place, memory.target = True, _output(memory, arguments.recv, True)
    return memory


def _goes_back(call: Call, channel: Channel) -> bool:
    """Whether the algorithm reads its contribution after it may have written a result over it."""
    spec = select(channel, call).algorithm
    return reads_input(schedule(call.collective, spec, channel.size, call.root, commutative=call.commutative), channel.rank)


def _input(memory: Memory, buffer: Buffer) -> int:
    if buffer.contiguous:
        memory.keep.append(buffer)
        return buffer.address
    packed = buffer.pack()
    memory.keep.append(packed)
    return MPI.Get_address(packed)


def _output(memory: Memory, buffer: Buffer, with_data: bool, writes: bool = True) -> int:
    if buffer.contiguous:
        memory.keep.append(buffer)
        return buffer.address
    packed = buffer.pack() if with_data else np.empty(buffer.packed_nbytes, np.uint8)
    memory.keep += [packed, buffer]
    if writes:
        memory.after.append(lambda: buffer.unpack(packed))
    return MPI.Get_address(packed)


def _stage(memory: Memory, buffer: Buffer, call: Call, rank: int) -> None:
    """The receive buffer is the input; the output goes to memory of its own and is copied back at the end."""
    if isinstance(call.counts, tuple):
        nbytes = call.counts[rank] * call.unit
    elif call.collective == "reduce_scatter":
        nbytes = call.counts * call.unit
    else:
        nbytes = call.nbytes
    result = np.empty(nbytes, np.uint8)
    packed = None if buffer.contiguous else buffer.pack()
    memory.keep += [buffer, result, packed]
    memory.source = buffer.address if packed is None else MPI.Get_address(packed)
    memory.target = MPI.Get_address(result)

    def back() -> None:
        if packed is None:
            np.frombuffer(MPI.buffer.fromaddress(buffer.address, nbytes), np.uint8)[:] = result
        else:
            packed[:nbytes] = result
            buffer.unpack(packed)

    memory.after.append(back)


