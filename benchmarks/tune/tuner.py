"""Measures candidates for auto beside what it chooses by its rules, size after size, and decides between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import mpicoll
from mpicoll.cli.sizes import format_size
from mpicoll.plans.plan import WINDOW
from mpicoll.schedules.registry import exact_algorithms, find, list_algorithms
from mpicoll.selection.rules import Rule
from mpicoll.selection.tables import Table, layout, library

from ..bench.driver import Job, feasible
from ..cases.case import Cases
from ..cases.contenders import AUTO, NATIVE, Contender, line_up
from ..cases.patterns import Shape
from ..command.progress import bar
from ..measure.budget import Budget
from ..measure.rounds import Timing
from ..measure.stats import estimate, ratio
from ..results.environment import commit, now
from .rules import Found, rules

SURE = 0.99  # of being faster, for each that is tried
GAIN = 1.03  # times as fast as what the rules say, at least
BEST = 3  # that are measured again
CHUNKS = (32 << 10, 128 << 10, 512 << 10)
FIRST = 0.4  # of the time, for the round of all


@dataclass(frozen=True)
class Candidate:
    """Something auto could choose."""

    algorithm: str
    chunk_bytes: int | None
    window: int
    contender: Contender


class Tuner:
    """Measures on a harness's communicators. Collective, and finds the same on every rank."""

    def __init__(self, harness: Any) -> None:
        from mpi4py import MPI

        import mpicoll

        self.harness, self.mpi = harness, MPI
        self.p, self.rank = harness.control.size, harness.control.rank
        self.ours = harness.ours
        self._goes_by(self.ours, None)  # what is measured here is not chosen by an older table
        self.natives = mpicoll.Comm(MPI.COMM_WORLD.Dup())
        always: dict[str, tuple[Rule, ...]] = {name: (Rule(0, NATIVE, None, "tuning"),) for name in list_algorithms()}
        self.nodes = self.ours._open().agreed.nodes
        self._goes_by(self.natives, Table(library(MPI), layout(self.nodes), always))
        self.wrong: list[str] = []

    def _goes_by(self, comm: Any, table: Table | None) -> None:
        """Put a table in the place of the one that it found when it was made."""
        channel = comm._open()
        channel.agreed = replace(channel.agreed, table=table)

    def run(self, shapes: Sequence[Shape], sizes: Sequence[int], seconds: float) -> dict[str, list[Found]]:
        """Return what serves each collective at each size that fits in memory."""
        jobs = [Job(shape, tuple(sizes) if shape.pattern.recv else (0,), ()) for shape in shapes]
        fits = {}
        for job in jobs:
            fits[job.shape.collective], too_big = feasible(job, self.p, self.harness.memory)
            if too_big:
                left_out = ", ".join(map(format_size, too_big))
                self.harness.say(f"{job.shape.collective}: without {left_out}, for which --memory is too little")
        parts = sum(map(len, fits.values()))
        choices: dict[str, list[Found]] = {}
        with bar(self.harness.console, parts, self.harness.here) as progress:
            for job in jobs:
                name = job.shape.collective
                for size in fits[name]:
                    progress.begin(f"{name} {format_size(size)}")
                    choices.setdefault(name, []).append(self.size(job.shape, size, seconds / parts))
                    progress.end()
                self.harness.say(_table(name, choices.get(name, [])))
        self.natives.Free()
        return choices

    def size(self, shape: Shape, size: int, seconds: float) -> Found:
        """Return what serves one size."""
        nbytes = shape.bytes_of_call(size, self.p)
        rule = self.ours.explain(shape.collective, nbytes)
        names = [name for name in exact_algorithms(shape.collective) if find(shape.collective, name).serves(self.p)]
        native, auto = Contender(NATIVE, None, self.harness.plain), self._ours(shape, AUTO)
        always = [
            Candidate(AUTO, None, WINDOW, auto),
            Candidate(NATIVE, None, WINDOW, Contender(NATIVE, None, self.natives)),
        ]
        everyone = [self._candidate(shape, name) for name in names]
        cases = Cases(shape, size, self.rank, self.p)
        timings = self._measure(cases, native, [*always, *everyone], seconds * FIRST)[1 + len(always) :]
        order = sorted(zip(timings, range(len(everyone))), key=lambda pair: (_median(pair[0]), pair[1]))
        best = [everyone[i] for timing, i in order[:BEST] if math.isfinite(_median(timing))]
        chunks = [chunk for chunk in CHUNKS if 4 * chunk <= nbytes]
        best += [self._candidate(shape, winner.algorithm, chunk) for winner in best[: BEST - 1] for chunk in chunks]
        final = [*always, *best]
        timings = self._measure(cases, native, final, seconds * (1 - FIRST))
        which = decide(timings[1:])
        chosen, timing = final[which], timings[1 + which]
        seconds, alone, by_rule = map(_median, (timing, timings[0], timings[1]))
        return Found(
            nbytes, chosen.algorithm, chosen.chunk_bytes, seconds, alone, by_rule, rule.algorithm, chosen.window
        )

    def entry(self, choices: dict[str, list[Found]]) -> dict[str, Any]:
        """Return the table for a file."""
        return {
            "mpi": library(self.mpi),
            "nodes": list(layout(self.nodes)),
            "measured": now(),
            "mpicoll": mpicoll.__version__,
            "commit": commit(),
            "rules": {name: rules(rows) for name, rows in choices.items()},
        }

    def _ours(self, shape: Shape, name: str, chunk: int | None = None) -> Contender:
        return line_up(shape.collective, [name], [AUTO], self.harness.plain, self.ours, chunk_bytes=chunk)[0]

    def _candidate(self, shape: Shape, name: str, chunk: int | None = None) -> Candidate:
        contender = self._ours(shape, name, chunk)
        with contender.context():
            chosen = self.ours.explain(shape.collective)
        return Candidate(name, chosen.chunk_bytes, chosen.window, contender)

    def _measure(
        self, cases: Cases, native: Contender, candidates: Sequence[Candidate], seconds: float
    ) -> list[Timing]:
        contenders = [native, *(candidate.contender for candidate in candidates)]
        timings: list[Timing] = self.harness.bench.measure(cases, contenders, Budget(seconds, precision=0.01))
        where = f"{cases.shape.collective} of {format_size(cases.nbytes)}"
        self.wrong += [f"{timing.contender.label} at {where}" for timing in timings if not timing.valid]
        return timings


