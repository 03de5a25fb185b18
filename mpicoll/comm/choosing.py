"""Choose, explain and record how the collectives of a communicator run: using, explain, trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from ..selection.modelled import costs, model_us, ranking
from ..selection.rules import RULES, UNKNOWN_TO_ALL
from ..selection.select import NATIVE, WHOLE, Choice
from ..selection.settings import ENGINES
from ..timeline.timeline import Timeline

FASTEST = 3  # algorithms that explain() names with their times by the model, what was chosen among them

if TYPE_CHECKING:
    from typing_extensions import Self


def _by_the_model(state: CommState, choice: Choice, nbytes: int, commutative: bool) -> str:
    """Return what the model gives a choice of auto and the next fastest algorithms; empty where it has no part."""
    net, nodes, p = state.agreed.network, state.agreed.nodes, state.size
    if net is None or choice.forced or choice.algorithm == NATIVE or choice.collective in UNKNOWN_TO_ALL:
        return ""
    base, whole = base_collective(choice.collective), choice.chunk_bytes or WHOLE
    own = model_us(net, base, choice.algorithm, p, commutative, nodes, [nbytes], whole, choice.window)[0]
    lines = costs(net, choice.collective, p, commutative, nodes, np.array([nbytes]))
    others = [(us, name) for us, name in ranking(lines, 0) if name != choice.algorithm][: FASTEST - 1]
    return ", ".join(f"{name} {us:.3g} µs" for us, name in [(float(own), choice.algorithm), *others])


class Choosing(MPI.Intracomm):
    """The choice of algorithms and engines on one communicator."""

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
        """Within the block, run collectives as said: comm.using(allreduce="ring", chunk_bytes=1 << 18).

        Every rank must say the same. An algorithm is a name, "name(key=value)", "native" or "auto"; chunk_bytes the
        most of each block in one message; window how many chunks are in flight; engine "auto", "mpi4py" or
        "compiled"; stochastic a seed, with which reductions of float16, bfloat16 and float8 round at random, up or down
        by how near either is; accumulate "float32", with which their sums are rounded once, at the end, or "none", at
        every reduction. With learn=True or "bits", calls take turns among algorithms that give the same bits, and
        later ones of about the size use the fastest; with "any", among all; "no": without. What is forced never
        falls back. Raises UnknownAlgorithm, ParameterError, PreconditionError for an algorithm that this number of
        ranks does not suit, ArgumentError, EngineError.
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
        self, collective: str, nbytes: int = 0, op: MPI.Op = MPI.SUM, datatype: MPI.Datatype | str | None = None
    ) -> Choice:
        """Return what would run for a call of nbytes, and why. See Claims for whose bytes.

        A reduction of a datatype for which its operator has no kernel runs native; None stands for one that has.
        Raises UnknownAlgorithm, OperatorError for a pair that MPI does not take, DatatypeError, TypecodeError, and for
        a neighbourhood collective CommError if the communicator has no topology.
        """
        state, collective = self._open(), canonical_name(collective)
        if collective not in RULES:
            find(collective, "")
        prepare.graph_parameter(state, collective)
        reducing = sums.reduction_operator(collective, op, datatype)
        missing = reducing.no_kernel_reason if reducing else ""
        wide = sums.uses_float32_sums(state, reducing)
        choice = prepare.select(state, collective, nbytes, op.Is_commutative(), missing, float32_sums=wide)
        if wide and reducing is not None:
            choice = sums.with_received_bytes(state, choice, nbytes, reducing)
        learns = state.overrides.learns and not (choice.forced or choice.measured or collective in UNKNOWN_TO_ALL)
        model = _by_the_model(state, choice, nbytes, op.Is_commutative())
        return replace(choice, model=model, slow=state.fast_path.closed or "calls take turns at first" * learns)

    @contextmanager
    def trace(self) -> Iterator[list[Record]]:
        """Within the block, collect a Record of every collective that ran to its end."""
        state, records = self._open(), list[Record]()
        state.trace(records)
        try:
            yield records
        finally:
            state.untrace(records)

    @contextmanager
    def timeline(self, path: str | Path | None = None) -> Iterator[Timeline]:
        """Within the block, record when the collectives of these ranks ran, message by message. Collective.

        At its end rank 0 has a trace in the Trace Event Format, as timeline.trace, and writes it to path; compressed
        if that ends in .gz. Calls on other communicators of some of these ranks are recorded too. If the block raises,
        nothing is gathered. Raises OSError on rank 0 for a path that cannot be written.
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
