"""Run a prepared call: directly if it completes at once, else as an operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from ..compression.codecs import check_finite
from ..diagnostics.history import FAILED, HANDED_OVER
from ..diagnostics.record import Record
from ..engines.events import RECORDING
from ..engines.kernel_args import NO_KERNELS, KernelArgs
from ..engines.protocol import Execution
from ..errors import CodecError
from ..kernels.serving import narrow_address
from ..plans.plan import Shares
from ..progress.operation import CallId, Operation, Raised
from ..progress.queue import SPIN, anything_in_flight
from ..progress.stages import PlanStage, RequestStage, Stage
from ..progress.times import Clock, Times
from ..runtime.comm_state import CommState
from ..schedules.collectives import BLOCKING, NONBLOCKING
from . import count_exchange
from .call import Call
from .check_mode import SignatureExchange, signature
from .nonfinite import exchange_nonfinite, needs_nonfinite_exchange
from .prepare import prepare_with_counts
from .staging import Memory, divide_result, place_buffers, scratch_bytes

_SEED_FACTOR = 0x9E3779B1  # spreads the seeds of consecutive calls


def run(state: CommState, comm: MPI.Intracomm, call: Call) -> None:
    """Run a blocking call to its end. A call that completes at once never becomes an operation."""
    if call.prepared.is_native:
        _run_native(state, comm, call)
        return
    compared = state.is_checked(state.sequence + 1)
    if anything_in_flight() or compared or call.prepared.plan is None or needs_nonfinite_exchange(call):
        state.queue.run(operation(state, call))
        return
    active_call = ActiveCall(state, call, state.next_sequence())
    active_call.row = note_call(state, call, active_call.sequence)
    running = active_call.start()
    try:
        done = running.execution.advance(SPIN)
    except BaseException as error:  # Ctrl-C too: the memory must stay, since MPI may still write to it
        state.history.end(active_call.row, FAILED)
        state.leak(active_call, active_call.sequence)
        call_id = CallId(active_call.sequence, 0, active_call.name)
        state.fail(call_id, error)
        state.raise_if_ranks_failed(error, call_id, call.prepared.choice, running.describe)
        raise
    if done:
        try:
            active_call.finish()
        except Raised as raised:
            state.history.end(active_call.row, FAILED)
            raise raised.error from None
        state.history.end(active_call.row)
    else:
        state.queue.run(active_call.operation([lambda: running]))


def operation(state: CommState, call: Call, sequence: int | None = None) -> Operation:
    """Return the operation that runs a call, not launched yet; sequence: its number if it was counted before.

    Its stages: compare signatures in check mode; exchange counts if the plan or a check needs them; run the plan;
    exchange a NaN/Inf flag if the codec needs it.
    """
    active_call = ActiveCall(state, call, state.next_sequence() if sequence is None else sequence)
    stages: list[Callable[[], Stage]] = [active_call.start]
    if needs_counts(state, call, active_call.sequence):
        stages.insert(0, active_call.exchange_counts)
    if needs_nonfinite_exchange(call):
        stages.append(active_call.exchange_nonfinite)
    if state.is_checked(active_call.sequence):
        # made here, since all ranks must begin it in the order of calls
        exchange = SignatureExchange(state.comm, signature(call, active_call.sequence, state.any_form))
        stages.insert(0, lambda: exchange)
    return active_call.operation(stages)


def needs_counts(state: CommState, call: Call, sequence: int) -> bool:
    """Return whether the ranks must exchange counts before the plan of the call with this number."""
    return call.prepared.needs_counts or (state.is_checked(sequence) and count_exchange.counts_are_local(call))


def note_call(state: CommState, call: Call, sequence: int) -> int:
    """Write a row for a call into the history, and return its serial."""
    return state.history.begin(sequence, call.name, call.form, call.prepared.choice.algorithm, call.recorded_arguments)


class ActiveCall:
    """A call in progress: its stages, and the state that they share."""

    fast_path = False  # whether the call began on the fast path
    row = 0  # the serial of its row in the history; 0 if the operation will write it

    def __init__(self, state: CommState, call: Call, sequence: int) -> None:
        self.state, self.call = state, call
        self.sequence = self.tags = sequence
        self.clock = Clock(call.began, call.form == BLOCKING)
        self.memory: Memory | None = None
        self.execution: Execution | None = None
        self.params: np.ndarray | None = None  # parameters of the codec, or the seed of stochastic rounding

    def operation(self, stages: list[Callable[[], Stage]]) -> Operation:
        """Return an operation of these stages, which completes the call after the last."""
        choice, form = self.call.prepared.choice, self.call.form
        operation = Operation(choice, self.sequence, stages, self.finish, self, form, self.name)
        operation.clock, operation.row = self.clock, self.row
        operation.recorded_arguments = self.call.recorded_arguments
        return operation

    @property
    def name(self) -> str:
        """Return the name of the method that was called."""
        return self.call.name

    @property
    def started(self) -> int:
        """Return which start of a persistent collective this is, from 1 on; 0 for other calls."""
        return 0

    def exchange_counts(self) -> Stage:
        """Return a stage that exchanges counts and sets the plan for them."""
        return count_exchange.exchange_counts(self.state, self.call, self.sequence, self._on_counts)

    def _on_counts(self, every: tuple[int, ...]) -> None:
        """Set the plan for the counts of all blocks."""
        if self.call.prepared.needs_counts:
            assert isinstance(self.call.counts, Shares)
            self.call.counts = replace(self.call.counts, every=every)
            prepare_with_counts(self.state, self.call)

    def start(self) -> PlanStage:
        """Place the buffers, bind an execution, and return the stage that runs the plan."""
        plan = self.call.prepared.plan
        assert plan is not None
        self.memory = place_buffers(self.call, self.state, self._scratch())
        self.execution = self._execution()
        bases = self.memory.source, self.memory.target, self.memory.scratch_address
        prepared = self.call.prepared
        if prepared.codec is not None:
            self.params = prepared.codec.params(prepared.keeps_residual)
        elif prepared.seed is not None:
            self.params = np.array([(prepared.seed * _SEED_FACTOR + self.sequence) & 0xFFFFFFFF], np.int64)
        self.execution.bind(self.tags, bases, kernel_args(self.call, self.state.size, self.params))
        return PlanStage(self.execution)

    def exchange_nonfinite(self) -> Stage:
        """Return a stage after the plan that learns whether another rank met NaN or infinity."""
        assert self.params is not None
        return exchange_nonfinite(self.comm, self.tags, self.call, self.params)

    def finish(self) -> None:
        """Complete the call after its last stage."""
        if self.memory is None or self.execution is None:  # a repetition after an interrupt
            return
        if self.call.operator is not None and self.call.operator.errors:
            error = Raised(self.call.operator.errors[0])
            self.call.operator.errors.clear()
            self._give_back_memory()
            raise error
        if self.memory.copy_result is not None:
            self.memory.copy_result()
        self._record()
        self._give_back_memory()  # after an interrupt the lines above run again, this does not
        if self.params is not None and self.call.prepared.codec is not None:
            try:
                check_finite(self.call.prepared.codec, self.params)
            except CodecError as error:
                raise Raised(error) from None

    def _record(self) -> None:
        if self.state.sinks:
            assert self.execution is not None
            times = self.clock.times(self.execution.events())
            call_record = record(self.call, self.sequence, self.execution.progress, times)
            self.state.sinks.append(call_record.with_values(fast_path=self.fast_path, start=self.started))

    def _scratch(self) -> np.ndarray | None:
        nbytes = scratch_bytes(self.call, self.state.rank)
        return self.state.scratch.take(nbytes) if nbytes else None

    @property
    def comm(self) -> MPI.Comm:
        """Return the communicator of the call's messages."""
        return self.state.comm

    def _execution(self) -> Execution:
        return self.call.prepared.take(self.state.comm)

    def _give_back_memory(self) -> None:
        assert self.memory is not None and self.execution is not None
        execution, self.execution = self.execution, None
        self.call.prepared.give_back(execution)
        self.state.scratch.give_back(self.memory.scratch)


