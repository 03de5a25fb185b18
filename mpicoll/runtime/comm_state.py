"""The state of a communicator: all that mpicoll keeps for one of the user's.

That is a private communicator for its messages, settings that all ranks agree on, the plans of earlier calls, and the
operations in flight. Every handle on the communicator shares one state (see comm/lifetime.py).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np
from mpi4py import MPI

from ..diagnostics import watchdog
from ..diagnostics.counters import BROKEN, CALLS, IN_FLIGHT, TRACES
from ..diagnostics.fault_tolerance import RankFailure, await_others, is_rank_failure
from ..diagnostics.flight import RECORD
from ..diagnostics.history import FAILED, CommHistory
from ..diagnostics.peer_status import PeerStatus
from ..diagnostics.record import Record, Sink
from ..diagnostics.status import RECENT, Failure, describe
from ..engines import selftest
from ..errors import CommError, EngineError, MpicollError
from ..kernels import background
from ..plans.plan import SEQUENCES
from ..progress.faults import attempt, contained
from ..progress.operation import CallId, Operation
from ..progress.queue import Queue, needing_python
from ..schedules.collectives import PERSISTENT
from ..schedules.graphs import Graph
from ..schedules.stencils import Stencil
from ..selection.learning import Lessons
from ..selection.rules import Rule
from ..selection.select import NATIVE, Choice, Overrides
from . import duplicate
from .agreement import COMPILING, Agreed, agree, inherited, with_compiled_kernels
from .cache import Cache
from .fast_path import FastPath
from .free_barrier import FreeBarrier
from .inbox import Inbox
from .scratch import Scratch
from .tags import TagPool
from .topology import graph_of, with_topology

LOG = logging.getLogger("mpicoll")
LIVE: dict[int, CommState] = {}  # of the communicators that are not freed, by id()
OPENED: list[Callable[[CommState], None]] = []  # called for every new communicator, on all its ranks
LEAKED: list[Any] = []  # memory to which MPI may write until the end of the process
OpenFastPath = Callable[["CommState"], FastPath]


class CommState:
    """The state of one communicator, of which the user has handles."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        open_fast_path: OpenFastPath,
        parent: CommState | None = None,
        own: Sequence[MPI.Intracomm] = (),
    ) -> None:
        """Set up for a communicator. Collective, unless it is given private communicators that were made before.

        parent: the state of the communicator that this one was made from; settings and engine are then the same.
        """
        self.comm = own[0] if own else duplicate.without_attributes(comm)
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.user_handle = MPI._handleof(comm)  # an integer, which keeps nothing of the user's communicator alive
        self.rank, self.size = comm.rank, comm.size
        self.agreed: Agreed = self._agree() if parent is None else inherited(parent.agreed, parent.comm, self.comm)
        self.settings = self.agreed.settings
        self.cache, self.lessons = Cache(), Lessons()
        RECORD.open()
        self.numbers: np.ndarray
        (self.numbers, slot), self.needing_python = RECORD.numbers(), needing_python
        self.open_fast_path, self.kernels = open_fast_path, background.state.generation
        self.fast_path = open_fast_path(self)
        background.poll()  # starts the compiler process where kernels are missing
        self.override(Overrides(learn=self.settings.learn))
        self.queue = Queue(self, self.numbers[IN_FLIGHT:], self.settings.progress)
        self.traces: list[Sink] = []
        self.said: set[str] = set()
        self.leaked: list[Any] = []  # operations that broke off with messages posted: their memory must stay
        self.scratch = Scratch(self.fast_path)
        self.freed = False  # whether the user's communicator is
        self.persistent = TagPool(self)
        self.failures: list[Failure] = []  # the last errors by which this rank left calls
        self.peer_status = PeerStatus(self.comm)
        self.rank_failure = RankFailure(self)
        self.free_barrier, self.inbox = FreeBarrier(self.comm), Inbox(self.comm)
        # In check mode MPI's own collectives start once the ranks have compared the call. That need not be in the order
        # of calls, so they have a communicator to themselves.
        self.compared = MPI.Intracomm(None)
        if self.settings.check:
            self.compared = MPI.Intracomm(own[1]) if own[1:] else with_topology(self.comm, comm)
        self.stencil: Stencil | None = None  # the offsets of neighbours, where the program said them
        self.entered = 0  # threads that begin a call, which is counted and perhaps not in flight yet
        self.compared_until = 0  # the calls up to this one are compared without check mode, too
        self.any_form = False  # whether ranks may make a call in different forms
        self.last_compared: Operation | None = None
        self.waited_for: tuple[int, ...] = ()  # the ranks that the first call in flight waits for, if it has stalled
        self.place = RECORD.place(self.comm, slot)
        self.history = CommHistory(RECORD.history, *(self.place.name, self.place.number) if self.place else ("", 0))
        if not own:
            await_others(self.comm)  # from here on, a rank may revoke the communicator

    def compare_first(self, calls: int) -> None:
        """Compare what the ranks give in so many of the next calls, as check mode does in all. Collective.

        From now on a call may be blocking on one rank and nonblocking on another, which MPI's own calls may not.
        """
        self.any_form = True
        if self.compared == MPI.COMM_NULL:
            self.compared = with_topology(self.comm, MPI.Intracomm.fromhandle(self.user_handle))
        self.compared_until = self.sequence + calls

    def compares(self, sequence: int) -> bool:
        """Return whether the ranks compare what they give in that call."""
        return self.settings.check or 0 < sequence <= self.compared_until

    def begin_copies(self) -> list[tuple[MPI.Intracomm, MPI.Request]]:
        """Start making the communicators that a duplicate of this one has for itself. Collective."""
        return [duplicate.begin(self.comm) for _ in range(1 + self.settings.check)]

    def _agree(self) -> Agreed:
        try:
            return agree(self.comm)
        except Exception:
            await_others(self.comm)
            self.comm.Free()
            raise

    def use_engine(self, engine: str) -> None:
        """Check that an engine chosen by using() can run. Raises EngineError."""
        if engine == "compiled" and (problem := selftest.check()) is not None:
            raise EngineError(f"the compiled engine was asked for and cannot run here: {problem}")

    @property
    def engine(self) -> str:
        """Return the engine that plans run on, under the overrides in force."""
        return self.agreed.engine if self.overrides.engine in (None, "auto") else self.overrides.engine

    @property
    def follows_kernels(self) -> bool:
        """Return whether calls use the mpi4py engine only until the compiled engine is ready."""
        return self.agreed.engine_why == COMPILING and self.overrides.engine in (None, "auto")

    def update_kernels(self) -> None:
        """Use the kernels that a compiler process has delivered since the last time: the engine and the fast path."""
        background.poll()
        if self.kernels == background.state.generation:
            return
        with self.queue.lock:
            self.kernels = background.state.generation
            agreed, self.agreed = self.agreed, with_compiled_kernels(self.agreed, self.comm)
            if self.agreed.engine != agreed.engine:
                self.cache.clear()
            if self.fast_path.closed and not self.freed:
                self.fast_path = self.open_fast_path(self)
                self.scratch = Scratch(self.fast_path)
            self.override(self.overrides)

    @cached_property
    def graph(self) -> Graph:
        """The graph of neighbourhood collectives. Raises CommError for a communicator without a topology."""
        return graph_of(MPI.Intracomm.fromhandle(self.user_handle)) if self.stencil is None else self.stencil

    # -- what calls need --------------------------------------------------------------------------------

    def override(self, overrides: Overrides) -> None:
        """Put overrides in force; what served calls under them before is used again."""
        self.fast_path.activate(overrides)
        self.overrides, self.prepared = overrides, self.cache.activate(overrides)

    def measured(self, collective: str) -> Sequence[Rule]:
        """Return the rules that calls taught under the overrides in force, and those of the tuning table."""
        return self.lessons.measured(collective, self.overrides.learn, self.agreed.measured(collective))

    def forget(self) -> None:
        """Choose anew for every kind of call that was served under the overrides in force."""
        self.prepared.clear()
        self.fast_path.forget()

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
        number: int = self.numbers.item(CALLS) + 1
        self.numbers[CALLS] = number
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

    # -- what its queue tells it: see progress/queue.py ---------------------------------------------------

    def operation_begins(self, operation: Operation) -> None:
        """Write the row of a call, unless it was written when the call began."""
        if not operation.row and not operation.is_message:
            how, start = (operation.name, operation.form, operation.choice.algorithm), operation.start
            operation.row = self.history.begin(operation.sequence, *how, operation.passed, start)

    def operation_ended(self, operation: Operation) -> None:
        """Keep the memory of an operation that broke off, and its error for other ranks."""
        if operation.broke_off:
            has_own_tags = operation.form == PERSISTENT or operation.choice.algorithm == NATIVE
            self.leak(operation, None if has_own_tags else operation.sequence)
        self.history.end(operation.row, FAILED if operation.error is not None else 0)
        if operation.error is not None:  # no name for it here: its traceback holds this frame
            self.fail(operation.call_id, operation.error)

    def explain(self, operation: Operation, error: BaseException) -> BaseException:
        """Return the error that an operation ends with: where ranks have failed, one that says so."""
        return self.explained(error, operation.call_id, operation.choice, operation.describe)

    def operation_interrupted(self, operation: Operation, error: BaseException) -> None:
        """Keep the error by which this rank left a call that is still in flight."""
        self.fail(operation.call_id, error)

    def check_stalls(self) -> None:
        """Have the watchdog check what is in flight."""
        with contained("the watchdog"):
            watchdog.watch(self, time.monotonic())
        watchdog.record(LIVE, self)

    # -- reports ----------------------------------------------------------------------------------------

    def respond(self) -> None:
        """Answer the status questions of other ranks."""
        watchdog.respond(self)
        watchdog.record(LIVE)

    def fail(self, call_id: CallId, error: BaseException, was_made: bool = True) -> None:
        """Record the error by which this rank left or refused a call, for status messages to other ranks."""
        with contained("telling other ranks of an error"):
            self.failures = [*self.failures, Failure(*call_id, describe(error), was_made)][-RECENT:]
            watchdog.notify_error(self)

    def explained(
        self, error: BaseException, call_id: CallId, choice: Choice, waits: Callable[[], Sequence[str]] = list
    ) -> BaseException:
        """Return the error to raise for one of MPI's: where ranks have failed, one that names them.

        Then no call on this communicator completes on any rank any more. waits returns what the call waited for.
        """
        if isinstance(error, MpicollError) or not is_rank_failure(error, self.comm):
            return error
        self.rank_failure.revoke()
        how = choice.algorithm if choice.algorithm == NATIVE else f"{choice.algorithm}, {choice.engine} engine"
        lines: Sequence[str] = attempt("explaining an error", waits, ())
        steps = [line.partition(", waits")[0] for line in lines if line.startswith("step")]
        words = ", in ".join([f"{call_id}, {how}", *steps[:1]])
        return attempt("explaining an error", lambda: self.rank_failure.ended(words), error)

    def raise_if_ranks_failed(
        self, error: BaseException, call_id: CallId, choice: Choice, waits: Callable[[], Sequence[str]] = list
    ) -> None:
        """Raise an error that names the ranks that failed, if that is why MPI raised this one; see explained()."""
        explained = self.explained(error, call_id, choice, waits)
        try:
            if explained is not error:
                raise explained from error
        finally:
            del explained, error  # their tracebacks hold this frame, and the caller's with its buffers

    def private_communicators(self) -> list[MPI.Intracomm]:
        """Return the communicators that the ranks have beside the program's."""
        return [self.comm, self.compared, *self.persistent.comms]

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
        return any(self.settings.abort or not operation.reported for operation in self.queue.in_flight)

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
        joins = not self.queue.in_flight and not self.leaked and self.peer_status.is_drained
        return joins and self.free_barrier.is_complete()

    def free(self, drain: bool = True) -> None:
        """Complete what is in flight and free the private communicators. A second call does nothing.

        At the end of the program, where nothing is drained, MPI frees them itself.
        Operations that broke off keep their memory, since messages of other ranks may still arrive in it. Where notes
        may still be on their way the communicator stays: MPI would give its context to another, and them with it.
        """
        if self.queue.closed:
            return
        if drain:
            self.queue.drain()
        quiet = drain and self.is_quiet()
        with self.queue.lock:
            self.leave()
            self.queue.closed = True
            self.queue.is_busy(False)
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
