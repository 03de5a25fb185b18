"""Choose, explain and record how the collectives of a communicator run: using, explain, trace, timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from ..diagnostics.record import Record
from ..dispatch import prepare, sums
from ..errors import ArgumentError
from ..runtime.comm_state import CommState
from ..schedules.collectives import base_collective, canonical_name
from ..schedules.registry import find
from ..schedules.schedule import schedule
from ..selection.modelled import costs, model_us, ranking
from ..selection.rules import RULES, UNKNOWN_TO_ALL
from ..selection.select import NATIVE, WHOLE, Choice
from ..selection.settings import ENGINES
from ..selection.uneven import COLLECTIVES as UNEVEN
from ..selection.uneven import EVEN, skew_class, uneven_costs, uneven_us
from ..timeline.timeline import Timeline

MAX_TIMES = 3  # times of the cost model in explain(), that of the choice included

if TYPE_CHECKING:
    from typing_extensions import Self


def _model_times(
    state: CommState, choice: Choice, nbytes: int, commutative: bool, counts: Sequence[int] | None = None
) -> str:
    """Return the model's times of auto's choice and of the next fastest algorithms; "" if it did not choose."""
    net, nodes, p = state.agreed.network, state.agreed.nodes, state.size
    if net is None or choice.forced or choice.algorithm == NATIVE or choice.collective in UNKNOWN_TO_ALL:
        return ""
    base, whole = base_collective(choice.collective), choice.chunk_bytes or WHOLE
    if counts is not None:
        planned = schedule(base, choice.algorithm, p, commutative=commutative, nodes=nodes)
        own = uneven_us(net, planned, nodes, nbytes, counts, choice.chunk_bytes, choice.window)
        lines = uneven_costs(net, choice.collective, p, commutative, nodes, [nbytes], counts)
    else:
        own = model_us(net, base, choice.algorithm, p, commutative, nodes, [nbytes], whole, choice.window)[0]
        lines = costs(net, choice.collective, p, commutative, nodes, np.array([nbytes]))
    others = [(us, name) for us, name in ranking(lines, 0) if name != choice.algorithm][: MAX_TIMES - 1]
    return ", ".join(f"{name} {us:.3g} µs" for us, name in [(float(own), choice.algorithm), *others])


def _skew(collective: str, counts: Sequence[int] | None, p: int) -> int:
    """Return the class of skew of the counts given to explain(). Raises ArgumentError."""
    if counts is None:
        return EVEN
    if collective not in UNEVEN:
        raise ArgumentError(f"{collective} has no counts that all ranks know; leave out counts")
    if len(counts) != p or min(counts) < 0:
        raise ArgumentError(f"counts is {counts!r:.80}; it must be {p} integers of at least 0")
    return skew_class(counts)


class Selection(MPI.Intracomm):
    """Methods that choose and record algorithms and engines on a communicator."""

    _open: Callable[[], CommState]
    Barrier: Callable[[], None]

    @contextmanager
    def using(
        self,
        *,
        chunk_bytes: int | None = None,
        window: int | None = None,
        engine: str | None = None,
        stochastic: int | None = None,
        accumulate: str | None = None,
        learn: str | bool | None = None,
        **algorithms: str,
    ) -> Iterator[Self]:
        """Within the block, run collectives with these choices: comm.using(allreduce="ring", chunk_bytes=1 << 18).

        Every rank must pass the same values. A call that a chosen algorithm cannot serve raises.

        - algorithms: by collective, a name, "name(key=value)", "native" or "auto".
        - chunk_bytes: the most bytes of a block in one message. window: how many chunks are in flight. By default
          a forced algorithm takes those that the cost model gives it on the network in force.
        - engine: "auto", "mpi4py" or "compiled".
        - stochastic: a seed, with which reductions of float16, bfloat16 and float8 round up or down at random, with
          probabilities by the distances.
        - accumulate: "float32" to round their sums once, at the end; "none" to round at every reduction.
        - learn: True or "bits" to let calls take turns among algorithms that give the same bits, so that later calls of
          about the same size use the fastest; "any" for all algorithms; False or "no" to choose without trials.

        Raises UnknownAlgorithm, ParameterError, PreconditionError for an algorithm that does not suit this number of
        ranks, ArgumentError, EngineError.
        """
        state = self._open()
        if engine not in (None, *ENGINES):
            raise ArgumentError(f"engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
        before = state.overrides
        after = before.merged(algorithms, chunk_bytes, window, engine, stochastic, accumulate, learn)
        prepare.check_choices(state, algorithms)
        if engine is not None:
            state.use_engine(engine)
        state.override(after)
        try:
            yield self
        finally:
            state.override(before)

    def explain(
        self,
        collective: str,
        nbytes: int = 0,
        op: MPI.Op = MPI.SUM,
        datatype: MPI.Datatype | str | None = None,
        counts: Sequence[int] | None = None,
    ) -> Choice:
        """Return the choice for a call of nbytes, and the reason. See Claims for the meaning of nbytes.

        A reduction whose operator has no kernel for the datatype runs native; datatype None is one with a kernel.
        counts: of all ranks, in any unit, for allgatherv and reduce_scatter; None for equal counts.
        Raises UnknownAlgorithm, OperatorError for an operator that MPI does not allow for the datatype, DatatypeError,
        TypecodeError, ArgumentError for counts of another collective or number of ranks, and CommError for a
        neighbourhood collective on a communicator without a topology.
        """
        state, collective = self._open(), canonical_name(collective)
        if collective not in RULES:
            find(collective, "")
        prepare.graph_parameter(state, collective)
        operator = sums.reduction_operator(collective, op, datatype)
        no_kernel_reason = operator.no_kernel_reason if operator else ""
        wide = sums.uses_float32_sums(state, operator)
        skew = _skew(collective, counts, state.size) if state.agreed.chooses_by_skew else EVEN
        how = op.Is_commutative(), no_kernel_reason
        choice = prepare.select(state, collective, nbytes, *how, float32_sums=wide, skew=skew)
        if wide and operator is not None:
            choice = sums.with_received_bytes(state, choice, nbytes, operator)
        learns = state.overrides.learns and not (choice.forced or choice.measured or collective in UNKNOWN_TO_ALL)
        model = _model_times(state, choice, nbytes, op.Is_commutative(), counts if skew else None)
        return replace(choice, model=model, slow=state.fast_path.closed or "calls take turns at first" * learns)

    @contextmanager
    def trace(self) -> Iterator[list[Record]]:
        """Within the block, collect a Record of every collective that completes without an error."""
        state, records = self._open(), list[Record]()
        state.sinks.add(records)
        try:
            yield records
        finally:
            state.sinks.remove(records)

    @contextmanager
    def timeline(self, path: str | Path | None = None) -> Iterator[Timeline]:
        """Within the block, record when the collectives of these ranks and their messages ran. Collective.

        At the end of the block, rank 0 gathers a trace in the Trace Event Format as timeline.trace, and writes it to
        path, compressed if that ends in .gz. Calls of these ranks on other communicators are recorded too. If the block
        raises, nothing is gathered. Raises OSError on rank 0 if path cannot be written.
        """
        self._open()
        timeline = Timeline(self)
        try:
            yield timeline
        except BaseException:
            timeline.recorder.stop()
            raise
        timeline.end(self.Barrier)
        if path is not None:
            timeline.save(path)
