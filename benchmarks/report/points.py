"""Records to draw pictures from: plain records of rows, and the fastest contenders at each size on each place."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mpicoll.cli.sizes import format_size

from .groups import Group
from .model import Row

Record = dict[str, Any]
LAST = 1 << 62  # the size by which entries without data are sorted
NARROW = 16  # characters of a line in a cell of a map


def records(group: Group) -> list[Record]:
    """Return a group's rows, without what they do not have."""
    return [_record(row, group) for row in group.rows]


def _record(row: Row, group: Group) -> Record:
    low, high = row.interval_us or (None, None)
    ratio_low, ratio_high = row.ratio_interval or (None, None)
    overlap_low, overlap_high = (row.overlap and row.overlap.interval) or (None, None)
    record = {
        "size": row.size,
        "bytes": format_size(row.size),
        "base": row.base or None,
        "ranks": group.place.ranks,
        "hosts": group.place.hosts,
        "contender": row.contender,
        "chose": row.chose,
        "kind": kind(row),
        "time": row.median_us,
        "time_low": low,
        "time_high": high,
        "ratio": row.ratio,
        "ratio_low": ratio_low,
        "ratio_high": ratio_high,
        "verdict": row.verdict,
        "bandwidth": row.bandwidth,
        "overlap": row.overlap and row.overlap.percent,
        "overlap_low": overlap_low,
        "overlap_high": overlap_high,
        "limit": row.limit_us,
        "limit_bandwidth": row.busbw / row.of_limit if row.busbw and row.of_limit else None,
        "of_limit": row.of_limit,
        "rounds": row.rounds,
        "late": row.late or None,
        "note": row.note or None,
        "wrong": True if row.valid is False else None,
    }
    return {key: value for key, value in record.items() if value is not None}


def kind(row: Row) -> str:
    """Return how a row's line is drawn.

    Native has a way of its own, others whole, and broken what was not measured in its rounds.
    """
    return "native" if row.is_reference else "paired" if row.paired else "unpaired"


def cells(group: Group) -> list[Record]:
    """Return per size who is fastest of all, and of ours, measured in the same rounds and right.

    Rows by which the same ran, such as auto's and that of the algorithm it chose, count once, by the faster. next: the
    fastest by which another ran, if any. margin: its time over the fastest's. tie: their intervals overlap. ratio:
    the time of native, or of fixed rules, over our fastest one's. against: the fixed rules, and what they choose.
    """
    size_cells = []
    for size in group.sizes:
        rows = [row for row in group.at(size) if row.right and row.paired]
        ranked = sorted(rows, key=lambda row: row.median_us or 0.0)
        if len(ranked) > 1 and not all(row.is_reference for row in ranked):
            size_cells.append(_cell(group, size, ranked))
    return size_cells


def _cell(group: Group, size: int, ranked: Sequence[Row]) -> Record:
    best = ranked[0]
    second = next((row for row in ranked if row.ran_as != best.ran_as), ranked[1])
    ours = next(row for row in ranked if not row.is_reference)
    reference = next((row for row in ranked if row.is_reference), None)
    ratio = ours.ratio or (
        reference.median_us / ours.median_us if reference and reference.median_us and ours.median_us else None
    )
    margin = (second.median_us or 0.0) / (best.median_us or 1.0)
    tie = bool(best.interval_us and second.interval_us and best.interval_us[1] >= second.interval_us[0])
    against = reference.label if reference else ""
    other = reference.contender if reference else ""
    beside = f"{margin:.2f}× the next" if best.is_reference or ratio is None else f"{ratio:.2f}× {other}"
    cell = {
        "size": size,
        "bytes": format_size(size),
        "order": size or LAST,
        "place": group.place.title,
        "contender": best.counts_as,
        "fastest": best.label,
        "time": best.median_us,
        "next": second.label,
        "margin": round(margin, 4),
        "tie": tie,
        "words": "\n".join([*_lines(f"≈ {best.label}" if tie else best.label), beside]),
        "ours": ours.label,
        "ours_words": "\n".join([f"{ratio:.2f}×" if ratio else "", *_lines(ours.label)]),
        "ratio": ratio,
        "verdict": ours.verdict or "",
    }
    return cell | {"against": against, "price_words": _price_words(ratio, reference)} if group.is_modelled else cell


def _price_words(ratio: float | None, reference: Row | None) -> str:
    return "\n".join([f"{ratio:.2f}×" if ratio else "", *_lines(reference.label if reference else "")])


def _lines(name: str) -> list[str]:
    """Return a name on lines short enough for a cell.

    >>> _lines("auto: recursive_multiplying(k=5) @compiled")
    ['auto: recursive_', 'multiplying(k=5)', '@compiled']
    """
    lines = [""]
    for part in re.split(r"(?<=[_=])|(?=[( ])", name):
        if lines[-1] and len(lines[-1] + part) > NARROW:
            lines.append("")
        lines[-1] += part if lines[-1] else part.lstrip()
    return lines
