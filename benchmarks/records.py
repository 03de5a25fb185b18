"""Results as JSON lines: one on the run, then one per collective, size and contender, each written at once.

    {"kind": "run", "schema": 1, "environment": {…}, "settings": {…}}
    {"kind": "result", "schema": 1, "collective", "size", "dtype", "op", "root", "in_place",
     "counts", "algorithm", "engine",                     what was asked for
     "ran": {"algorithm", "engine", "chunk_bytes", "lanes"},   what did run; empty for native
     "valid", "note",
     "median_us", "interval_us": [low, high] | null, "rounds",
     "ratio", "ratio_interval", "verdict",                native's time over this one's; null without native
     "samples_us": [[call, …], …]}                        by round and call, the longest over ranks

Times are in microseconds, sizes in bytes. A reader refuses a schema it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import IO, Any

from .case import Case
from .contenders import NATIVE
from .measure import Timing
from .patterns import Shape
from .stats import Estimate, Ratio, estimate, ratio

SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """One contender at one size. Seconds and bytes."""

    shape: Shape
    nbytes: int
    timing: Timing
    time: Estimate | None  # None: it did not run
    ratio: Ratio | None  # None: native, or no native to compare with

    def line(self) -> dict[str, Any]:
        """The JSON object of this result."""
        time, against = self.time, self.ratio
        shape = asdict(self.shape)
        return {
            "kind": "result",
            "schema": SCHEMA,
            "collective": shape.pop("collective"),
            "size": self.nbytes,
            **shape,
            "algorithm": self.timing.contender.algorithm,
            "engine": self.timing.contender.engine,
            "ran": self.timing.ran,
            "valid": self.timing.valid if time else None,
            "note": self.timing.note,
            "median_us": time and _microseconds(time.median),
            "interval_us": time and time.spread and [_microseconds(t) for t in time.spread],
            "rounds": time.values if time else 0,
            "ratio": against and round(against.median, 4),
            "ratio_interval": against and against.spread and [round(r, 4) for r in against.spread],
            "verdict": against and against.verdict,
            "samples_us": [[_microseconds(t) for t in calls] for calls in self.timing.rounds],
        }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def results(case: Case, timings: Sequence[Timing]) -> list[Result]:
    """The statistics of what was measured at one size."""
    native = next((t.values for t in timings if t.contender.algorithm == NATIVE and t.rounds), None)
    found = []
    for timing in timings:
        time = against = None
        if timing.rounds:
            time = estimate(timing.values)
            if native is not None and timing.contender.algorithm != NATIVE:
                against = ratio(native, timing.values)
        found.append(Result(case.shape, case.nbytes, timing, time, against))
    return found


class Writer:
    """Appends lines to a file and flushes each, so that an interrupted run keeps what it has."""

    def __init__(self, file: IO[str] | None) -> None:
        self.file = file

    def write(self, line: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self.file.flush()

    def run(self, environment: dict[str, Any], settings: dict[str, Any]) -> None:
        """The first line."""
        self.write({"kind": "run", "schema": SCHEMA, "environment": environment, "settings": settings})
