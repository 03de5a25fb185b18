"""`mpicoll tune`: measures which algorithm serves which bytes on these ranks, and writes it down as a table.

At every size all algorithms take part first, then the quickest of them once more, in chunks too. In both rounds go
along what `auto` chooses by its rules, and MPI's own collective as `auto` would call it, so with what that costs. What
the rules say stays unless something else is faster in the same rounds beyond doubt and by more than a little:
otherwise a table would hold what the machine happened to do.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import numpy as np

import mpicoll
from mpicoll.errors import MpicollError, TuningError, UnknownAlgorithm
from mpicoll.plans.plan import WINDOW
from mpicoll.schedules.collectives import COLLECTIVES
from mpicoll.schedules.registry import find, list_algorithms
from mpicoll.selection.rules import Rule
from mpicoll.selection.tables import SCHEMA, UNKNOWN_TO_ALL, Table, layout, library, read, validator

from .asked import ALL, listed, positive
from .budget import Budget
from .case import Cases
from .contenders import AUTO, NATIVE, Contender, line_up
from .environment import commit, now
from .measure import Timing
from .patterns import Shape
from .sizes import format_size, parse_size, parse_sizes
from .stats import estimate, ratio
from .voice import WRONG, OneVoice, world

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


@dataclass(frozen=True)
class Found:
    """What serves a call of so many bytes, as comm.explain() counts them, and what that takes; seconds.

    algorithm: auto for what the rules say, and rule is what that is.
    """

    nbytes: int
    algorithm: str
    chunk_bytes: int | None
    seconds: float
    native: float
    by_rule: float
    rule: str = ""
    window: int = WINDOW

    def is_as(self, other: Found) -> bool:
        """Return whether the same serves."""
        said = attrgetter("algorithm", "chunk_bytes", "window")
        return bool(said(self) == said(other))


@click.command(cls=OneVoice, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--collectives", default=ALL, help="A list of names; or all whose ranks know the bytes of a call.")
@click.option("--sizes", default="8:16M:8", help="Bytes, as for mpicoll bench: a list and ranges FIRST:LAST[:FACTOR].")
@click.option("--seconds", default=120.0, help="Time to spend in all, apart from checking and warming up.")
@click.option("--memory", default="1G", help="Leave out sizes that need more for buffers on a rank.")
@click.option("--seed", default=0, help="Of the order within a round.")
@click.option("-o", "--output", "path", default="tuning.json", metavar="FILE",
              help="Where the table goes, beside those of other MPIs and layouts that are there.")
def tune(collectives: str, sizes: str, seconds: float, memory: str, seed: int, path: str) -> None:
    """Measure which algorithm serves which bytes on these ranks: start it under mpiexec as the program will be.

    MPICOLL_TUNING=FILE then makes auto go by it, on communicators whose ranks lie on nodes as these do, with the same
    MPI library. The file is JSON, to be read and edited.
    """
    comm = world()
    try:
        given = {"collectives": collectives, "sizes": sizes, "seconds": seconds, "memory": memory}
        shapes, wanted, limit = check(given, comm.size)
        _only_auto()
        tables = _others(comm, Path(path))
    except (ValueError, MpicollError) as error:
        raise click.UsageError(str(error)) from None
    from .session import Session

    with Session({}, seed=seed, memory=limit) as session:
        tuner = Tuner(session)
        found = tuner.run(shapes, wanted, seconds)
        if tuner.wrong:
            session.say(f"wrong answers, so nothing is written: {', '.join(tuner.wrong)}")
            raise click.exceptions.Exit(WRONG)
        if comm.rank == 0:
            _write(Path(path), tables, tuner.entry(found))
        session.say(f"written to {path}; it is used where MPICOLL_TUNING={path} is in the environment")


def check(given: Mapping[str, Any], p: int) -> tuple[list[Shape], list[int], int]:
    """Shapes, sizes and bytes of memory that options mean on p ranks. Raises ValueError, MpicollError."""
    positive("--seconds", given["seconds"])
    shapes = [_shape(name, p) for name in _names(given["collectives"])]
    return shapes, parse_sizes(given["sizes"]), parse_size(given["memory"])


class Tuner:
    """Measures on a session's communicators. Collective, and finds the same on every rank."""

    def __init__(self, session: Any) -> None:
        from mpi4py import MPI

        import mpicoll

        self.session, self.mpi = session, MPI
        self.p, self.rank = session.control.size, session.control.rank
        self.ours = session.ours
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
        from .driver import Job, feasible
        from .progress import bar

        jobs = [Job(shape, tuple(sizes) if shape.pattern.recv else (0,), ()) for shape in shapes]
        fits = {}
        for job in jobs:
            fits[job.shape.collective], too_big = feasible(job, self.p, self.session.memory)
            if too_big:
                left_out = ", ".join(map(format_size, too_big))
                self.session.say(f"{job.shape.collective}: without {left_out}, for which --memory is too little")
        parts = sum(map(len, fits.values()))
        found: dict[str, list[Found]] = {}
        with bar(self.session.console, parts, self.session.here) as progress:
            for job in jobs:
                name = job.shape.collective
                for size in fits[name]:
                    progress.begin(f"{name} {format_size(size)}")
                    found.setdefault(name, []).append(self.size(job.shape, size, seconds / parts))
                    progress.end()
                self.session.say(_table(name, found.get(name, [])))
        self.natives.Free()
        return found

    def size(self, shape: Shape, size: int, seconds: float) -> Found:
        """Return what serves one size."""
        nbytes = bytes_of_call(shape, size, self.p)
        rule = self.ours.explain(shape.collective, nbytes)
        names = [name for name in list_algorithms()[shape.collective] if find(shape.collective, name).serves(self.p)]
        native, auto = Contender(NATIVE, None, self.session.plain), self._ours(shape, AUTO)
        always = [
            Candidate(AUTO, None, WINDOW, auto),
            Candidate(NATIVE, None, WINDOW, Contender(NATIVE, None, self.natives)),
        ]
        everyone = [self._candidate(shape, name) for name in names]
        cases = Cases(shape, size, self.rank, self.p)
        timings = self._measure(cases, native, [*always, *everyone], seconds * FIRST)[1 + len(always) :]
        order = sorted(zip(timings, range(len(everyone))), key=lambda each: (_median(each[0]), each[1]))
        best = [everyone[i] for timing, i in order[:BEST] if math.isfinite(_median(timing))]
        chunks = [chunk for chunk in CHUNKS if 4 * chunk <= nbytes]
        best += [self._candidate(shape, each.algorithm, chunk) for each in best[: BEST - 1] for chunk in chunks]
        final = [*always, *best]
        timings = self._measure(cases, native, final, seconds * (1 - FIRST))
        which = decide(timings[1:])
        chosen, timing = final[which], timings[1 + which]
        seconds, alone, by_rule = map(_median, (timing, timings[0], timings[1]))
        return Found(
            nbytes, chosen.algorithm, chosen.chunk_bytes, seconds, alone, by_rule, rule.algorithm, chosen.window
        )

    def entry(self, found: dict[str, list[Found]]) -> dict[str, Any]:
        """Return the table for a file."""
        return {
            "mpi": library(self.mpi),
            "nodes": list(layout(self.nodes)),
            "measured": now(),
            "mpicoll": mpicoll.__version__,
            "commit": commit(),
            "rules": {name: rules(rows) for name, rows in found.items()},
        }

    def _ours(self, shape: Shape, name: str, chunk: int | None = None) -> Contender:
        return line_up(shape.collective, [name], [AUTO], self.session.plain, self.ours, chunk_bytes=chunk)[0]

    def _candidate(self, shape: Shape, name: str, chunk: int | None = None) -> Candidate:
        contender = self._ours(shape, name, chunk)
        with contender.context():
            chosen = self.ours.explain(shape.collective)
        return Candidate(name, chosen.chunk_bytes, chosen.window, contender)

    def _measure(
        self, cases: Cases, native: Contender, candidates: Sequence[Candidate], seconds: float
    ) -> list[Timing]:
        contenders = [native, *(each.contender for each in candidates)]
        timings: list[Timing] = self.session.bench.measure(cases, contenders, Budget(seconds, precision=0.01))
        where = f"{cases.shape.collective} of {format_size(cases.nbytes)}"
        self.wrong += [f"{timing.contender.label} at {where}" for timing in timings if not timing.valid]
        return timings


