"""Results of separate launches, pooled, and a peer's put beside native's.

What depends on a case alone (its limit, its bytes) is taken from native's row of the same case, so that one program
knows how to work it out. Rounds of our own launches are paired with native's of the same round; a peer's are not
paired with anything, and its ratio is the Hodges–Lehmann estimate of two independent samples, as in
`mpicoll report --compare`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ..contenders import NATIVE
from ..report.compare import change_of
from ..stats import Ratio, estimate, ratio
from .peer import Call, Measured

Row = dict[str, Any]  # a result line, schema 2


def call_of(row: Row) -> Call:
    """What was timed."""
    return Call(row["collective"], row["size"])


def natives(rows: Iterable[Row]) -> dict[Call, Row]:
    """Native's row of every call that it was timed for."""
    return {call_of(row): row for row in rows if row["algorithm"] == NATIVE and row["median_us"]}


def timed(row: Row, samples: Sequence[float]) -> Row:
    """The row with other samples, in microseconds, and all that follows from them but the ratio."""
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
    """The row with a ratio to native."""
    return row | {
        "ratio": found and round(found.median, 4),
        "ratio_interval": found and found.spread and [round(x, 4) for x in found.spread],
        "verdict": found and found.verdict,
    }


def samples(row: Row) -> list[float]:
    """Microseconds, one a round; of very many rounds, their percentiles."""
    return row["samples_us"] if "samples_us" in row else row["sketch_us"]


def pooled(launches: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of several launches of `mpicoll bench`, each contender's rounds of a case put together."""
    if len(launches) == 1:
        return list(launches[0])
    found: dict[Any, list[Row]] = defaultdict(list)
    for row in (row for rows in launches for row in rows):
        found[call_of(row), row["algorithm"], row["engine"]].append(row)
    merged = [_merged(same) for same in found.values()]
    native = natives(merged)
    return [_paired(row, native.get(call_of(row))) for row in merged]


def _merged(same: Sequence[Row]) -> Row:
    run = [row for row in same if row["median_us"] is not None]
    if len(run) < 2:
        return (run or same)[0]
    together = timed(run[0], [value for row in run for value in samples(row)])
    together.pop("sketch_us", None)
    return together | {"valid": all(row["valid"] for row in run), "late": sum(row["late"] for row in run)}


def _paired(row: Row, native: Row | None) -> Row:
    if native is None or row is native or row["median_us"] is None:
        return row
    before, after = samples(native), samples(row)
    return against(row, ratio(before, after) if len(before) == len(after) else None)


def beside(native: Row, name: str, measured: Measured) -> Row:
    """A peer's row, from native's of the same call."""
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
    estimated, interval, _ = change_of(samples(native), measured.samples_us)
    low, high = interval or (None, None)
    found = None if estimated is None else Ratio(estimated, low, high, len(measured.samples_us))
    return against(timed(row, measured.samples_us), found)


def together(found: Sequence[Measured]) -> Measured:
    """A peer's launches of one call, put together."""
    ran = [one for one in found if one.samples_us]
    if not ran:
        return found[-1]
    verdicts = {one.valid for one in ran}
    valid = False if False in verdicts else None if None in verdicts else True
    return Measured([value for one in ran for value in one.samples_us], valid)
