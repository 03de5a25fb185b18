"""Run shapes over sizes, divide the time among the sizes, and write and return the results."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mpicoll.cli.sizes import format_size

from ..cases.case import Cases
from ..cases.contenders import Contender
from ..cases.patterns import Shape
from ..command.progress import Bar
from ..measure.budget import Budget
from ..measure.rounds import Bench
from ..results.records import Place, Result, Writer, results

LEAST_SHARE = 0.5  # of an even share of the time, for every size, however long the earlier ones took
MEMORY = 1 << 30  # bytes of buffers per rank above which a size is left out


@dataclass(frozen=True)
class Job:
    """One collective over some sizes, with its contenders."""

    shape: Shape
    sizes: tuple[int, ...]
    contenders: Sequence[Contender]


def feasible(job: Job, p: int, limit: int = MEMORY) -> tuple[list[int], list[int]]:
    """Return the sizes in bytes that fit in memory and those that do not, each distinct once rounded to elements."""
    sizes = {job.shape.elements(n): n for n in sorted(job.sizes, reverse=True)}
    wanted = sorted(sizes.values())
    fit = [n for n in wanted if job.shape.footprint(n, p) <= limit]
    return fit, [n for n in wanted if n not in fit]


class Driver:
    """Runs jobs, the same on all ranks; only rank 0's `say` and `writer` have an effect."""

    def __init__(
        self, bench: Bench, place: Place, writer: Writer, say: Callable[[str], None], memory: int = MEMORY
    ) -> None:
        self.bench, self.place, self.writer, self.say, self.memory = bench, place, writer, say, memory
        self.rank, self.p = bench.control.rank, bench.control.size

    def parts(self, jobs: Sequence[Job]) -> int:
        """Return how many sizes there are to measure."""
        return sum(len(feasible(job, self.p, self.memory)[0]) for job in jobs)

    def run(self, job: Job, allowed: Budget, bar: Bar) -> list[Result]:
        """Measure one collective and return its results. Time that a size leaves unused goes to the later ones."""
        sizes, too_big = feasible(job, self.p, self.memory)
        if too_big:
            self.say(
                f"{job.shape.collective}: without {', '.join(map(format_size, too_big))}, whose buffers take "
                f"more than {format_size(self.memory)} on a rank"
            )
        gc.collect()  # here, since it takes a while; it is off while timing
        job_results, until = [], time.perf_counter() + allowed.seconds
        for place, nbytes in enumerate(sizes):
            left = (until - time.perf_counter()) / (len(sizes) - place)
            share = max(left, LEAST_SHARE * allowed.seconds / len(sizes))
            bar.begin(f"{job.shape.collective} {format_size(nbytes)}")
            job_results += self._size(job, nbytes, replace(allowed, seconds=share), bar)
            bar.end()
        return job_results

    def _size(self, job: Job, nbytes: int, budget: Budget, bar: Bar) -> list[Result]:
        cases = Cases(job.shape, nbytes, self.rank, self.p)
        size_results = results(cases, self.bench.measure(cases, job.contenders, budget, bar.within), self.place)
        for result in size_results:
            self.writer.write(result.line())
        return size_results


def all_valid(results: Sequence[Result]) -> bool:
    """Return whether every contender that ran gave the right answer."""
    return all(result.timing.valid for result in results)
