"""Many proofs at once: every algorithm at every p, in as many processes as there are CPUs."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import MpicollError, ParameterError, PreconditionError, VerifyError

if TYPE_CHECKING:
    from ..schedules.registry import Algorithm

Name = tuple[str, str]  # a collective, and an algorithm of it as "name" or "name(key=value)"
Task = tuple[Name, int]  # to prove an algorithm at p ranks


class Proof(NamedTuple):
    """The result of proving one algorithm at one p; unfit: why the algorithm does not support that p."""

    algorithm: Name
    p: int
    schedules: int = 0
    seconds: float = 0.0
    failure: str | None = None
    unfit: str | None = None


@dataclass
class Proofs:
    """The results of one algorithm at all p."""

    proved: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    excluded: dict[int, str] = field(default_factory=dict)
    schedules: int = 0
    seconds: float = 0.0

    def add(self, proof: Proof) -> None:
        """Add the result at one p."""
        self.schedules += proof.schedules
        self.seconds += proof.seconds
        if proof.failure is not None:
            self.failed[proof.p] = proof.failure
        elif proof.unfit is not None:
            self.excluded[proof.p] = proof.unfit
        else:
            self.proved.append(proof.p)


def prove(algorithm: Name, p: int) -> Proof:
    """Prove one algorithm at one p; any error is a failure, an algorithm that raises included."""
    from ..proofs.prove import prove
    from ..schedules.registry import parse_spec

    start, count, failure, unfit = time.process_time(), 0, None, None
    try:
        entry, parameters = parse_spec(*algorithm)
        unfit = _unfit(entry, p, dict(parameters)) if parameters else None
        if unfit is None:
            count = prove(entry, p, dict(parameters) or None)
            unfit = f"needs {entry.requires.words}" if entry.requires and not count else None
    except VerifyError as error:
        failure = str(error)
    except Exception as error:
        failure = f"{' '.join(algorithm)} on p={p}: {type(error).__name__}: {error}"
    return Proof(algorithm, p, count, time.process_time() - start, failure, unfit)


def _unfit(entry: Algorithm, p: int, parameters: dict[str, Any]) -> str | None:
    """Return why there is no schedule with these parameters for p ranks; None if there is one."""
    from ..schedules.schedule import Schedule

    try:
        Schedule(entry, p, **parameters)
    except (PreconditionError, ParameterError) as error:
        words = str(error).rpartition(", and p is ")[0] or str(error)
        return words.removeprefix(entry.title).removeprefix(":").strip()
    return None


def tasks(names: Sequence[Name], max_ranks: int) -> list[Task]:
    """Return what to prove: large p first, so that no process is left with the longest proof at the end."""
    return [(name, p) for p in range(max_ranks, 0, -1) for name in names]


def large_tasks(names: Sequence[Name], p: int) -> list[Task]:
    """Return what to prove at a large p: algorithms that serve it, and whose ranks post at most 8 lg p messages."""
    from ..cost.chunks import sample_messages
    from ..schedules.claims import lg
    from ..schedules.registry import parse_spec
    from ..schedules.schedule import Schedule

    chosen: list[Task] = []
    for name in names:
        entry, parameters = parse_spec(*name)
        try:
            schedule = Schedule(entry, p, **dict(parameters))
        except (PreconditionError, ParameterError):
            continue
        steps = entry.claims.evaluate(entry.claims.steps, p, 1, **schedule.resolved)
        if steps <= 4 * lg(p) and max(map(sum, sample_messages(schedule))) <= 8 * lg(p):
            chosen.append((name, p))
    return chosen


def run(wanted: Sequence[Task], jobs: int) -> Iterator[Proof]:
    """Return all proofs as they complete.

    The processes are forked before this returns, and before the pool starts a thread: a caller that starts threads, for
    a progress bar say, calls this first. Forked processes have the algorithms that `--load` registered.
    """
    workers = min(jobs, len(wanted))
    if workers <= 1:
        return (prove(*task) for task in wanted)
    pool = ProcessPoolExecutor(workers, get_context("fork"), _collect_rarely)
    return _completed(pool, [pool.submit(prove, *task) for task in wanted])


def _completed(pool: ProcessPoolExecutor, futures: Sequence[Future[Proof]]) -> Iterator[Proof]:
    try:
        for future in as_completed(futures):
            yield future.result()
    except BrokenProcessPool:
        raise MpicollError("a process of the pool was killed, perhaps since memory ran out; try --jobs 1") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _collect_rarely() -> None:
    """Collect garbage less often: proofs make millions of small objects and few cycles, so this saves a tenth."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)
