"""Persistent collectives: everything but the messages is done once, and Start sends them again and again."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from mpi4py import MPI

from ..dispatch.check_mode import comparison, signature
from ..dispatch.execute import UnderWay, may_take_the_fast_path, needs_counts, record
from ..dispatch.methods import Native
from ..dispatch.prepare import Call, Prepared
from ..dispatch.staging import divide
from ..engines.protocol import Execution
from ..errors import CommError, MpicollError, RequestError
from ..fastpath.outcome import Outcome
from ..runtime.channel import Channel
from ..runtime.operation import OURS, Failed, Operation, Polled, Raised, Running, Stage
from ..runtime.status import Standing
from ..runtime.tags import Slot
from ..schedules.collectives import PERSISTENT
from .requests import Completing

if TYPE_CHECKING:
    from ..fastpath.start import CompiledFastStart


class Prequest(Completing, MPI.Prequest):
    """A persistent collective. Start begins it, once what was started before is complete.

    While it is under way it is a handle as a Request is, so that MPI's own Waitall takes it. To start a
    list use mpicoll.Prequest.Startall; MPI.Prequest.Startall knows nothing of plans.
    """

    _repeated: Repeatable | None = None
    _freed: Callable[[], Any]
    _fast_call: Callable[[Prequest], int] = staticmethod(lambda request: 1)
    _finish: Callable[[Prequest], int] = staticmethod(lambda request: 1)

    @classmethod
    def prepare(cls, channel: Channel, repeated: Repeatable) -> Prequest:
        """Return an inactive request."""
        request = cls()
        request._channel, request._repeated = channel, repeated
        if repeated.fast_start is not None:
            request._fast_call, request._finish = repeated.fast_start.fast_call, repeated.fast_start.finish
        request._freed = freed = weakref.finalize(request, repeated.free)
        freed.atexit = False
        return request

    def Start(self) -> None:
        """Begin. Raises RequestError while it is under way or after Free, CommError when its communicator is freed."""
        if self._fast_call(self):
            self._start()

    def _start(self) -> None:
        if self._repeated is None:
            raise RequestError("the request was freed; make another")
        try:
            operation = self._started(self._repeated)
        except MpicollError as error:
            starts = self._channel.started.get(self._repeated.sequence, (0,))
            one = Standing(self._repeated.sequence, int(starts[0]) + 1, self._repeated.name)
            self._channel.fail(one, error, made=False)
            raise
        if operation is None:
            self._be_complete()
        else:
            self._begin(self._channel, operation)

    def _started(self, repeated: Repeatable) -> Operation | None:
        if self._is_under_way():
            raise RequestError("the request is under way; wait for it before it is started again")
        if self._channel.freed:
            raise CommError("the communicator of this request was freed")
        return repeated.next_start()

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the collective. Raises what it raised."""
        return True if status is None and not self._finish(self) else super().Wait(status)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start each, mpicoll's and MPI's own mixed."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Give up the request; what is under way is completed first. Again is harmless."""
        if self._is_under_way():
            self.Wait()
        self._repeated = None
        self._freed()

    free: Any = Free

    def __bool__(self) -> bool:
        return self._repeated is not None

    def __eq__(self, other: object) -> bool:
        """Compare handles; an inactive request equals no other, the null request least of all, as in MPI."""
        if not isinstance(other, MPI.Request):
            return NotImplemented
        return self is other or (super().__eq__(other) and (self._is_under_way() or not self))

    def __ne__(self, other: object) -> bool:
        return NotImplemented if not isinstance(other, MPI.Request) else not self == other

    __hash__ = MPI.Prequest.__hash__


class Repeatable(Protocol):
    """What a persistent request starts."""

    fast_start: CompiledFastStart | None
    sequence: int

    @property
    def name(self) -> str:
        """The method that made it."""

    def next_start(self) -> Operation | None:
        """Return an operation that carries it out once, or goes on with what the fast path began.

        It is None where that was all.
        """

    def free(self) -> None:
        """Give up what is kept for the next time, once nothing is under way."""


