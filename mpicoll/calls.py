"""Carrying out a call: at once where it is done at once, else as a flight.

What is one rank's own affair (a layout with holes, MPI.IN_PLACE at the root) is settled in memory.py.
"""

from __future__ import annotations

from collections.abc import Callable

from .channel import SPIN, Channel
from .check import Exchange, compare_now, signature
from .engines import Execution, Waiting
from .errors import spans
from .flight import Flight, Record, Stage
from .memory import Memory, place
from .prepared import Call, Prepared


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
        compare_now(channel, sequence, signature(call, prepared, sequence))
    note(channel, prepared, sequence, (0, 0, 0))


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