def can_take_fast_path(call: Call) -> bool:
    """Return whether the call needs no Python code, only messages and kernels."""
    calls_python = call.operator is not None and call.operator.calls_python
    return runs_in_compiled_code(call) and not calls_python


def runs_in_compiled_code(call: Call) -> bool:
    """Return whether compiled code can run the plan, on contiguous or packed buffers.

    An operator whose kernel is in Python counts as compiled: the plan calls it.
    """
    prepared = call.prepared
    return prepared.is_compiled and prepared.codec is None and prepared.seed is None  # else it has parameters per call


def kernel_args(call: Call, size: int, params: np.ndarray | None = None) -> KernelArgs:
    """Return the kernels with which the plan of a call reduces, divides and encodes.

    params: the codec's parameters, or the seed of stochastic rounding.
    """
    args = call.operator.kernel_args(size, call.prepared.float32_sums) if call.operator is not None else NO_KERNELS
    codec = call.prepared.codec
    if params is None:
        return args
    if codec is None:
        assert call.operator is not None and call.operator.dtype is not None
        narrow = narrow_address(call.operator.dtype, stochastic=True)
        return args._replace(kernel=0, narrow=narrow, params=MPI.Get_address(params))
    narrow, widen = codec.addresses
    return args._replace(wide=args.kernel, widen=widen, narrow=narrow, params=MPI.Get_address(params))


