"""The timed loops.

All contenders of one size are measured in rounds, each of which times every contender in a new shuffled
order, the same on all ranks: what disturbs the machine for a while disturbs them all, and contenders of one
round can be paired. Within a round a contender makes one call or, where calls are short, a few after one
that is not timed. Before each timed call comes a barrier. The time of a call is the longest that any rank
spent in it, and a round's value is the median of its calls. Ranks leave a barrier at slightly different
times, so a call's time includes that skew, for every contender alike.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import numpy as np

from mpicoll.errors import EngineError, PreconditionError, StallError

from .case import Case
from .contenders import Contender
from .stats import FEWEST

SHORT = 100e-6  # seconds: calls shorter than this are made several times a round
CALLS = 5  # how many times
PATIENCE = 3  # times its share that a size may take to get the fewest rounds an interval needs
MOST_ROUNDS = 1000


@dataclass
class Timing:
    """What came of one contender at one size. Times in seconds, the longest over ranks: [round][call]."""

    contender: Contender
    valid: bool = True
    ran: dict[str, Any] = field(default_factory=dict)  # what mpicoll's trace says of a call
    note: str = ""  # why it was not timed
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        """Seconds per call, one value a round."""
        return [median(calls) for calls in self.rounds]


@dataclass(frozen=True)
class Budget:
    """When to stop: after so many rounds if given, else after so many seconds."""

    seconds: float
    rounds: int | None = None

    def enough(self, rounds: int, elapsed: float) -> bool:
        if self.rounds is not None:
            return rounds >= self.rounds
        limit = self.seconds if rounds >= FEWEST else self.seconds * PATIENCE
        return elapsed >= limit or rounds >= MOST_ROUNDS


class Bench:
    """Measures contenders on all ranks of `control`, a communicator used only to synchronise them."""

    def __init__(self, control: Any, mpi: Any, seed: int = 0) -> None:
        self.control, self.mpi = control, mpi
        self.shuffle = random.Random(seed).shuffle

    def measure(
        self,
        case: Case,
        contenders: Sequence[Contender],
        budget: Budget,
        tick: Callable[[float], None] = lambda _: None,
    ) -> list[Timing]:
        """Check, time, and check again. tick is told what part of the budget is used up."""
        timings = [Timing(contender) for contender in contenders]
        for timing in timings:
            self.check(case, timing)
        running = [timing for timing in timings if not timing.note]
        with collection_off():
            calls = self._calls_per_round(case, running)
            self._rounds(case, running, calls, budget, tick)
        for timing in running:
            self.check(case, timing)
        return timings

    def check(self, case: Case, timing: Timing) -> None:
        """One call that is not timed, from poisoned buffers, compared with the right answer on every rank."""
        case.poison()
        try:
            with timing.contender.context(), traced(timing.contender.comm) as records:
                getattr(timing.contender.comm, case.method)(*case.arguments(self.mpi))
        except StallError:
            raise
        except (PreconditionError, EngineError) as error:  # of the call, so the same on all ranks
            timing.note = str(error)
            return
        for record in records:
            timing.ran = {
                key: getattr(record, key) for key in ("algorithm", "engine", "chunk_bytes", "lanes")
            }
        timing.valid &= self._everywhere(case.is_right())

    def _everywhere(self, mine: bool) -> bool:
        return not self._longest(np.array([not mine], np.float64))[0]

    def _longest(self, mine: np.ndarray) -> np.ndarray:
        """The elementwise maximum over ranks, on every rank."""
        everyone = np.empty_like(mine)
        self.control.Allreduce(mine, everyone, self.mpi.MAX)
        return everyone

    def _calls_per_round(self, case: Case, running: Sequence[Timing]) -> int:
        """Few where the quickest contender is slow. Warms up on the way."""
        quickest = [self._time(case, timing.contender, 2)[-1:] for timing in running]
        return CALLS if running and self._longest(np.array(quickest)).min() < SHORT else 1

    def _rounds(
        self, case: Case, running: Sequence[Timing], calls: int, budget: Budget, tick: Callable[[float], None]
    ) -> None:
        started, order = time.perf_counter(), list(range(len(running)))
        mine = np.empty((len(running), calls))
        for done in count():
            elapsed = time.perf_counter() - started
            tick(done / budget.rounds if budget.rounds else elapsed / budget.seconds)
            if not running or self.control.bcast(budget.enough(done, elapsed)):
                break
            self.shuffle(order)
            for i in order:
                mine[i] = self._time(case, running[i].contender, calls)
            for timing, seconds in zip(running, self._longest(mine).tolist()):
                timing.rounds.append(seconds)

    def _time(self, case: Case, contender: Contender, calls: int) -> list[float]:
        """Seconds this rank spent in each of some calls."""
        seconds, clock, barrier = [], time.perf_counter, self.control.Barrier
        with contender.context():
            call = partial(getattr(contender.comm, case.method), *case.arguments(self.mpi))
            if calls > 1:
                case.refill()
                call()
            for _ in range(calls):
                case.refill()
                barrier()
                start = clock()
                call()
                seconds.append(clock() - start)
        return seconds


def traced(comm: Any) -> AbstractContextManager[list[Any]]:
    """The trace of an mpicoll.Comm; nothing for any other communicator."""
    return comm.trace() if hasattr(comm, "trace") else nullcontext([])


@contextmanager
def collection_off() -> Iterator[None]:
    """Python's garbage collector stays off meanwhile."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