class Lasting(ABC):
    """What is given up once nobody can start it any more and nothing of it is under way, whichever comes last.

    This takes no lock that it would wait for: free may run in any thread at any time, where garbage is collected.
    """

    def __init__(self) -> None:
        self.in_flight: Operation | None = None
        self.unwanted = False
        self.broken = False  # whether messages of a start that nobody went on with may be under way
        self.once = threading.Lock()

    def free(self) -> None:
        """Nobody can start it any more."""
        self.unwanted = True
        if not self.broken and (self.in_flight is None or (self.in_flight.done and not self.in_flight.broke_off)):
            self._give_up_once()

    def landed(self) -> None:
        """Advance nothing: nothing of it is under way."""
        self.in_flight = None
        if self.unwanted:
            self._give_up_once()

    def _give_up_once(self) -> None:
        if self.once.acquire(blocking=False):
            self.give_up()

    @abstractmethod
    def give_up(self) -> None:
        """Give back what is held."""


class Again(Running):
    """A stage: one start of a plan. Where MPI refuses something, no other comes by the fast path."""

    def __init__(self, execution: Execution, fast_start: CompiledFastStart | None) -> None:
        super().__init__(execution)
        self.fast_start = fast_start

    def advance(self, seconds: float) -> bool:
        """Go on for at most so long; True when done."""
        try:
            return super().advance(seconds)
        except OURS:
            if self.fast_start is not None:
                self.fast_start.close()
            raise


class Repeated(UnderWay, Lasting):
    """A call that is carried out again and again: its execution, its scratch and its tags are its own."""

    def __init__(self, channel: Channel, call: Call, prepared: Prepared) -> None:
        UnderWay.__init__(self, channel, call, prepared)
        Lasting.__init__(self)
        compare(channel, call, prepared, self.sequence)
        if needs_counts(channel, call, prepared):
            channel.run(Operation(prepared.choice, self.sequence, [self.ask], lambda: None, self, name=self.name))
        self.slot: Slot = channel.persistent.take(self)
        self.tags = self.slot.sequence
        assert self.prepared.plan is not None
        self.own_execution: Any = self.prepared.engine.Execution(
            self.prepared.plan, self.slot.comm, repeated=True
        )
        self.own_scratch = channel.scratch.take(n) if (n := self.prepared.plan.scratch_bytes) else None
        channel.started[self.sequence] = np.zeros(1, np.int64)
        self.fast_start = self._open_fast_start()
        channel.persistent.owners.add(self)  # once it is whole

    def _open_fast_start(self) -> CompiledFastStart | None:
        """Return the fast path of its starts, where all stays as it is from one to the next."""
        if self.channel.fast_path is None or not may_take_the_fast_path(self.call, self.prepared):
            return None
        from ..fastpath.start import CompiledFastStart  # here, since the compiled engine need not load

        self.start()  # binds it
        return CompiledFastStart(
            self.channel, self.own_execution, self.channel.started[self.sequence], self.prepared.nbytes
        )

    def next_start(self) -> Operation | None:
        """Return an operation that carries it out once, or goes on with what the fast path began.

        None where that was all.
        """
        outcome = self.fast_start.outcome() if self.fast_start is not None else Outcome.MISSED
        if self.in_flight is not None and self.in_flight.broke_off:  # its messages are still posted
            raise RequestError("the last start failed with messages under way; make another request")
        self.fast_path = outcome != Outcome.MISSED
        if outcome == Outcome.RAN:
            self._record()
            return None
        # not again, with messages left of this
        if self.fast_start is not None and outcome not in (Outcome.MISSED, Outcome.UNDER_WAY):
            self.fast_start.close()
        if outcome == Outcome.STALE:  # an interrupt came between: nobody went on with the last start
            self.broken = True
            self.channel.leak(self, None)
        if self.broken:
            raise RequestError("the last start was interrupted before it was under way; make another request")
        self.in_flight = self.operation([lambda: self._begun(outcome)])
        self.in_flight.is_begun = self.fast_path
        return self.in_flight

    def _begun(self, outcome: int) -> Stage:
        """Return a stage: the plan, or what the fast path began of it."""
        if outcome == Outcome.MISSED:
            self.start()
        if outcome in (Outcome.MISSED, Outcome.UNDER_WAY):
            return Again(self.own_execution, self.fast_start)
        return Failed(self.own_execution, -outcome)

    def finish(self) -> None:
        """After the last stage."""
        try:
            super().finish()
        except Raised:
            self.landed()
            raise
        self.landed()

    def free(self) -> None:
        """Nobody can start it any more."""
        # an interrupt may have kept anybody from going on with it
        if self.fast_start is not None and self.fast_start.is_under_way():
            self.broken = True
            self.channel.leak(self, None)
        super().free()

    def give_up(self) -> None:
        """Give back the tags and the scratch."""
        self.close()
        self.slot.free()
        self.channel.started.pop(self.sequence, None)
        self.channel.scratch.give(self.own_scratch)

    def close(self) -> None:
        """Let go of the persistent requests of messages."""
        if self.fast_start is not None:
            self.fast_start.close()
        self.own_execution.free()

    def _scratch(self, nbytes: int) -> np.ndarray | None:
        return self.own_scratch

    def _execution(self) -> Execution:
        execution: Execution = self.own_execution
        return execution

    def _give_back(self) -> None:
        """Free nothing: it is wanted again."""


