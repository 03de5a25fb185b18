"""Measures candidates for auto beside what it chooses by its rules, size after size, and decides between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
from .shortlist import NEAR, Shortlist, distinct

SURE = 0.99  # of being faster, for each that is tried
GAIN = 1.03  # times as fast as what the rules say, at least
BEST = 3  # that are measured again
CHUNKS = (32 << 10, 128 << 10, 512 << 10)
FIRST = 0.4  # of the time, for the first round
BEHIND = 1.3  # times the fastest of the first round: what takes longer is not measured again


@dataclass(frozen=True)
class Candidate:
    """Something auto could choose."""

    algorithm: str
    chunk_bytes: int | None
    window: int
    contender: Contender


class Tuner:
    """Measures on a harness's communicators. Collective, and finds the same on every rank.

    measures_all: whether candidates that the model puts far from its best are measured too.
    """

    def __init__(self, harness: Any, *, measures_all: bool = False) -> None:
        from mpi4py import MPI

        import mpicoll

        self.harness, self.mpi, self.measures_all = harness, MPI, measures_all
        self.p, self.rank = harness.control.size, harness.control.rank
        self.ours = harness.ours
        self._goes_by(self.ours, None)  # what is measured here is not chosen by an older table
        self.natives = mpicoll.Comm(MPI.COMM_WORLD.Dup())
        always: dict[str, tuple[Rule, ...]] = {name: (Rule(0, NATIVE, None, "tuning"),) for name in list_algorithms()}
        agreed = self.ours._open().agreed
        self.nodes, self.network = agreed.nodes, None if measures_all else agreed.network
        self._goes_by(self.natives, Table(library(MPI), layout(self.nodes), always))
        self.wrong: list[str] = []

    def _goes_by(self, comm: Any, table: Table | None) -> None:
        """Put a table in the place of the one that it found when it was made."""
        state = comm._open()
        state.agreed = replace(state.agreed, table=table)

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
        self.harness.say(describe_left_out(row for rows in choices.values() for row in rows))
        self.natives.Free()
        return choices

    def size(self, shape: Shape, size: int, seconds: float) -> Found:
        """Return what serves one size."""
        nbytes = shape.bytes_of_call(size, self.p)
        rule = self.ours.explain(shape.collective, nbytes)
        names = [name for name in exact_algorithms(shape.collective) if find(shape.collective, name).serves(self.p)]
        plain = Contender(NATIVE, None, self.harness.plain)
        auto = Candidate(AUTO, None, WINDOW, self._ours(shape, AUTO))
        native = Candidate(NATIVE, None, WINDOW, Contender(NATIVE, None, self.natives))
        choice = Candidate(rule.algorithm, rule.chunk_bytes, rule.window, auto.contender)
        shortlist = Shortlist(self.network, shape.collective, self.p, self.nodes, nbytes)
        near = [self._candidate(shape, name) for name in names if shortlist.is_near(name)]
        first = self._without_doubles(shape, choice, near)
        cases = Cases(shape, size, self.rank, self.p)
        share = (3 + len(first)) / (3 + len(names))
        timings = self._measure(cases, plain, [auto, native, *first], seconds * FIRST * share)
        limit = math.inf if self.measures_all else BEHIND * min(map(_median, timings[1:]))
        best = self._best([choice, *first], [timings[1], *timings[3:]], limit)
        chunks = [chunk for chunk in CHUNKS if 4 * chunk <= nbytes]
        best += [
            self._candidate(shape, winner.algorithm, chunk)
            for winner in best[: BEST - 1] for chunk in chunks if shortlist.is_near_in(winner.algorithm, chunk)
        ]  # fmt: skip
        challengers = [native] * (_median(timings[2]) <= limit) + self._without_doubles(shape, choice, best)
        if challengers:
            most = 3 + min(BEST, len(names)) + min(BEST - 1, len(names)) * len(chunks)
            share = (2 + len(challengers)) / most
            timings = self._measure(cases, plain, [auto, *challengers], seconds * (1 - FIRST) * share)
        final = [auto, *challengers]
        which = decide(timings[1 : 1 + len(final)])
        chosen, timing = final[which], timings[1 + which]
        seconds, alone, by_rule = map(_median, (timing, timings[0], timings[1]))
        return Found(
            nbytes, chosen.algorithm, chosen.chunk_bytes, seconds, alone, by_rule, rule.algorithm, chosen.window,
            tried=len(first) + (not self.measures_all), of=len(names),
        )  # fmt: skip

    def _without_doubles(self, shape: Shape, choice: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates that are the same as neither auto's choice nor another; all if all are measured."""
        if self.measures_all:
            return [candidate for candidate in candidates if candidate is not choice]
        return distinct(shape.collective, self.p, self.nodes, [choice, *candidates])[1:]

    def _best(self, candidates: Sequence[Candidate], timings: Sequence[Timing], limit: float) -> list[Candidate]:
        """Return the fastest of the first round, the fastest first, without those that took longer than the limit.

        The first candidate is auto's choice, which goes by the time of auto.
        """
        medians = [_median(timing) for timing in timings]
        order = sorted(range(self.measures_all, len(candidates)), key=lambda i: (medians[i], i))
        return [candidates[i] for i in order[:BEST] if math.isfinite(medians[i]) and medians[i] <= limit]

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


def describe_left_out(choices: Iterable[Found]) -> str:
    """Return how many candidates were not measured, and why."""
    tried, of = (sum(numbers) for numbers in zip((0, 0), *((choice.tried, choice.of) for choice in choices)))
    if tried == of:
        return f"all {of} candidates were measured"
    return (
        f"{of - tried} of {of} candidates were left out: the model puts them at more than {NEAR:g} times its best, or "
        "they send the same messages as another; --all measures them"
    )


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
    for column in ("bytes", "algorithm", "chunks", "µs", "by the rules", "native", "tried"):
        rich_table.add_column(column, justify="left" if column == "algorithm" else "right", no_wrap=True)
    for choice in choices:
        times = (f"{seconds * 1e6:.4g}" for seconds in (choice.seconds, choice.by_rule, choice.native))
        chunk = "" if choice.chunk_bytes is None else format_size(choice.chunk_bytes)
        name = f"{AUTO}: {choice.rule}" if choice.algorithm == AUTO else choice.algorithm
        rich_table.add_row(format_size(choice.nbytes), name, chunk, *times, f"{choice.tried} of {choice.of}")
    return rich_table