def bytes_of_call(shape: Shape, size: int, p: int) -> int:
    """Return what selection goes by, of a size as benchmarks mean it: see Claims for whose bytes.

    >>> [bytes_of_call(Shape(name), 64, 3) for name in ("allreduce", "allgather", "reduce_scatter_block")]
    [64, 192, 72]
    """
    return sum(shape.pattern.lengths(shape.elements(size), p)) * np.dtype(shape.dtype).itemsize


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


def rules(found: Sequence[Found]) -> list[dict[str, Any]]:
    """Rules for a table: from the geometric mean of neighbouring sizes on, where another serves.

    Far beyond the last size nothing was measured, so there the rules of auto hold.
    """
    made: list[dict[str, Any]] = []
    for before, here in zip((None, *found), found):
        row = {
            "from_bytes": 0 if before is None else math.isqrt(max(1, before.nbytes) * here.nbytes),
            "algorithm": here.algorithm,
            "chunk_bytes": here.chunk_bytes,
            **({} if here.chunk_bytes is None else {"window": here.window}),
            "at_bytes": here.nbytes,
            **{key: round(t * 1e6, 2) for key, t in (("us", here.seconds), ("native_us", here.native)) if t < math.inf},
        }
        if before is not None and here.is_as(before):
            row["from_bytes"] = made.pop()["from_bytes"]
        made.append(row)
    if made[-1]["algorithm"] != AUTO:
        made.append({"from_bytes": max(1, 2 * found[-1].nbytes), "algorithm": AUTO})
    return made