# -- MPI's own collectives ------------------------------------------------------------------------------


def _run_native(state: CommState, comm: MPI.Intracomm, call: Call) -> None:
    """Run MPI's own collective, and divide the result if the call averages.

    The blocking form is called only if using() forces native and the call is unwatched, since no mpicoll operation
    progresses meanwhile.
    """
    if call.prepared.choice.forced and not is_watched(state):
        sequence, clock = state.next_sequence(), Clock(call.began, is_blocking=True)
        row = note_call(state, call, sequence)
        call.native(BLOCKING, comm)
        if call.averages:
            divide_result(call, state)
        state.history.end(row)
        state.sinks.append(record(call, sequence, times=clock.times()))
    else:
        state.queue.run(native_operation(state, comm, call))


def is_watched(state: CommState) -> bool:
    """Return whether the watchdog or check mode must see the next call, even if MPI's own collective runs."""
    return state.settings.watched or state.is_checked(state.sequence + 1)


def needs_operation(state: CommState, call: Call) -> bool:
    """Return whether MPI's own nonblocking collective must be an operation: watched, averaging, or in a timeline."""
    return is_watched(state) or call.averages or bool(RECORDING.users)  # a timeline shows when it ends


def start_native(state: CommState, comm: MPI.Intracomm, call: Call) -> MPI.Request:
    """Start MPI's own nonblocking collective without an operation, and return its request."""
    state.warn_native_once(call.prepared.choice)
    sequence = state.next_sequence()
    state.sinks.append(record(call, sequence))
    row = note_call(state, call, sequence)
    request: MPI.Request = call.native(NONBLOCKING, comm)
    state.history.end(row, HANDED_OVER)
    return request


def native_operation(state: CommState, comm: MPI.Intracomm, call: Call) -> Operation:
    """Return an operation that runs MPI's own nonblocking collective.

    In check mode the collective starts after the ranks have compared the call. Such collectives have a communicator of
    their own and run one after the other, so that their order is the same on every rank although no call blocks.
    """
    choice = call.prepared.choice
    state.warn_native_once(choice)
    sequence, what = state.next_sequence(), "MPI's own collective"
    averages, clock = [call.averages], Clock(call.began, call.form == BLOCKING)

    def finish() -> None:
        if averages and averages.pop():  # once: after an interrupt finish() is called again
            divide_result(call, state)
        state.sinks.append(record(call, sequence, times=clock.times()))

    def make_operation(stages: list[Callable[[], Stage]]) -> Operation:
        operation = Operation(choice, sequence, stages, finish, call, call.form, call.name)
        operation.clock, operation.recorded_arguments = clock, call.recorded_arguments
        return operation

    if not state.is_checked(sequence):
        polled = RequestStage(call.native(NONBLOCKING, comm), what)
        return make_operation([lambda: polled])
    exchange = SignatureExchange(state.comm, signature(call, sequence, state.any_form))
    stages: list[Callable[[], Stage]] = [
        lambda: exchange,
        lambda: RequestStage(call.native(NONBLOCKING, state.check_comm), what),
    ]
    operation = make_operation(stages)
    operation.predecessor, state.last_checked = state.last_checked, operation
    return operation


def record(call: Call, sequence: int, progress: tuple[int, int, int] = (0, 0, 0), times: Times | None = None) -> Record:
    """Return the record of a call for traces."""
    prepared, choice = call.prepared, call.prepared.choice
    return Record(
        choice.collective,
        call.form,
        choice.algorithm,
        choice.engine,
        prepared.nbytes,
        choice.chunk_bytes,
        prepared.plan.lanes if prepared.plan else 0,
        *progress[:2],
        sequence,
        choice.rule or choice.why,
        call.name,
        received=prepared.plan.received_bytes if prepared.plan else 0,
        root=call.recorded_arguments.root,
        times=times,
    )
