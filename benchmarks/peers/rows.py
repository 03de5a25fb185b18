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
    """Native's row of every call that it was timed for."""
    return {call_of(row): row for row in rows if row["algorithm"] == NATIVE and row["median_us"]}


def timed(row: Row, samples: Sequence[float]) -> Row:
    """Return the row with other samples, in microseconds, and all that follows from them but the ratio."""
    found = estimate(samples)
    before = row["median_us"]
    slower = found.median / before  # bandwidths were worked out for this one's time
    return row | {
        "median_us": round(found.median, 3),
        "interval_us": found.spread and [round(x, 3) for x in found.spread],
        "rounds": found.values,
        **{name: row[name] and round(row[name] / slower) for name in ("algbw", "busbw")},
        "of_limit": row["limit_us"] and round(row["limit_us"] / found.median, 4),
        "samples_us": list(samples),
    }


def against(row: Row, found: Ratio | None) -> Row:
    """Return the row with a ratio to native."""
    return row | {
        "ratio": found and round(found.median, 4),
        "ratio_interval": found and found.spread and [round(x, 4) for x in found.spread],
        "verdict": found and found.verdict,
    }


def independent(row: Row, native: Row) -> Row:
    """Return the row with a ratio to native, of whose rounds none belongs to one of this row's."""
    after = samples(row)
    found, interval, p = change_of(samples(native), after)
    low, high = interval or (None, None)
    estimated = None if found is None else Ratio(found, low, high, len(after))
    return against(row, estimated) | {"verdict": estimated and verdict_of(found, p)}


def samples(row: Row) -> list[float]:
    """Microseconds, one a round; of very many rounds, their percentiles."""
    found: list[float] = row["sketch_us"] if sketched(row) else row["samples_us"]
    return found


def sketched(row: Row) -> bool:
    """Return whether it has percentiles in place of its rounds."""
    return "sketch_us" in row


def pooled(launches: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of several launches of `mpicoll bench`, each contender's rounds of a case put together."""
    if len(launches) == 1:
        return list(launches[0])
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in (row for rows in launches for row in rows):
        found[call_of(row), row["algorithm"], row["engine"]].append(row)
    merged = [_merged(same) for same in found.values()]
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
    """Of launches of which any has percentiles alone: those of all launches, of which each counts as much."""
    each = [np.percentile(samples(row), range(101)) for row in run]
    made = timed(run[0], [round(x, 3) for x in np.percentile(np.concatenate(each), range(101)).tolist()])
    made["sketch_us"] = made.pop("samples_us")
    return made


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


def together(found: Sequence[Measured]) -> Measured:
    """Return a peer's launches of one call, put together."""
    ran = [one for one in found if one.samples_us]
    if not ran:
        return found[-1]
    verdicts = {one.valid for one in ran}
    valid = False if False in verdicts else None if None in verdicts else True
    return Measured([value for one in ran for value in one.samples_us], valid)