def decide(timings: Sequence[Timing]) -> int:
    """Return which one: the first, which the rules chose, unless others are faster beyond doubt.

    Then it is the fastest of those.
    """
    if not timings[0].rounds:
        return 0
    against = timings[0].values
    gains = {
        i: gain.median
        for i, timing in enumerate(timings)
        if i and timing.rounds and timing.valid
        and (gain := ratio(against, timing.values, SURE)).low is not None and gain.low > 1 and gain.median >= GAIN
    }
    return max(gains, key=lambda i: gains[i]) if gains else 0


def _median(timing: Timing) -> float:
    return estimate(timing.values).median if timing.rounds and timing.valid else math.inf


def _table(name: str, choices: Sequence[Found]) -> Any:
    from rich import box
    from rich.table import Table as Drawn

    rich_table = Drawn(title=name, box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("bytes", "algorithm", "chunks", "µs", "by the rules", "native"):
        rich_table.add_column(column, justify="left" if column == "algorithm" else "right", no_wrap=True)
    for choice in choices:
        times = (f"{seconds * 1e6:.4g}" for seconds in (choice.seconds, choice.by_rule, choice.native))
        chunk = "" if choice.chunk_bytes is None else format_size(choice.chunk_bytes)
        name = f"{AUTO}: {choice.rule}" if choice.algorithm == AUTO else choice.algorithm
        rich_table.add_row(format_size(choice.nbytes), name, chunk, *times)
    return rich_table