def _only_auto() -> None:
    """Check that what is measured is what auto would run. Raises ValueError for variables that say otherwise."""
    for name, usual in (("MPICOLL_ENGINE", AUTO), ("MPICOLL_CHECK", "0")):
        if (value := os.environ.get(name, usual)) != usual:
            raise ValueError(f"{name} is {value!r}; a table is measured without it")
    for name in ("MPICOLL_TUNING", "MPICOLL_LOG"):  # the table may be yet to come, and words take time
        os.environ.pop(name, None)


def _names(text: str) -> list[str]:
    """Return the collectives of a list. Raises UnknownAlgorithm, ValueError."""
    names = listed("--collectives", text)
    for name in names:
        if name in UNKNOWN_TO_ALL:
            raise ValueError(f"{name} cannot be tuned: its ranks know only their own counts, so bytes decide nothing")
        if name != ALL and name not in list_algorithms():
            raise UnknownAlgorithm("collective", name, (*list_algorithms(), ALL))
    return list(dict.fromkeys(each for name in names for each in (COLLECTIVES if name == ALL else [name])))


def _shape(name: str, p: int) -> Shape:
    shape = Shape(name)
    shape.check(p)
    return shape


def _median(timing: Timing) -> float:
    return estimate(timing.values).median if timing.rounds and timing.valid else math.inf


def _table(name: str, found: Sequence[Found]) -> Any:
    from rich import box
    from rich.table import Table as Drawn

    made = Drawn(title=name, box=box.SIMPLE_HEAD, title_justify="left")
    for column in ("bytes", "algorithm", "chunks", "µs", "by the rules", "native"):
        made.add_column(column, justify="left" if column == "algorithm" else "right", no_wrap=True)
    for each in found:
        times = (f"{seconds * 1e6:.4g}" for seconds in (each.seconds, each.by_rule, each.native))
        chunk = "" if each.chunk_bytes is None else format_size(each.chunk_bytes)
        name = f"{AUTO}: {each.rule}" if each.algorithm == AUTO else each.algorithm
        made.add_row(format_size(each.nbytes), name, chunk, *times)
    return made


def _others(comm: Any, path: Path) -> list[dict[str, Any]]:
    """Return the tables that are in the file.

    A file that is none, or cannot be written, ends all ranks before any work.
    """
    kept, trouble = [], ""
    if comm.rank == 0:
        try:
            validator()     # without which no program can go by the table
            if path.exists():
                read(path)
                kept = json.loads(path.read_text(encoding="utf-8"))["tables"]
            if path.is_dir() or not os.access(path.parent, os.W_OK):
                trouble = f"-o {path}: cannot be written"
        except TuningError as error:
            trouble = f"{error}; name another file with -o"
    if trouble := comm.bcast(trouble) if comm.size > 1 else trouble:
        raise ValueError(trouble)
    return kept


def _write(path: Path, others: Sequence[dict[str, Any]], made: dict[str, Any]) -> None:
    """Put the new table in the place of an older one of the same kind; rules of collectives not measured now stay."""
    same = [old for old in others if (old["mpi"], old["nodes"]) == (made["mpi"], made["nodes"])]
    made = {**made, "rules": {**(same[0]["rules"] if same else {}), **made["rules"]}}
    content = {"schema": SCHEMA, "tables": [made, *(old for old in others if old not in same)]}
    beside = path.with_name(path.name + ".new")
    beside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
