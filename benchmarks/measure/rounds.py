"""The timed loops.

All contenders of one size are measured in rounds, each of which times every contender in a new shuffled
order, the same on all ranks: what disturbs the machine for a while disturbs them all, and contenders of one
round can be paired. Within a round a contender makes one call or, where calls are short or of a nonblocking form, a few
after one that is not timed. The ranks start each timed call together, in one of the ways of sync.py. The time of a
call is the longest that any rank spent in it, and a round's value is the median of its calls.

A nonblocking form is timed once more in every round, with work between its start and its Wait that takes as
long as the call took alone: overlap.py says what that tells.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from statistics import median
from typing import Any

import numpy as np

from mpicoll.errors import CodecError, EngineError, PreconditionError
from mpicoll.garbage import collection_off

from ..cases.case import Case, Cases
from ..cases.contenders import NATIVE, Contender
from ..cases.forms import NONBLOCKING
from ..cases.lossy import Error, error_of
from .budget import Budget
from .compute import compute
from .overlap import PARTS, Overlap
from .stats import estimate, ratio
from .sync import BARRIER, Barrier, Sync, sync_of

SHORT = 100e-6  # seconds: calls shorter than this are made several times a round
CALLS = 5  # how many times
WARMUP = 2  # calls of each contender before the first round
LATE = math.inf  # the time of a call that a rank started late: the maximum over ranks passes it on


@dataclass
class Timing:
    """The times of one contender at one size: seconds, the longest over ranks, as [round][call]."""

    contender: Contender
    valid: bool = True
    error: Error | None = None  # of one that moves codes
    ran: dict[str, Any] = field(default_factory=dict)  # what mpicoll's trace says of a call
    note: str = ""  # why it was not timed
    expected: float = 0.0  # how long a call took last
    rounds: list[list[float]] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        """Return the seconds per call, one value a round; NaN where every call of a round was late."""
        on_time = ([call for call in calls if call != LATE] for calls in self.rounds)
        return [median(calls) if calls else math.nan for calls in on_time]

    @property
    def late(self) -> int:
        """Return how many calls were left out because a rank was late."""
        return sum(calls.count(LATE) for calls in self.rounds)

    def add(self, calls: list[float], whole: list[float]) -> None:
        """Hold a round's calls and, of a nonblocking form, the parts of the call with work in it."""
        self.rounds.append(calls)
        if not math.isnan(value := self.values[-1]):
            self.expected = value
        if whole:
            self.overlaps.append(Overlap(self.expected, *whole))