class RepeatedNative(Lasting):
    """MPI's own persistent collective where it is watched, or does not do all."""

    fast_start: CompiledFastStart | None = None

    def __init__(self, channel: Channel, call: Call, prepared: Prepared, request: MPI.Prequest) -> None:
        super().__init__()
        self.channel, self.call, self.prepared, self.request = channel, call, prepared, request
        self.sequence, self.name, self.averages = channel.next_sequence(), call.name, False
        channel.persistent.owners.add(self)
        channel.started[self.sequence] = np.zeros(1, np.int64)

    def next_start(self) -> Operation | None:
        """Return an operation that carries it out once."""
        self.request.Start()
        self.averages = self.call.averages
        polled = Polled(self.request, "MPI's own collective")
        self.in_flight = Operation(
            self.prepared.choice, self.sequence, [lambda: polled], self._finish, self, PERSISTENT, self.call.name
        )
        return self.in_flight

    def _finish(self) -> None:
        averages, self.averages = self.averages, False  # once, though an interrupt may have this called again
        if averages:
            divide(self.call, self.prepared, self.channel)
        self.landed()

    def close(self) -> None:
        """Its communicator goes."""
        self.free()

    def give_up(self) -> None:
        """Free MPI's own request."""
        self.channel.started.pop(self.sequence, None)
        if not MPI.Is_finalized():
            self.request.Free()


def compare(channel: Channel, call: Call, prepared: Prepared, sequence: int) -> None:
    """In check mode: whether all ranks make the same request. Raises MismatchError."""
    if channel.settings.check:
        channel.run(comparison(channel, signature(call, prepared, sequence), call.name))


def prepare(
    channel: Channel, comm: MPI.Intracomm, call: Call, prepared: Prepared, native: Native, info: MPI.Info
) -> MPI.Prequest:
    """Return a request that carries a call out whenever it is started. Collective."""
    if not prepared.is_native:
        return Prequest.prepare(channel, Repeated(channel, call, prepared))
    channel.say_once(prepared.choice)
    sequence = channel.next_sequence()
    compare(channel, call, prepared, sequence)
    channel.record(record(call, prepared, sequence))
    request: MPI.Prequest = native(PERSISTENT, info)(comm)
    if not (call.averages or channel.settings.watched):
        return request
    return Prequest.prepare(channel, RepeatedNative(channel, call, prepared, request))
