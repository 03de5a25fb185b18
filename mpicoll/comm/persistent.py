"""Define persistent collectives: a call is prepared once, and its starts only send the messages."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from ..diagnostics.history import HANDED_OVER, RowWords, with_root
from ..dispatch.call import Call
from ..dispatch.check_mode import comparison, signature
from ..dispatch.execute import ActiveCall, can_take_fast_path, needs_counts, note_call, record
from ..dispatch.nonfinite import needs_nonfinite_exchange
from ..dispatch.prepare import switch_engine
from ..dispatch.staging import divide_result
from ..engines.protocol import Execution
from ..errors import RequestError
from ..fastpath.outcome import Outcome
from ..kernels import background
from ..progress.faults import contained
from ..progress.operation import Operation, Raised
from ..progress.stages import FailedStage, PlanStage, RequestStage, Stage
from ..progress.times import Clock, now
from ..runtime.comm_state import CommState
from ..runtime.tags import TagSlot
from ..schedules.collectives import PERSISTENT
from . import release
from .prequest import Prequest
from .requests import keep_buffers_alive

if TYPE_CHECKING:
    from ..fastpath.start import CompiledFastStart


class PersistentCall(ActiveCall):
    """A call that is started repeatedly: by its plan, or by MPI's own request if that is watched or averages.

    It owns an execution, scratch and tags. They are freed once the request is gone and no start is in flight. free()
    may run in any thread at any time, since garbage collection calls it. So free() never waits for a lock, and defers
    calls of MPI (release.py). The fast path is open while no start is in flight.
    """

    def __init__(self, state: CommState, call: Call, sequence: int, native: MPI.Prequest | None = None) -> None:
        super().__init__(state, call, sequence)
        self.native_request, self.fast_start = native, None
        self.in_flight: Operation | None = None
        self.is_freed = False
        self.needs_division = False  # whether the sum of MPI's own request must still be divided
        self.was_interrupted = False  # whether an interrupted start may have messages in flight
        self.free_lock = threading.Lock()
        if native is None:
            self._allocate()
        state.queue.started[sequence] = np.zeros(1, np.int64)
        if native is None and can_take_fast_path(self.call):
            self.fast_start = self._open_fast_start()
        state.tag_pool.owners.add(self)  # last, when the object is complete

    def _allocate(self) -> None:
        """Allocate tags, execution and scratch for the plan. Collective."""
        state = self.state
        if needs_counts(state, self.call, 0):
            choice, stages = self.call.prepared.choice, [self.exchange_counts]
            state.queue.run(Operation(choice, self.sequence, stages, lambda: None, self, name=self.name))
        plan = self.call.prepared.plan
        assert plan is not None
        self.slot: TagSlot = state.tag_pool.take(self)
        self.tags = self.slot.sequence
        self.kernels, self.follows_engine = background.state.generation, state.follows_kernels
        self.own_execution: Any = self.call.prepared.engine.Execution(plan, self.slot.comm, repeated=True)
        self.own_scratch = super()._scratch()

    def _open_fast_start(self) -> CompiledFastStart | None:
        """Return the fast path of its starts, after binding the execution for all of them; None if it is closed."""
        if self.state.fast_path.closed or background.state.pending:
            return None
        self.start()  # binds the execution
        started = self.state.queue.started[self.sequence]
        call, passed = self.call, self.call.recorded_arguments
        history = self.state.history
        ids = history.ids(call.name, call.form, call.prepared.choice.algorithm, passed.operator)
        words = RowWords(ids, self.sequence | history.number, with_root(0, passed.root), passed.nbytes)
        common = record(call, self.sequence)
        fast_start: CompiledFastStart | None
        fast_start = self.state.fast_path.open_start(call, self.own_execution, started, words, common)
        return fast_start

    def update_kernels(self) -> bool:
        """Use kernels that were compiled since the last start. Return whether the fast path of starts has opened."""
        if self.native_request is not None or self.fast_start is not None or self.in_flight is not None:
            return False
        self.state.update_kernels()
        if self.kernels == background.state.generation:
            return False
        self.kernels = background.state.generation
        choice = self.call.prepared.choice
        switch_engine(self.call, self.state.agreed.engine if self.follows_engine else choice.engine)
        prepared = self.call.prepared
        self.own_execution.free()
        self.own_execution = prepared.engine.Execution(prepared.plan, self.slot.comm, repeated=True)
        if can_take_fast_path(self.call):
            self.fast_start = self._open_fast_start()
        return self.fast_start is not None

    @property
    def started(self) -> int:
        """Return which start is the last, from 1 on."""
        return int(self.state.queue.started[self.sequence][0])

    def next_start(self) -> Operation | None:
        """Return the operation of one start, or one that completes a start of the fast path; None if it is complete.

        Raises RequestError if an earlier start was aborted with messages posted.
        """
        outcome = self.fast_start.outcome() if self.fast_start is not None else Outcome.NOT_SERVED
        if self.in_flight is not None and self.in_flight.was_aborted:  # its messages are still posted
            raise RequestError("the last start failed with messages in flight; make another request")
        self.fast_path = outcome != Outcome.NOT_SERVED
        self.clock = Clock(0.0 if self.fast_path else now(), is_blocking=outcome == Outcome.COMPLETED)
        if outcome == Outcome.COMPLETED:
            self._record()
            return None
        if self.fast_start is not None:
            self.fast_start.close()  # until this start ends
        if outcome == Outcome.ABANDONED:  # an interrupt came after the fast path had posted messages
            self.was_interrupted = True
            self.state.leak(self, None)
        if self.was_interrupted:
            raise RequestError("the last start was interrupted while it posted messages; make another request")
        stages: list[Callable[[], Stage]] = [self._make_stage(outcome)]
        if self.native_request is None and needs_nonfinite_exchange(self.call):
            stages.append(self.exchange_nonfinite)
        self.row = self.fast_start.row if self.fast_start is not None and self.fast_path else 0
        self.in_flight = self.operation(stages)
        self.in_flight.is_posted = self.fast_path
        return self.in_flight

    def _make_stage(self, outcome: int) -> Callable[[], Stage]:
        """Return a function that makes the stage of a start, which the fast path left with this outcome."""
        if self.native_request is not None:
            self.native_request.Start()
            self.needs_division = self.call.averages
            polled = RequestStage(self.native_request, "MPI's own collective")
            return lambda: polled
        if outcome == Outcome.NOT_SERVED:
            return self.start
        if outcome == Outcome.IN_PROGRESS:
            if self.fast_start is not None and self.fast_start.packed is not None and self.memory is not None:
                self.memory.copy_result = self.fast_start.packed.unpack
            return lambda: PlanStage(self.own_execution)
        return lambda: FailedStage(self.own_execution, -outcome)

    def finish(self) -> None:
        """Complete a start after its last stage."""
        if self.native_request is None:
            try:
                super().finish()
            except Raised:
                self._end_start()
                raise
        elif self.needs_division:
            self.needs_division = False  # once: after an interrupt finish() is called again
            divide_result(self.call, self.state)
        self._end_start()

    def _end_start(self) -> None:
        """Record that no start is in flight: reopen the fast path, and free the call if its request is gone."""
        self.in_flight = None
        if self.fast_start is not None and not self.state.freed:
            self.fast_start.open()
        if self.is_freed:
            self._free()

    def free(self) -> None:
        """Free the resources, now or when the start in flight completes; never after an interrupted start."""
        # an interrupt may arrive after the fast path has posted messages
        if self.fast_start is not None and self.fast_start.is_in_progress():
            self.was_interrupted = True
            self.state.leak(self, None)
        self.is_freed = True
        operation = self.in_flight
        is_idle = operation is None or (operation.done and not operation.was_aborted)
        if is_idle and not self.was_interrupted:
            self._free()

    def _free(self) -> None:
        """Free the resources, once."""
        if not self.free_lock.acquire(blocking=False):
            return
        self.state.queue.started.pop(self.sequence, None)
        if self.native_request is not None:
            release.defer_free(self.native_request.Free)
            return
        steps: list[Callable[[], None]] = [self.slot.free, lambda: self.state.scratch.give_back(self.own_scratch)]
        if self.fast_start is not None:
            steps.insert(0, self.fast_start.close)
        release.defer_free(self.own_execution.free)
        for step in steps:  # all, even if one raises: a finalizer has no caller
            with contained("a finalizer of a persistent request", in_callback=True):
                step()

    def free_requests(self) -> None:
        """Free MPI's persistent requests. A plan makes those of its messages again at its next start."""
        if self.native_request is None:
            self.own_execution.free()
        else:
            self.close()

    def close(self) -> None:
        """Free MPI's persistent requests before their communicator is freed, and close the fast path."""
        if self.native_request is not None:
            self.free()
            release.run_deferred_frees()
            return
        if self.fast_start is not None:
            self.fast_start.close()
        self.own_execution.free()

    def _scratch(self) -> np.ndarray | None:
        return self.own_scratch

    @property
    def comm(self) -> MPI.Comm:
        """Return the communicator of its messages, on which no other call has its tags."""
        comm: MPI.Comm = self.slot.comm
        return comm

    def _execution(self) -> Execution:
        execution: Execution = self.own_execution
        return execution

    def _give_back_memory(self) -> None:
        """Keep execution and scratch for the next start."""


def compare_requests(state: CommState, call: Call, sequence: int) -> None:
    """Compare the ranks' requests in check mode. Raises MismatchError if they differ."""
    if state.settings.check:
        state.queue.run(comparison(state, signature(call, sequence), call.name))


def prepare(state: CommState, comm: MPI.Intracomm, call: Call, info: MPI.Info) -> MPI.Prequest:
    """Return a request that runs a call at every Start. Collective."""
    release.run_deferred_frees()
    sequence = state.next_sequence()
    state.history.end(note_call(state, call, sequence), HANDED_OVER)
    compare_requests(state, call, sequence)
    if not call.prepared.is_native:
        return Prequest.prepare(state, PersistentCall(state, call, sequence))
    state.warn_native_once(call.prepared.choice)
    state.sinks.append(record(call, sequence))
    request: MPI.Prequest = call.native(PERSISTENT, comm, info)
    if not (call.averages or state.settings.watched):
        return keep_buffers_alive(call, request)
    return Prequest.prepare(state, PersistentCall(state, call, sequence, request))