class Bench:
    """Measures contenders on all ranks of `control`, a communicator used only to synchronise them.

    barrier: what the ranks meet in before a call, control's own if not given. sync: "barrier" or "window".
    """

    def __init__(
        self,
        control: Any,
        mpi: Any,
        seed: int = 0,
        *,
        sync: str = BARRIER,
        barrier: Callable[[], Any] | None = None,
        warmup: int = WARMUP,
    ) -> None:
        self.control, self.mpi, self.warmup = control, mpi, warmup
        self.shuffle = random.Random(seed).shuffle
        self.meeting = Barrier(barrier or control.Barrier, time.perf_counter)
        self.sync: Sync = sync_of(sync, control, self.meeting)

    def measure(
        self,
        cases: Cases,
        contenders: Sequence[Contender],
        budget: Budget,
        tick: Callable[[float], None] = lambda _: None,
    ) -> list[Timing]:
        """Check, time, and check again, for every root. `tick` receives the used fraction of the budget."""
        timings = [Timing(contender) for contender in contenders]
        self._check_all(cases, timings)
        running = [timing for timing in timings if not timing.note]
        self.sync.agree()
        with collection_off():
            calls = self._warm_up(cases(0), running)
            self._rounds(cases, running, calls, budget, tick)
        self._check_all(cases, running)
        return timings

    def _check_all(self, cases: Cases, timings: Sequence[Timing]) -> None:
        for turn in range(cases.turns):
            for timing in timings:
                if not timing.note:
                    self.check(cases(turn), timing)

    def check(self, case: Case, timing: Timing) -> None:
        """Make one untimed call from poisoned buffers and compare it with the right answer on every rank."""
        comm = timing.contender.comm
        case.poison()
        try:
            with timing.contender.context(), traced(comm) as records, case.ready(comm, self.mpi) as operation:
                operation.call()
        except (CodecError, PreconditionError, EngineError, NotImplementedError) as error:  # the same on all ranks
            timing.note = str(error) or f"this MPI has no {case.shape.form} {case.shape.collective}"
            return
        for record in records:
            timing.ran = {
                key: getattr(record, key) for key in ("algorithm", "engine", "chunk_bytes", "lanes")
            }
        if (measured := error_of(case, timing.contender)) is None:
            timing.valid &= self._everywhere(case.is_right())
        else:
            timing.error = Error(*self._longest(np.array(measured)).tolist())
            timing.valid &= timing.error.worst <= timing.error.bound  # false for NaN too

    def _everywhere(self, mine: bool) -> bool:
        return not self._longest(np.array([not mine], np.float64))[0]

    def _longest(self, mine: np.ndarray) -> np.ndarray:
        """Return the elementwise maximum over ranks, on every rank."""
        longest = np.empty_like(mine)
        self.control.Allreduce(mine, longest, self.mpi.MAX)
        return longest

    def _warm_up(self, case: Case, running: Sequence[Timing]) -> int:
        """Make calls that do not count; return how many a round has: few where the quickest contender is slow."""
        if not running:
            return 1
        if case.shape.form == NONBLOCKING:
            compute(0.0)  # compiles and calibrates
        for timing in running:
            mine = self._alone(case, timing, max(1, self.warmup), self.meeting)
            timing.expected = self._longest(np.array(mine))[-1]
        return CALLS if min(timing.expected for timing in running) < SHORT else 1

    def _rounds(
        self, cases: Cases, running: Sequence[Timing], calls: int, budget: Budget, tick: Callable[[float], None]
    ) -> None:
        started, order = time.perf_counter(), list(range(len(running)))
        overlapping = cases.shape.form == NONBLOCKING
        last = calls + len(PARTS) * overlapping
        mine = np.empty((len(running), last + 1))
        for done in count():
            elapsed = time.perf_counter() - started
            tick(done / budget.rounds if budget.rounds else elapsed / budget.seconds)
            if not running:
                break
            enough, stale = self._decided(budget, done, elapsed, running)
            if enough:
                break
            if stale:
                self.sync.agree()
            case = cases(done)
            self.shuffle(order)
            for i in order:
                unready = self.sync.unready
                mine[i, :calls] = self._alone(case, running[i], calls, self.sync)
                if overlapping:
                    mine[i, calls:last] = self._with_work(case, running[i])
                mine[i, last] = self.sync.unready - unready
            longest = self._longest(mine)
            self.sync.learn(int(longest[:, last].sum()), len(running) * (calls + overlapping))
            for timing, seconds in zip(running, longest.tolist()):
                timing.add(seconds[:calls], seconds[calls:last])

    def _decided(self, budget: Budget, rounds: int, elapsed: float, running: Sequence[Timing]) -> tuple[bool, bool]:
        """Return whether it is enough, and time to agree again.

        Rank 0 decides, since every clock says something else.
        """
        here = self.control.rank == 0
        enough = here and budget.enough(rounds, elapsed, lambda: _least_precise(running))
        decided: tuple[bool, bool] = self.control.bcast((enough, here and self.sync.is_stale()))
        return decided

    def _alone(self, case: Case, timing: Timing, calls: int, sync: Sync) -> list[float]:
        """Return the seconds this rank spent in each of some calls, LATE for those it was too late for."""
        seconds, clock, contender = [], time.perf_counter, timing.contender
        with contender.context(), case.ready(contender.comm, self.mpi) as operation:
            if calls > 1 or case.shape.form == NONBLOCKING:
                case.next(operation, contender.comm, self.mpi).call()
            start = sync.calls(timing.expected)
            for _ in range(calls):
                call = case.next(operation, contender.comm, self.mpi).call
                at, late = start()
                call()
                end = clock()
                seconds.append(LATE if late else end - at)
        return seconds

    def _with_work(self, case: Case, timing: Timing) -> tuple[float, ...]:
        """Return the seconds of the parts of one call that has work between its start and its Wait."""
        clock, contender = time.perf_counter, timing.contender

        def work(request: Any) -> tuple[float, float, float]:
            begun = clock()
            compute(timing.expected)
            computed = clock()
            request.Wait()
            return begun, computed, clock()

        with contender.context(), case.ready(contender.comm, self.mpi) as operation:
            # not timed: mpicoll goes by what a program did with its last request
            begin: Callable[[], Any] | None = case.next(operation, contender.comm, self.mpi).start
            assert begin is not None
            work(begin())
            start = self.sync.calls(2 * timing.expected)
            begin = case.next(operation, contender.comm, self.mpi).start
            assert begin is not None
            at, late = start()
            begun, computed, end = work(begin())
        return (LATE,) * len(PARTS) if late else (end - at, computed - begun, begun - at, end - computed)


def _least_precise(running: Sequence[Timing]) -> float:
    """Return the widest interval of any contender, relative to its ratio to native or, without native, to its time."""
    native = next((t for t in running if t.contender.algorithm == NATIVE), None)
    if native is None or len(running) == 1:
        return max(estimate(timing.values).relative_width for timing in running)
    return max(ratio(native.values, timing.values).relative_width for timing in running if timing is not native)


def traced(comm: Any) -> AbstractContextManager[list[Any]]:
    """Return the trace of an mpicoll.Comm; nothing for any other communicator."""
    return comm.trace() if hasattr(comm, "trace") else nullcontext([])
