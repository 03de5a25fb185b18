"""The timed calls of a collective, in the requested form and by the requested algorithm, and their row."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from mpicoll.errors import PreconditionError

from ..cases.case import Case
from ..cases.contenders import Contender
from ..cases.forms import FORMS, Operation
from ..measure.compute import compute
from . import layout
from .averages import MICRO, mean_iterations, over_ranks, overlap, percentiles
from .layout import Row
from .loops import Apart, Around, Call, Checked, Once, repeated
from .options import Options, Repeats
from .programs import Program

Clock = Callable[[], float]


class Buffers:
    """The operation, ready on buffers for each root it is called with: one, or with -k rotate every rank."""

    def __init__(self, cases: Sequence[Case], operations: Sequence[Operation]) -> None:
        self.cases, self.operations = cases, operations

    def case(self, iteration: int) -> Case:
        """Return the buffers of an iteration."""
        return self.cases[iteration % len(self.cases)]

    def operation(self, iteration: int) -> Operation:
        """Return what an iteration calls."""
        return self.operations[iteration % len(self.operations)]


class Collective:
    """Measures one contender on all ranks of `control`, a communicator for barriers and averages only.

    clock tells seconds, as MPI.Wtime does; work(seconds) computes for so long.
    """

    def __init__(
        self,
        program: Program,
        options: Options,
        contender: Contender,
        control: Any,
        mpi: Any,
        clock: Clock = time.perf_counter,
        work: Callable[[float], None] = compute,
    ) -> None:
        self.program, self.options, self.contender = program, options, contender
        self.control, self.mpi, self.clock, self.work = control, mpi, clock, work

    @contextmanager
    def _buffers(self, kind: str, size: int) -> Iterator[Buffers]:
        form, collective, p = FORMS[self.program.form], self.program.collective, self.control.size
        shapes = self.options.shapes(collective, kind, p)
        cases = [Case(shape, size, self.control.rank, p) for shape in shapes]
        with ExitStack() as stack:
            ready = [form.ready(self.contender.comm, collective, case.arguments(self.mpi)) for case in cases]
            yield Buffers(cases, [stack.enter_context(context) for context in ready])

    def rehearse(self, kind: str, size: int) -> None:
        """Make one call that is not timed, so that what cannot run is known before anything is printed. Collective.

        Raises what `using` raises, and PreconditionError for a form that this MPI does not have.
        """
        try:
            with self.contender.context(), self._buffers(kind, size) as buffers:
                buffers.operation(0).call()
        except NotImplementedError:
            raise PreconditionError(f"this MPI has no {self.program.form} {self.program.collective}") from None

    def measure(self, kind: str, size: int, repeats: Repeats) -> Row:
        """Return the row of one type and size in bytes, the same on every rank. Collective."""
        with self.contender.context(), self._buffers(kind, size) as buffers, ExitStack() as stack:
            apart = self._apart(computing=False)
            around: Apart | Checked = apart
            if self.options.validate:
                around = self._checked(apart, buffers, stack.enter_context(self._buffers(kind, size)))
            self.control.Barrier()
            if self.program.overlaps:
                row = self._overlapping(buffers, around, repeats)
            else:
                row = self._latency(buffers, around, repeats)
            self.control.Barrier()
        wrong = around.wrong if isinstance(around, Checked) else 0
        return {**row, layout.VALIDATION: not over_ranks(self.control, self.mpi, wrong).most}

    def _apart(self, computing: bool) -> Apart:
        """Return where OMB has its barriers: after the call; of reduce before it; of barrier only where it computes."""
        match self.program.collective:
            case "barrier":
                return Apart(self.control.Barrier, "after" if computing else "")
            case "reduce" if not self.program.overlaps:
                return Apart(self.control.Barrier, "before")
        return Apart(self.control.Barrier, "after")

    def _checked(self, around: Apart, timed: Buffers, warm: Buffers) -> Checked:
        return Checked(
            around,
            self.control.Barrier,
            lambda iteration: timed.case(iteration).poison(),
            lambda iteration: warm.operation(iteration).call(),
            lambda iteration: timed.case(iteration).is_right(),
            self.options.validation_warmup,
        )

    def _latency(self, buffers: Buffers, around: Around, repeats: Repeats) -> dict[Any, Any]:
        seconds = repeated(whole(buffers, self.clock), around, repeats)[:, 0]
        spread = over_ranks(self.control, self.mpi, seconds.mean() * MICRO)
        return {
            layout.AVERAGE: spread.mean,
            layout.LEAST: spread.least,
            layout.MOST: spread.most,
            layout.ITERATIONS: repeats.timed,
            **self._percentiles(seconds),
        }

    def _overlapping(self, buffers: Buffers, around: Around, repeats: Repeats) -> dict[Any, Any]:
        """Time the operation alone, then with as much computation on this rank between its start and its Wait."""
        alone = repeated(whole(buffers, self.clock), around, repeats).mean()
        self.work(0.0)  # a first call may have to get ready
        self.control.Barrier()
        if not self.program.sized:
            around = self._apart(computing=True)
        table = repeated(self._busy(buffers, alone), around, repeats)
        pure = over_ranks(self.control, self.mpi, alone * MICRO)
        overall, init, computing, tests, wait = (
            over_ranks(self.control, self.mpi, mine * MICRO).mean for mine in table.mean(axis=0)
        )
        return {
            layout.OVERALL: overall,
            layout.COMPUTE: computing - tests,
            layout.INIT: init,
            layout.TEST: tests,
            layout.WAIT: wait,
            layout.PURE: pure.mean,
            layout.LEAST_PURE: pure.least,
            layout.MOST_PURE: pure.most,
            layout.OVERLAP: overlap(overall, computing - tests, pure.mean),
            **self._percentiles(table[:, 0]),
        }

    def _percentiles(self, seconds: np.ndarray) -> dict[int, float]:
        if not self.options.percentiles:
            return {}
        return percentiles(mean_iterations(self.control, self.mpi, seconds) * MICRO, self.options.percentiles)

    def _busy(self, buffers: Buffers, seconds: float) -> Once:
        """Overall, start, computation with tests, the tests among it, wait; seconds each."""
        clock, tests, work = self.clock, self.options.tests, self.work

        def once(iteration: int) -> tuple[float, ...]:
            start: Call = buffers.operation(iteration).start  # type: ignore[assignment]
            began = clock()
            request: Any = start()
            started = clock()
            tested = probing(request, seconds, tests, work, clock)
            computed = clock()
            request.Wait()
            ended = clock()
            return ended - began, started - began, computed - started, tested, ended - computed

        return once


def whole(buffers: Buffers, clock: Clock) -> Once:
    """Return the whole operation."""

    def once(iteration: int) -> tuple[float]:
        call = buffers.operation(iteration).call
        began = clock()
        call()
        return (clock() - began,)

    return once


def probing(request: Any, seconds: float, tests: int, work: Callable[[float], None], clock: Clock) -> float:
    """Compute for so many seconds in all, with a test after each of so many equal parts; the seconds in tests."""
    if not tests:
        work(seconds)
        return 0.0
    spent = 0.0
    for _ in range(tests):
        work(seconds / tests)
        began = clock()
        request.Test()
        spent += clock() - began
    return spent
