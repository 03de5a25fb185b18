"""Results of separate launches, pooled, and a peer's put beside native's.

What depends on a case alone (its limit, its bytes) is taken from native's row of the same case, so that one program
knows how to work it out. Rounds of our own launches are paired with native's of the same round; a peer's are not
paired with anything, and its ratio is the Hodges–Lehmann estimate of two independent samples and its verdict the
Mann–Whitney test's, as in `mpicoll report --compare`. So are those of rows that have percentiles in place of rounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..cases.contenders import NATIVE
from ..measure.stats import Ratio, estimate, ratio
from ..report.compare import change_of, verdict_of
from ..results.records import Row
from .peer import Call, Measured


def call_of(row: Row) -> Call:
    """Return what was timed."""
    return Call(row["collective"], row["size"])


def natives(rows: Iterable[Row]) -> dict[Call, Row]:
    """Return native's row of every call that it was timed for."""
    return {call_of(row): row for row in rows if row["algorithm"] == NATIVE and row["median_us"]}


def timed(row: Row, samples: Sequence[float]) -> Row:
    """Return the row with other samples, in microseconds, and all that follows from them but the ratio."""
    estimated = estimate(samples)
    before = row["median_us"]
    slower = estimated.median / before  # bandwidths were worked out for this one's time
    return row | {
        "median_us": round(estimated.median, 3),
        "interval_us": estimated.spread and [round(x, 3) for x in estimated.spread],
        "rounds": estimated.values,
        **{name: row[name] and round(row[name] / slower) for name in ("algbw", "busbw")},
        "of_limit": row["limit_us"] and round(row["limit_us"] / estimated.median, 4),
        "samples_us": list(samples),
    }


def against(row: Row, native_ratio: Ratio | None) -> Row:
    """Return the row with a ratio to native."""
    return row | {
        "ratio": native_ratio and round(native_ratio.median, 4),
        "ratio_interval": native_ratio and native_ratio.spread and [round(x, 4) for x in native_ratio.spread],
        "verdict": native_ratio and native_ratio.verdict,
    }


def independent(row: Row, native: Row) -> Row:
    """Return the row with a ratio to native, of whose rounds none belongs to one of this row's."""
    after = samples(row)
    change, interval, p = change_of(samples(native), after)
    low, high = interval or (None, None)
    estimated = None if change is None else Ratio(change, low, high, len(after))
    return against(row, estimated) | {"verdict": estimated and verdict_of(change, p)}


def samples(row: Row) -> list[float]:
    """Microseconds, one a round; of very many rounds, their percentiles."""
    values: list[float] = row["sketch_us"] if sketched(row) else row["samples_us"]
    return values


def sketched(row: Row) -> bool:
    """Return whether it has percentiles in place of its rounds."""
    return "sketch_us" in row


def pooled(launches: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of several launches of `mpicoll bench`, each contender's rounds of a case put together."""
    if len(launches) == 1:
        return list(launches[0])
    by_contender: dict[Any, list[Row]] = defaultdict(list)
    for row in (row for rows in launches for row in rows):
        by_contender[call_of(row), row["algorithm"], row["engine"]].append(row)
    merged = [_merged(same) for same in by_contender.values()]
    native = natives(merged)
    return [_compared(row, native.get(call_of(row))) for row in merged]


def _merged(same: Sequence[Row]) -> Row:
    run = [row for row in same if row["median_us"] is not None]
    if len(run) < 2:
        return (run or same)[0]
    together = _sketch(run) if any(map(sketched, run)) else timed(run[0], [x for row in run for x in row["samples_us"]])
    return together | {
        "rounds": sum(row["rounds"] for row in run),
        "valid": all(row["valid"] for row in run),
        "late": sum(row["late"] for row in run),
    }


def _sketch(run: Sequence[Row]) -> Row:
    """Return percentiles over all launches, weighted equally; any launch may have percentiles alone."""
    percentiles = [np.percentile(samples(row), range(101)) for row in run]
    sketch = timed(run[0], [round(x, 3) for x in np.percentile(np.concatenate(percentiles), range(101)).tolist()])
    sketch["sketch_us"] = sketch.pop("samples_us")
    return sketch


def _compared(row: Row, native: Row | None) -> Row:
    if native is None or row is native or row["median_us"] is None:
        return row
    if sketched(row) or sketched(native):
        return independent(row, native)
    before, after = samples(native), samples(row)
    return against(row, ratio(before, after) if len(before) == len(after) else None)


def beside(native: Row, name: str, measured: Measured) -> Row:
    """Return a peer's row, from native's of the same call."""
    row = against(native, None) | {
        "algorithm": name,
        "engine": None,
        "ran": {},
        "paired": False,
        "valid": measured.valid,
        "note": measured.note,
        "late": 0,
        "overlap": None,
    }
    row.pop("sketch_us", None)
    if not measured.samples_us:
        untimed = ("median_us", "interval_us", "algbw", "busbw", "of_limit")
        return row | dict.fromkeys(untimed) | {"rounds": 0, "samples_us": []}
    return independent(timed(row, measured.samples_us), native)


def together(launches: Sequence[Measured]) -> Measured:
    """Return a peer's launches of one call, put together."""
    ran = [launch for launch in launches if launch.samples_us]
    if not ran:
        return launches[-1]
    verdicts = {launch.valid for launch in ran}
    valid = False if False in verdicts else None if None in verdicts else True
    return Measured([value for launch in ran for value in launch.samples_us], valid)
