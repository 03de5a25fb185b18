"""The page's charts as files, for papers: on white, with a legend and a title, PNG for screens or SVG for print."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from .charts import MEASURES, ROWS, curves, dots
from .groups import Group, gather
from .look import PAPER, Look, contenders, looks
from .maps import CELLS, STEP, best, price
from .model import Run
from .points import Record, cells, records
from .scaling import families

WIDTH = 640
SHARPNESS = 2.0  # pixels of a PNG for each unit of length
WRITERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "png": lambda spec: vl_convert.vegalite_to_png(spec, scale=SHARPNESS),
    "svg": lambda spec: vl_convert.vegalite_to_svg(spec).encode(),
}


def write(runs: Sequence[Run], directory: Path, kind: str) -> list[Path]:
    """Write every chart as DIRECTORY/NAME.png or .svg, making the directory; return the files. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, spec in charts(gather(runs)):
        path = directory / f"{name}.{kind}"
        path.write_bytes(WRITERS[kind](spec))
        written.append(path)
    return written


def charts(groups: Sequence[Group]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and complete Vega-Lite specification of every chart; names are made of lower-case words."""
    look = looks(groups)
    for group in groups:
        rows = records(group)
        for measure in _measures(rows):
            several = sum(size > 0 for size in group.sizes) > 1
            chart = curves(measure, "size", _of(look, rows), True) if several else dots(measure, _of(look, rows))
            yield _name(group.title, measure), _whole(chart, ROWS, rows, group.title)
    for setting in dict.fromkeys(group.setting for group in groups):
        same = [group for group in groups if group.setting == setting]
        if fastest := [cell for group in same for cell in cells(group)]:
            yield _name(setting.title, "best"), _whole(best(look), CELLS, fastest, setting.title)
            if priced := [cell for cell in fastest if cell.get("against")]:
                yield _name(setting.title, "price"), _whole(price(), CELLS, priced, setting.title)
        yield from _scaling(same, look)


def _scaling(same: Sequence[Group], look: Mapping[str, Look]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Time over hosts or ranks, at each size."""
    for family in families(same):
        rows = [record for group in family.groups for record in records(group)]
        for base in dict.fromkeys(_base(row) for row in sorted(rows, key=itemgetter("size"))):
            shown = [row for row in rows if _base(row) == base]
            if "time" in _measures(shown):
                title = f"{family.groups[0].setting.title}: {base}, {family.title}"
                chart = curves("time", family.x, _of(look, shown), True)
                yield _name(title, f"over {family.x}"), _whole(chart, ROWS, shown, title)


def _base(row: Record) -> str:
    """Return the constant of a curve: the size, or with scaling the size that others derive from."""
    return str(row.get("base") or row["bytes"])


def _measures(rows: Sequence[Record]) -> list[str]:
    return [measure for measure in MEASURES if any(measure in row for row in rows)]


def _of(look: Mapping[str, Look], rows: Sequence[Record]) -> dict[str, Look]:
    """Return the looks of those that these rows show."""
    return {name: look[name] for name in contenders(row["contender"] for row in rows if not row.get("wrong"))}


def _whole(chart: alt.LayerChart, name: str, rows: Sequence[Record], title: str) -> dict[str, Any]:
    spec: dict[str, Any] = chart.properties(title=title).to_dict()
    spec["width"] = {"step": STEP} if name == CELLS else WIDTH
    return spec | {"datasets": {name: list(rows)}, "config": PAPER, "padding": 16}


def _name(*words: str) -> str:
    """Return a file's name.

    >>> _name("allreduce, blocking, float64: 8 ranks on 2 hosts", "time")
    'allreduce-blocking-float64-8-ranks-on-2-hosts-time'
    """
    return "-".join(re.findall(r"\w+", " ".join(words).lower()))
