"""Results as JSON lines: one on the run, then one per collective, size and contender, each written at once.

    {"kind": "run", "schema": 2, "environment": {…}, "settings": {…}}
    {"kind": "result", "schema": 2,
     "collective", "form", "dtype", "op", "root", "in_place", "counts", "fresh",
     "algorithm", "engine",                               as requested; null if the collective does not have it
     "size", "ranks", "hosts",
     "ran": {"algorithm", "engine", "chunk_bytes", "lanes"},   what did run; empty for native
     "paired": true,                                      timed in the same rounds as native
     "valid", "note",
     "error": null | [worst, bound],                      of what moves codes, as parts of the largest element
     "median_us", "interval_us": [low, high] | null, "rounds", "late",
     "algbw", "busbw",                                    bytes per second, as in bandwidth.py
     "limit_us", "of_limit",                              where a link rate was given: limits.py; 1 is at the limit
     "ratio", "ratio_interval", "verdict",                native's time over this one's; null if wrong
     "overlap": null | {"percent", "interval", "overall_us", "compute_us", "init_us", "wait_us"},
     "samples_us": [value, …]}                            one a round, the longest over ranks; past SAMPLES of them
                                                          "sketch_us" instead: the 0th to 100th percentile

Times are in microseconds, sizes in bytes. A reader refuses a schema it does not know.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from ..cases.case import Cases
from ..cases.contenders import NATIVE
from ..cases.patterns import Shape
from ..measure.overlap import PARTS, Overlapped, overlapped
from ..measure.rounds import Timing
from ..measure.stats import Estimate, Ratio, estimate, ratio
from .bandwidth import bandwidths
from .limits import limit

SCHEMA = 2
Row = dict[str, Any]  # a result line, schema 2
SAMPLES = 2000  # values that are kept as they are


@dataclass(frozen=True)
class Place:
    """The hosts of a run: every rank's host, and the rate of a host's link in bits per second, if known."""

    host_of: Sequence[int]
    rate: float | None = None


@dataclass(frozen=True)
class Result:
    """One contender at one size. Seconds, bytes, bytes per second."""

    shape: Shape
    nbytes: int
    place: Place
    timing: Timing
    time: Estimate | None  # None: it did not run
    ratio: Ratio | None  # None: native, or no native to compare with
    limit: float | None
    overlap: Overlapped | None

    @property
    def bandwidths(self) -> tuple[float | None, float | None]:
        """Return the bandwidth of the algorithm, and of the bus."""
        if self.time is None or not self.nbytes or len(self.place.host_of) == 1:
            return None, None
        return bandwidths(self.shape, self.nbytes, len(self.place.host_of), self.time.median)

    @property
    def of_limit(self) -> float | None:
        """Return the limit over the time: 1 is at the limit."""
        return self.limit / self.time.median if self.limit and self.time else None

    def line(self) -> dict[str, Any]:
        """Return the JSON object of this result."""
        time, against = self.time, self.ratio
        algorithm, bus = self.bandwidths
        return {
            "kind": "result",
            "schema": SCHEMA,
            "collective": self.shape.collective,
            "size": self.nbytes,
            **self.shape.facts,
            "ranks": len(self.place.host_of),
            "hosts": len(set(self.place.host_of)),
            "algorithm": self.timing.contender.algorithm,
            "engine": self.timing.contender.engine,
            "ran": self.timing.ran,
            "paired": True,
            "valid": self.timing.valid if time else None,
            "note": self.timing.note,
            "error": self.timing.error and list(self.timing.error),
            "median_us": time and _microseconds(time.median),
            "interval_us": time and time.spread and [_microseconds(t) for t in time.spread],
            "rounds": time.values if time else 0,
            "late": self.timing.late,
            "algbw": algorithm and round(algorithm),
            "busbw": bus and round(bus),
            "limit_us": self.limit and _microseconds(self.limit),
            "of_limit": self.of_limit and round(self.of_limit, 4),
            "ratio": against and round(against.median, 4),
            "ratio_interval": against and against.spread and [round(r, 4) for r in against.spread],
            "verdict": against and against.verdict,
            "overlap": _overlap_line(self.overlap),
            **samples([value for value in self.timing.values if not math.isnan(value)]),
        }


def samples(seconds: Sequence[float]) -> dict[str, list[float]]:
    """Return all values, or of too many their percentiles."""
    if len(seconds) <= SAMPLES:
        return {"samples_us": [_microseconds(t) for t in seconds]}
    return {"sketch_us": [_microseconds(t) for t in np.percentile(seconds, range(101))]}


def step_line(
    what: str, dtype: str, size: int, place: Place, algorithm: str, seconds: Sequence[float],
    native: Sequence[float] | None = None, least: float | None = None,
) -> Row:
    """Return the JSON object of a step of training, which is many collectives. Seconds; size in bytes.

    native: of what is compared with, in the same rounds; None for that itself. least: what the links allow.
    """
    took, against = estimate(seconds), None if native is None else ratio(native, seconds)
    return {
        "kind": "result", "schema": SCHEMA,
        "collective": what, "form": "blocking", "dtype": dtype, "op": "sum", "size": size,
        "ranks": len(place.host_of), "hosts": len(set(place.host_of)), "algorithm": algorithm, "engine": None,
        "ran": {}, "paired": True, "valid": None, "note": "", "rounds": took.values, "late": 0,
        "median_us": took.median * 1e6, "interval_us": took.spread and [t * 1e6 for t in took.spread],
        "limit_us": least and _microseconds(least), "of_limit": least and round(least / took.median, 4),
        "ratio": against and against.median, "ratio_interval": against and against.spread,
        "verdict": against and against.verdict, **samples(seconds),
    }  # fmt: skip


def _overlap_line(overlap: Overlapped | None) -> dict[str, Any] | None:
    if overlap is None:
        return None
    percent = overlap.percent
    return {
        "percent": round(percent.median, 2),
        "interval": percent.spread and [round(x, 2) for x in percent.spread],
        **{f"{part}_us": _microseconds(overlap.parts[part].median) for part in PARTS},
    }


def _microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)


def results(cases: Cases, timings: Sequence[Timing], place: Place) -> list[Result]:
    """Return the statistics of what was measured at one size."""
    shape, nbytes = cases.shape, cases.nbytes
    least = limit(shape, nbytes, place.host_of, place.rate) if place.rate else None
    native = next((t.values for t in timings if t.contender.algorithm == NATIVE and t.rounds), None)
    size_results = []
    for timing in timings:
        time = against = None
        if (measured := estimate(timing.values)).values:
            time = measured
            if native is not None and timing.contender.algorithm != NATIVE and timing.valid:
                compared = ratio(native, timing.values)
                against = compared if compared.values else None
        elif timing.rounds:
            timing.note = "a rank was late for every call"
        size_results.append(Result(shape, nbytes, place, timing, time, against, least, overlapped(timing.overlaps)))
    return size_results


class Writer:
    """Appends lines to a file and flushes each, so that an interrupted run keeps what it has."""

    def __init__(self, file: IO[str] | None) -> None:
        self.file = file

    def write(self, line: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self.file.flush()

    def run(self, environment: dict[str, Any], settings: dict[str, Any]) -> None:
        """Write the first line."""
        self.write({"kind": "run", "schema": SCHEMA, "environment": environment, "settings": settings})


@dataclass
class Lines:
    """The lines that a `mpicoll bench` launch wrote. failure: why some are missing and its last words, in one line."""

    environment: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    failure: str = ""


def read(file: Path) -> Lines:
    """Return the lines that are whole: of an interrupted run the last may not be."""
    lines = Lines()
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        try:
            line = json.loads(text)
        except ValueError:
            break
        if line["kind"] == "run":
            lines.environment = line["environment"]
        else:
            lines.rows.append(line)
    return lines
