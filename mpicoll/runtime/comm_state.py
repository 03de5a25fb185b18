"""Keep the state of a user's communicator.

It consists of a private communicator for mpicoll's messages, the settings that all ranks agreed on, the plans of
earlier calls, and the operations in flight. All handles on the communicator share one state (see comm/lifetime.py).
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
from ..diagnostics.counters import BROKEN, CALLS, IN_FLIGHT
from ..diagnostics.fault_tolerance import RankFailure, agree_on, is_rank_failure, is_revoked
from ..diagnostics.flight import RECORD
from ..diagnostics.history import FAILED, CommHistory
from ..diagnostics.peer_status import PeerStatus
from ..diagnostics.sinks import Sinks
from ..diagnostics.status import MAX_FAILURES, Failure, describe
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
from .agreement import COMPILING, Agreed, agree, inherit, with_compiled_kernels
from .cache import Cache
from .fast_path import FastPath
from .free_barrier import FreeBarrier
from .inbox import Inbox
from .scratch import Scratch
from .tags import TagPool
from .topology import dup_with_topology, graph_of

LOG = logging.getLogger("mpicoll")
LIVE: dict[int, CommState] = {}  # of communicators that are not freed, by id()
OPENED: list[Callable[[CommState], None]] = []  # called for every new communicator, on all its ranks
LEAKED: list[Any] = []  # memory to which MPI may write until the end of the process
OpenFastPath = Callable[["CommState"], FastPath]


class CommState:
    """The state of one of the user's communicators."""

    def __init__(
        self,
        comm: MPI.Intracomm,
        open_fast_path: OpenFastPath,
        private_comms: Sequence[MPI.Intracomm],
        parent: CommState | None = None,
    ) -> None:
        """Make the state of a communicator. Collective, unless parent and all private communicators are passed.

        private_comms: the one for mpicoll's messages, and that of check mode if it is made already.
        parent: the state of the communicator from which this one was made; settings and engine are then the same.
        """
        self.comm = private_comms[0]
        self.comm.Set_errhandler(MPI.ERRORS_RETURN)
        self.user_handle = MPI._handleof(comm)  # an integer: a reference would keep the user's communicator alive
        self.rank, self.size = comm.rank, comm.size
        self.freed = False  # whether the user's communicator is freed
        self.rank_failure = RankFailure(self)
        self.agreed: Agreed = self._agree() if parent is None else inherit(parent.agreed, parent.comm, self.comm)
        self.settings = self.agreed.settings
        self.cache, self.lessons = Cache(), Lessons()
        RECORD.open()
        self.counters: np.ndarray
        (self.counters, slot), self.needing_python = RECORD.numbers(), needing_python
        self.open_fast_path, self.kernels = open_fast_path, background.state.generation
        self.fast_path = open_fast_path(self)
        background.poll()  # starts the compiler process where kernels are missing
        self.override(Overrides(learn=self.settings.learn))
        self.queue = Queue(self, self.counters[IN_FLIGHT:], self.settings.progress)
        self.sinks = Sinks(self.counters)
        self.warned: set[str] = set()
        self.leaked: list[Any] = []  # aborted operations with messages posted: MPI may still write to their memory
        self.scratch = Scratch(self.fast_path)
        self.tag_pool = TagPool(self)
        self.failures: list[Failure] = []  # the last errors with which calls failed on this rank
        self.place = RECORD.place(self.comm, slot)
        self.peer_status = PeerStatus(self.comm, self.place)
        self.free_barrier, self.inbox = FreeBarrier(self.comm), Inbox(self.comm)
        # In check mode MPI's own collectives start once the ranks have compared their arguments, perhaps not in the
        # order of calls, so they run on a communicator of their own.
        self.check_comm = MPI.Intracomm(None)
        if self.settings.check:
            is_made = len(private_comms) > 1
            self.check_comm = MPI.Intracomm(private_comms[1]) if is_made else dup_with_topology(self.comm, comm)
        self.stencil: Stencil | None = None  # the neighbour offsets passed to Create_stencil, if any
        self.entered = 0  # threads in a call that has its sequence number but may not be in flight yet
        self.checked_until = 0  # without check mode, calls up to this number are compared too
        self.any_form = False  # whether a call may be blocking on one rank and nonblocking on another
        self.last_checked: Operation | None = None
        self.waited_for: tuple[int, ...] = ()  # the ranks that the first call in flight waits for, if it has stalled
        self.object_calls, self.object_call = 0, ""  # lowercase collectives begun, and the name of the one in progress
        self.recovery_call: watchdog.RecoveryCall | None = None
        self.history = CommHistory(RECORD.history, self.place.name, self.place.number)
        if self.settings.check and len(private_comms) == 1:
            agree_on(self.comm, 1)  # from here on, a rank may revoke check_comm
        if is_revoked(comm):
            self.rank_failure.revoke()

    def check_next_calls(self, calls: int) -> None:
        """Compare the ranks' arguments in the next `calls` calls, as check mode does in all. Collective.

        From now on a call may be blocking on one rank and nonblocking on another; MPI's own calls may not.
        """
        self.any_form = True
        if self.check_comm == MPI.COMM_NULL:
            self.check_comm = dup_with_topology(self.comm, MPI.Intracomm.fromhandle(self.user_handle))
        self.checked_until = self.sequence + calls

    def is_checked(self, sequence: int) -> bool:
        """Return whether the ranks compare their arguments in the call with this number."""
        return self.settings.check or 0 < sequence <= self.checked_until

    def begin_private_duplicates(self) -> list[tuple[MPI.Intracomm, MPI.Request]]:
        """Start to duplicate the private communicator, once for every one that a duplicate needs. Collective."""
        return [duplicate.begin_dup(self.comm) for _ in range(1 + self.settings.check)]

    def _agree(self) -> Agreed:
        """Return what the ranks agree on. Raises the same error on every rank, ProcFailedError if a rank fails."""
        try:
            agreed = agree(self.comm)
        except Exception as error:
            if is_rank_failure(error, self.comm):
                MPI.Intracomm.Revoke(self.comm)  # other ranks may wait for a message of this one
            agree_on(self.comm, 0)
            if is_rank_failure(error, self.comm):
                raise self.rank_failure.ended(duplicate.MAKING) from error
            self.comm.Free()
            raise
        if not agree_on(self.comm, 1):
            raise self.rank_failure.ended(duplicate.MAKING)
        return agreed

    def use_engine(self, engine: str) -> None:
        """Check that an engine chosen by using() can run. Raises EngineError if it cannot."""
        if engine == "compiled" and (problem := selftest.check()) is not None:
            raise EngineError(f"engine is 'compiled', and that cannot run here: {problem}; choose mpi4py or auto")

    @property
    def engine(self) -> str:
        """Return the engine that plans run on, under the overrides in force."""
        return self.agreed.engine if self.overrides.engine in (None, "auto") else self.overrides.engine

    @property
    def follows_kernels(self) -> bool:
        """Return whether calls use the mpi4py engine only until the compiled engine is ready."""
        return self.agreed.engine_why == COMPILING and self.overrides.engine in (None, "auto")

    def update_kernels(self) -> None:
        """Switch engine and fast path to the kernels that the compiler process has finished since the last call."""
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
        """Return the graph of neighbourhood collectives. Raises CommError for a communicator without a topology."""
        return graph_of(MPI.Intracomm.fromhandle(self.user_handle)) if self.stencil is None else self.stencil

    # -- choices and plans ------------------------------------------------------------------------------

    def override(self, overrides: Overrides) -> None:
        """Put overrides in force, with the plans cached under them."""
        self.fast_path.activate(overrides)
        self.overrides, self.prepared = overrides, self.cache.activate(overrides)

    def measured(self, collective: str) -> Sequence[Rule]:
        """Return the rules learned from calls under the overrides in force, then those of the tuning table."""
        return self.lessons.measured(collective, self.overrides.learn, self.agreed.measured(collective))

    def forget(self) -> None:
        """Drop the choices and plans cached under the overrides in force."""
        self.prepared.clear()
        self.fast_path.forget()

    def remember(self, key: Hashable, prepared: Any, nbytes: int) -> None:
        """Cache the choice and plan, of nbytes, for calls with this key; see cache.py."""
        self.cache.add(self.prepared, key, prepared, nbytes)

    # -- operations ----------------------------------------------------------------------------------------

    @property
    def sequence(self) -> int:
        """Return the number of the last call, the same on every rank."""
        number: int = self.counters.item(CALLS)
        return number

    def next_sequence(self) -> int:
        """Count a call, and return its number, the same on every rank."""
        number: int = self.counters.item(CALLS) + 1
        self.counters[CALLS] = number
        return number

    def leak(self, memory: Any, sequence: int | None) -> None:
        """Keep the memory of an aborted call with messages posted, since MPI may write to it at any time.

        The tags of this sequence number are not used again: a late message may carry one.
        """
        self.leaked.append(memory)
        if sequence is not None:
            self.counters[BROKEN + sequence % SEQUENCES] = sequence

    def check_tags(self) -> None:
        """Raise CommError if the next call would use the tags of an aborted call with messages in flight."""
        if broken := self.counters.item(BROKEN + (self.sequence + 1) % SEQUENCES):
            raise CommError(
                f"call {broken} on this communicator was aborted with messages in flight, and call "
                f"{self.sequence + 1} would use the same tags; use another communicator, such as comm.Dup()"
            )

    # -- callbacks of the queue: see QueueOwner in progress/queue.py --------------------------------------

    def operation_begins(self, operation: Operation) -> None:
        """Write the row of a call into the history, unless that was done when the call began.

        Timelines name the call by the number of this communicator.
        """
        operation.ring_number = 0 if operation.is_message else self.sinks.ring_sink.number
        if not operation.row and not operation.is_message:
            how, start = (operation.name, operation.form, operation.choice.algorithm), operation.start
            operation.row = self.history.begin(operation.sequence, *how, operation.recorded_arguments, start)

    def operation_ended(self, operation: Operation) -> None:
        """Record the end of an operation: its row, its error for other ranks, and its memory if it was aborted."""
        if operation.was_aborted:
            has_own_tags = operation.form == PERSISTENT or operation.choice.algorithm == NATIVE
            self.leak(operation, None if has_own_tags else operation.sequence)
        self.history.end(operation.row, FAILED if operation.error is not None else 0)
        if operation.error is not None:  # not in a local variable: its traceback refers to this frame
            self.fail(operation.call_id, operation.error)

    def explain(self, operation: Operation, error: BaseException) -> BaseException:
        """Return the error to raise for one that a stage raised: if ranks have failed, an error that names them."""
        return self.explain_error(error, operation.call_id, operation.choice, operation.describe)

    def operation_interrupted(self, operation: Operation, error: BaseException) -> None:
        """Record that an interrupt made this rank leave a call that is still in flight."""
        self.fail(operation.call_id, error)

    def check_stalls(self) -> None:
        """Have the watchdog check the operations in flight."""
        with contained("the watchdog"):
            watchdog.watch(self, time.monotonic())
        watchdog.record(LIVE, self)

    # -- reports ----------------------------------------------------------------------------------------

    def respond(self) -> None:
        """Answer the status questions of other ranks."""
        watchdog.respond(self)
        watchdog.record(LIVE)

    def fail(self, call_id: CallId, error: BaseException, was_made: bool = True) -> None:
        """Record the error with which this rank left a call, or refused its arguments, for the other ranks."""
        with contained("notifying other ranks of an error"):
            self.failures = [*self.failures, Failure(*call_id, describe(error), was_made)][-MAX_FAILURES:]
            watchdog.notify_error(self)

    def explain_error(
        self, error: BaseException, call_id: CallId, choice: Choice, waits: Callable[[], Sequence[str]] = list
    ) -> BaseException:
        """Return the error to raise for one of MPI's: if ranks have failed, an error that names them.

        In that case the communicator is revoked, so that no rank's call on it completes. `waits` describes what the
        call waited for.
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
        """Raise an error that names the failed ranks, if they are the cause of MPI's error; see explain_error()."""
        explained = self.explain_error(error, call_id, choice, waits)
        try:
            if explained is not error:
                raise explained from error
        finally:
            del explained, error  # their tracebacks refer to this frame, and to the caller's with its buffers

    def private_communicators(self) -> list[MPI.Intracomm]:
        """Return all private communicators of this state."""
        return [self.comm, self.check_comm, *self.tag_pool.comms]

    def call_errhandler(self, error: MPI.Exception) -> None:
        """Call the error handler of the user's communicator, once for each error."""
        if not self.freed and not getattr(error, "is_handled", False):
            error.is_handled = True  # type: ignore[attr-defined]
            MPI.Intracomm.fromhandle(self.user_handle).Call_errhandler(error.Get_error_code())

    def notify_exit(self) -> None:
        """Send every rank the message that this rank has ended."""
        watchdog.notify_exit(self)

    def is_watched(self) -> bool:
        """Return whether the watchdog may still report an operation in flight, or abort the run for it."""
        return any(self.settings.abort or not operation.reported for operation in self.queue.in_flight)

    def warn_native_once(self, choice: Choice) -> None:
        """Warn on rank 0, once per reason, that a call runs native, chosen by neither using() nor a tuning table."""
        if self.rank == 0 and not choice.forced and not choice.measured and choice.why not in self.warned:
            self.warned.add(choice.why)
            LOG.warning("%s runs native: %s", choice.collective, choice.why)

    # -- the end ----------------------------------------------------------------------------------------

    def close(self) -> None:
        """Refuse new calls, since the communicator is freed. Operations in flight continue. This calls no MPI."""
        self.freed = True
        self.scratch.close()
        LIVE.pop(id(self), None)
        self.fast_path.close()
        self.tag_pool.close()

    def is_quiet(self) -> bool:
        """Answer status messages; return whether every rank has freed the communicator and no message is in flight."""
        self.respond()
        is_drained = not self.queue.in_flight and not self.leaked and self.peer_status.is_drained
        return is_drained and self.free_barrier.is_complete()

    def free(self, drain: bool = True) -> None:
        """Complete the operations in flight and free the private communicators. A second call does nothing.

        Aborted operations keep their memory, since messages of other ranks may still arrive in it. If status messages
        may be in flight, the private communicator stays: MPI would reuse its context for a communicator that then
        receives them. drain=False is for the end of the program, where MPI frees the communicators itself.
        """
        if self.queue.closed:
            return
        if drain:
            self.queue.drain()
        quiet = drain and self.is_quiet()
        with self.queue.lock:
            self.close()
            self.queue.closed = True
            self.queue.mark_busy(False)
            self.fast_path.leak()
            self.fast_path.clear()
            self.cache.clear()
            self.prepared.clear()
            LEAKED.extend([*self.leaked, *self.peer_status.sent])
            self.tag_pool.free()
            for comm in (self.check_comm, self.comm) if quiet else (self.check_comm,):
                if comm != MPI.COMM_NULL:
                    with suppress(MPI.Exception):  # MPICH raises if a sent message was never received
                        comm.Free()
