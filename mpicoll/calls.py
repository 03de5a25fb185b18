"""Carrying out a call: at once where it is done at once, else as a flight.

What is one rank's own affair (a layout with holes, MPI.IN_PLACE at the root) is settled in memory.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mpi4py import MPI

from . import counts
from .channel import SPIN, Channel
from .check import Exchange, compare_now, signature
from .engines import Execution
from .flight import Flight, Gathering, Record, Running, Stage
from .memory import Memory, divide, place
from .operators import divisor
from .plan import Shares
from .prepared import Call, Prepared, settle


def run(channel: Channel, call: Call, prepared: Prepared) -> None:
    """Carry out a call and return when it is done; one that is done at once never becomes a flight."""
    if channel.flying or channel.settings.check or prepared.plan is None:
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

        def finish() -> None:
            _finish(channel, call, prepared, memory, execution, sequence)

        channel.run(Flight(prepared.choice, sequence, [lambda: Running(execution)], finish, (call, memory)))


def flight(channel: Channel, call: Call, prepared: Prepared) -> Flight:
    """The flight that carries out a call; not launched yet.

    Where the counts of other ranks are needed for a plan, or for a check, it asks for them first.
    """
    under_way = _UnderWay(channel, call, prepared)
    stages: list[Callable[[], Stage]] = [under_way.start]
    if prepared.asks or (channel.settings.check and counts.are_own(call)):
        stages.insert(0, under_way.ask)
    if channel.settings.check:
        mine = signature(call, prepared, under_way.sequence)
        exchange = Exchange(channel.comm, mine)  # now: all ranks in the order of calls
        stages.insert(0, lambda: exchange)
    return Flight(prepared.choice, under_way.sequence, stages, under_way.finish, under_way)


class _UnderWay:
    """A call that is carried out as a flight: the stages that are its own, and what they leave for the next."""

    def __init__(self, channel: Channel, call: Call, prepared: Prepared) -> None:
        self.channel, self.call, self.prepared = channel, call, prepared
        self.memory = None if prepared.asks else place(call, prepared, channel)
        self.sequence = channel.next_sequence()
        self.execution: Execution | None = None

    def ask(self) -> Stage:
        """A stage: learn the counts of the other ranks, and with them what serves."""
        return counts.Asking(self.channel, self.call, self.prepared.choice.engine, self.sequence, self._told)

    def _told(self, every: tuple[int, ...]) -> None:
        if self.prepared.asks:
            assert isinstance(self.call.counts, Shares)
            self.call.counts = replace(self.call.counts, every=every)
            self.prepared = settle(self.channel, self.call, self.prepared)
            self.memory = place(self.call, self.prepared, self.channel)

    def start(self) -> Stage:
        """A stage: the plan."""
        assert self.memory is not None
        self.execution = _bound(self.channel, self.call, self.prepared, self.memory, self.sequence)
        return Running(self.execution)

    def finish(self) -> None:
        """After the last stage."""
        assert self.memory is not None and self.execution is not None
        _finish(self.channel, self.call, self.prepared, self.memory, self.execution, self.sequence)


def _bound(channel: Channel, call: Call, prepared: Prepared, memory: Memory, sequence: int) -> Execution:
    execution = prepared.take(channel.comm)
    bases, operator = (memory.source, memory.target, memory.scratch_address), call.operator
    if operator is None:
        execution.bind(sequence, bases, 0)
    elif not operator.averages:
        execution.bind(sequence, bases, operator.kernel)
    else:
        execution.bind(sequence, bases, operator.kernel, operator.scale, divisor(operator.dtype, channel.size))
    return execution


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


def run_native(channel: Channel, call: Call, prepared: Prepared, native: Callable[[], Any]) -> None:
    """MPI's own collective, and what it cannot do itself."""
    check_native(channel, call, prepared)
    native()
    if call.averages:
        divide(call, prepared, channel)


def start_native(channel: Channel, call: Call, prepared: Prepared, native: Callable[[], Any]) -> MPI.Request | Flight:
    """MPI's own nonblocking collective: its request, or a flight where something is to be done after it."""
    check_native(channel, call, prepared)
    request = native()
    if not call.averages:
        return request
    stage = Adding(request)
    after = lambda: divide(call, prepared, channel)
    return Flight(prepared.choice, channel.next_sequence(), [lambda: stage], after, call)


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


class Adding(Gathering):
    """A stage: a sum made by the MPI itself."""

    what = "the sum"

    def __init__(self, request: MPI.Request) -> None:
        self.request = request
