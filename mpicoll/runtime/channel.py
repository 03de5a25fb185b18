"""The channel: all that mpicoll keeps for one communicator of the user's.

That is a private communicator for its messages, settings that all ranks agree on, the plans of earlier calls, and the
operations in flight. Every handle on the communicator shares one channel (see comm/lifetime.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from mpi4py import MPI

from ..engines import selftest
from ..errors import CommError, EngineError
from ..kernels import background
from ..plans.plan import SEQUENCES
from ..schedules.collectives import PERSISTENT
from ..selection.select import NATIVE, Choice, Overrides
from . import duplicate, progress, watchdog
from .agreement import COMPILING, Agreed, agree, inherited, with_compiled_kernels
from .cache import Cache
from .counters import BROKEN, CALLS, NUMBERS, TRACES
from .fast_path import FastPath
from .faults import contained
from .free_barrier import FreeBarrier
from .operation import Operation, Record, Sink
from .peer_status import PeerStatus
from .scratch import Scratch
from .status import RECENT, CallId, Failure, describe
from .tags import TagPool

LOG = logging.getLogger("mpicoll")
SPIN = 0.01  # seconds an engine may run before signals, the watchdog and other operations are served

LIVE: dict[int, Channel] = {}  # the channels that are not freed, by id()
_busy: set[Channel] = set()  # channels with something in flight
_how_busy = np.zeros(1, np.int64)  # their number, which fastpath/entry.py reads
_busy_lock = threading.RLock()
LEAKED: list[Any] = []  # memory to which MPI may write until the end of the process
OpenFastPath = Callable[["Channel"], FastPath]


def anything_in_flight() -> bool:
    """Return whether a collective is under way on any communicator of this process."""
    return bool(_busy)


def advance_all(but: Channel | None = None) -> None:
    """Advance what is in flight on every communicator, except where another thread is doing so."""
    for channel in list(_busy):
        if channel is not but:
            channel.poll(blocking=False)


class Channel:
    """The private side of one communicator."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        open_fast_path: OpenFastPath,
        parent: Channel | None = None,
        own: Sequence[MPI.Intracomm] = (),
    ) -> None:
        """Set up for a communicator. Collective, unless it is given private communicators that were made before.

        parent: the channel of the communicator that this one was made from; settings and engine are then the same.
        """
        own = own or [duplicate.without_attributes(comm)]
        self.comm = own[0]
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.user_handle = MPI._handleof(comm)  # an integer, which keeps nothing of the user's communicator alive
        self.rank, self.size = comm.rank, comm.size
        self.agreed: Agreed = self._agree() if parent is None else inherited(parent.agreed, parent.comm, self.comm)
        self.settings = self.agreed.settings
        self.cache = Cache()
        self.numbers, self.how_busy = np.zeros(NUMBERS, np.int64), _how_busy
        self.open_fast_path, self.kernels = open_fast_path, background.state.generation
        self.fast_path = open_fast_path(self)
        background.poll()  # starts the compiler process where kernels are missing
        self.override(Overrides())
        self.in_flight: list[Operation] = []
        self.slots: dict[int, Operation] = {}
        self.lock = threading.RLock()
        self.traces: list[Sink] = []
        self.said: set[str] = set()
        self.leaked: list[Any] = []  # operations that broke off with messages posted: their memory must stay
        self.scratch = Scratch(self.fast_path)
        self.freed = False  # whether the user's communicator is
        self.over = False  # whether the private ones are, too
        self.persistent = TagPool(self)
        self.started: dict[int, np.ndarray] = {}  # how often each persistent collective was, by the call that made it
        self.failures: list[Failure] = []  # the last errors by which this rank left calls
        self.peer_status = PeerStatus(self.comm)
        self.free_barrier = FreeBarrier(self.comm)
        # In check mode MPI's own collectives start once the ranks have compared the call. That need not be in the order
        # of calls, so they have a communicator to themselves.
        self.compared = MPI.Intracomm((own[1] if own[1:] else self.comm.Dup()) if self.settings.check else None)
        self.entered = 0  # threads that begin a call, which is counted and perhaps not in flight yet
        self.compared_until = 0  # the calls up to this one are compared without check mode, too
        self.any_form = False  # whether ranks may make a call in different forms
        self.last_compared: Operation | None = None

    def compare_first(self, calls: int) -> None:
        """Compare what the ranks give in so many of the next calls, as check mode does in all. Collective.

        From now on a call may be blocking on one rank and nonblocking on another, which MPI's own calls may not.
        """
        self.any_form = True
        if self.compared == MPI.COMM_NULL:
            self.compared = MPI.Intracomm(self.comm.Dup())
        self.compared_until = self.sequence + calls

    def compares(self, sequence: int) -> bool:
        """Return whether the ranks compare what they give in that call."""
        return self.settings.check or 0 < sequence <= self.compared_until

    def begin_copies(self) -> list[tuple[MPI.Intracomm, MPI.Request]]:
        """Start making the communicators that a channel like this one has for itself. Collective."""
        return [duplicate.begin(self.comm) for _ in range(1 + self.settings.check)]

    def _agree(self) -> Agreed:
        try:
            return agree(self.comm)
        except Exception:
            self.comm.Free()
            raise

    def use_engine(self, engine: str) -> None:
        """Check that an engine chosen by using() can run. Raises EngineError."""
        if engine == "compiled" and (problem := selftest.check()) is not None:
            raise EngineError(f"the compiled engine was asked for and cannot run here: {problem}")

    @property
    def follows_kernels(self) -> bool:
        """Return whether calls use the mpi4py engine only until the compiled engine is ready."""
        return self.agreed.engine_why == COMPILING and self.overrides.engine in (None, "auto")

    def update_kernels(self) -> None:
        """Use the kernels that a compiler process has delivered since the last time: the engine and the fast path."""
        background.poll()
        if self.kernels == background.state.generation:
            return
        with self.lock:
            self.kernels = background.state.generation
            agreed, self.agreed = self.agreed, with_compiled_kernels(self.agreed, self.comm)
            if self.agreed.engine != agreed.engine:
                self.cache.clear()
            if self.fast_path.closed and not self.freed:
                self.fast_path = self.open_fast_path(self)
                self.scratch = Scratch(self.fast_path)
            self.override(self.overrides)

    # -- what calls need --------------------------------------------------------------------------------

    def override(self, overrides: Overrides) -> None:
        """Put overrides in force; what served calls under them before is used again."""
        self.fast_path.activate(overrides)
        self.overrides, self.prepared = overrides, self.cache.activate(overrides)

    def remember(self, key: Hashable, prepared: Any, nbytes: int) -> None:
        """Cache what serves a kind of call and takes nbytes of memory; see cache.py."""
        self.cache.add(self.prepared, key, prepared, nbytes)

    # -- operations ----------------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """The number of the last call, the same on every rank."""
        number: int = self.numbers.item(CALLS)
        return number

    def next_sequence(self) -> int:
        """Return the number of a call, the same on every rank."""
        self.numbers[CALLS] = number = self.numbers.item(CALLS) + 1
        return number

    def leak(self, what: Any, sequence: int | None) -> None:
        """Keep an operation that broke off with messages posted, since MPI may write to its memory at any time.

        The tags of that sequence number are not used again: a late message may still carry one.
        """
        self.leaked.append(what)
        if sequence is not None:
            self.numbers[BROKEN + sequence % SEQUENCES] = sequence

    def check_tags(self) -> None:
        """Raise CommError where the tags of the next call may be those of messages that a broken-off call left."""
        if broken := self.numbers.item(BROKEN + (self.sequence + 1) % SEQUENCES):
            raise CommError(
                f"call {broken} on this communicator was aborted with messages in flight, and call "
                f"{self.sequence + 1} would use the same tags; use another communicator, such as comm.Dup()"
            )

    def _is_busy(self, busy: bool) -> None:
        with _busy_lock:
            (_busy.add if busy else _busy.discard)(self)
            _how_busy[0] = len(_busy)

    def launch(self, operation: Operation) -> None:
        """Put an operation in flight. If it has the tags of an earlier one, it begins when that one is done."""
        with self.lock:
            if operation.form == PERSISTENT:  # these have tags of their own
                operation.start = self._next_start(operation)
            elif operation.choice.algorithm != NATIVE:  # and these use none
                slot = operation.sequence % SEQUENCES
                operation.after = operation.after or self.slots.get(slot)
                self.slots[slot] = operation
            self.in_flight.append(operation)
            self._is_busy(True)

    def begin(self, operation: Operation) -> float:
        """Launch an operation for which the caller waits later, and return when that was."""
        since = progress.THREAD.enter()
        with self.lock:
            self.launch(operation)
            if not operation.is_begun:
                self.step(0.0)
        self.background()
        progress.THREAD.leave()
        return since

    def _next_start(self, operation: Operation) -> int:
        """Return which start of a persistent collective this is. One that was begun elsewhere is counted already."""
        started = self.started[operation.sequence]
        started += not operation.is_begun
        return int(started[0])

    def run(self, operation: Operation) -> None:
        """Launch an operation and wait for it, advancing all others too. Raises the operation's error."""
        self.launch(operation)
        try:
            self.wait(operation)
        except BaseException as error:
            if not operation.done:  # a signal handler raised: the call is still in flight, without a waiter
                self.fail(operation.call_id, error)
            raise

    def wait(self, operation: Operation) -> None:
        """Advance everything in this process until this operation is done. Raises the operation's error."""
        self.advance_until_done(operation)
        self.tell(operation)

    def tell(self, operation: Operation) -> None:
        """Raise the error of an operation that is done, once; the communicator's error handler is called before."""
        try:
            operation.tell()
        except MPI.Exception as error:
            self.call_errhandler(error)
            raise

    def advance_until_done(self, operation: Operation) -> None:
        """Advance everything in this process until this operation is done, without raising its error."""
        progress.THREAD.waiters.add(thread := threading.get_ident())
        try:
            while not operation.done:
                with self.lock:
                    if operation.done:
                        break
                    alone = len(self.in_flight) == len(_busy) == 1
                    self.turn(SPIN if alone else 0.0)
                if not operation.done and not alone:
                    advance_all(but=self)
                    os.sched_yield()
        finally:
            progress.THREAD.waiters.discard(thread)

    def turn(self, seconds: float) -> None:
        """Advance every operation once; if none ends, have the watchdog check for stalls."""
        if not self.step(seconds):
            with contained("the watchdog"):
                watchdog.watch(self, time.monotonic())

    def step(self, seconds: float) -> bool:
        """Advance every operation once. Return whether any ended."""
        ended = [operation for operation in self.in_flight if operation.step(seconds)]
        for operation in ended:
            if operation.broke_off:
                has_own_tags = operation.form == PERSISTENT or operation.choice.algorithm == NATIVE
                self.leak(operation, None if has_own_tags else operation.sequence)
            if self.slots.get(operation.sequence % SEQUENCES) is operation:
                del self.slots[operation.sequence % SEQUENCES]
            self.in_flight.remove(operation)
            if operation.error is not None:  # no name for it here: its traceback holds this frame
                self.fail(operation.call_id, operation.error)
        if not self.in_flight:
            self._is_busy(False)
        return bool(ended)

    def poll(self, blocking: bool = True) -> bool:
        """Make one pass over what is in flight, and return whether anything is left.

        Not blocking: make none if another thread is at it.
        """
        if not self.lock.acquire(blocking):
            return True
        try:
            if self.in_flight and not self.over:
                self.turn(0.0)
            if not self.in_flight:  # an error or an interrupt in an earlier pass may have left it busy
                self._is_busy(False)
            return bool(self.in_flight)
        finally:
            self.lock.release()

    def background(self) -> None:
        """Have the progress thread advance what is in flight."""
        if self.in_flight and self.settings.progress and progress.ProgressThread.possible():
            progress.THREAD.watch(self)

    # -- reports ----------------------------------------------------------------------------------------

    def respond(self) -> None:
        """Answer the status questions of other ranks."""
        watchdog.respond(self)

    def fail(self, one: CallId, error: BaseException, made: bool = True) -> None:
        """Record the error by which this rank left or refused a call, for status messages to other ranks."""
        with contained("telling other ranks of an error"):
            self.failures = [*self.failures, Failure(*one, describe(error), made)][-RECENT:]
            watchdog.notify_error(self)

    def call_errhandler(self, error: MPI.Exception) -> None:
        """Call the error handler of the user's communicator, as MPI does, once for each error."""
        if not self.freed and not getattr(error, "is_handled", False):
            error.is_handled = True  # type: ignore[attr-defined]
            MPI.Intracomm.fromhandle(self.user_handle).Call_errhandler(error.Get_error_code())

    def notify_exit(self) -> None:
        """Tell every rank that this one has ended."""
        watchdog.notify_exit(self)

    def is_watched(self) -> bool:
        """Return whether the watchdog may still report something in flight, or abort the run for it."""
        return any(self.settings.abort or not operation.reported for operation in self.in_flight)

    def trace(self, sink: Sink) -> None:
        """Append the records of all calls to this sink too."""
        self.traces.append(sink)
        self.numbers[TRACES] = len(self.traces)

    def untrace(self, sink: Sink) -> None:
        """Append no more records to this sink."""
        self.traces[:] = [other for other in self.traces if other is not sink]  # equal ones are others'
        self.numbers[TRACES] = len(self.traces)

    def record(self, record: Record) -> None:
        """Append a record to every sink."""
        for trace in self.traces:
            trace.append(record)

    def say_once(self, choice: Choice) -> None:
        """Warn on rank 0, once per reason, that a call runs native, chosen by neither using() nor a tuning table."""
        if self.rank == 0 and not choice.forced and not choice.measured and choice.why not in self.said:
            self.said.add(choice.why)
            LOG.warning("%s runs native: %s", choice.collective, choice.why)

    def drain(self) -> None:
        """Complete what is in flight."""
        while self.in_flight:
            with self.lock:
                self.turn(0.0)
            advance_all(but=self)
            os.sched_yield()

    # -- the end ----------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Refuse new calls, since the communicator is freed. Operations in flight continue. This calls no MPI."""
        self.freed = True
        self.scratch.close()
        LIVE.pop(id(self), None)
        self.fast_path.close()
        self.persistent.close()

    def is_quiet(self) -> bool:
        """Return whether every rank has left and nothing is in flight. Answer status messages, and never wait."""
        self.respond()
        joins = not self.in_flight and not self.leaked and self.peer_status.is_drained
        return joins and self.free_barrier.is_complete()

    def free(self, drain: bool = True) -> None:
        """Complete what is in flight and free the private communicators. A second call does nothing.

        At the end of the program, where nothing is drained, MPI frees them itself.
        Operations that broke off keep their memory, since messages of other ranks may still arrive in it. Where notes
        may still be on their way the communicator stays: MPI would give its context to another, and them with it.
        """
        if self.over:
            return
        if drain:
            self.drain()
        quiet = drain and self.is_quiet()
        with self.lock:
            self.leave()
            self.over = True
            self._is_busy(False)
            self.fast_path.leak()
            self.fast_path.clear()
            self.cache.clear()
            self.prepared.clear()
            LEAKED.extend([*self.leaked, *self.peer_status.sent])
            self.persistent.free()
            for comm in (self.compared, self.comm) if quiet else (self.compared,):
                if comm != MPI.COMM_NULL:
                    with suppress(MPI.Exception):  # MPICH's, where a rank never took what another sent
                        comm.Free()
