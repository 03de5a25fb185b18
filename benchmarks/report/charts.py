"""Curves over size, ranks or hosts: Altair charts on data that is named, so that a page can hold it once.

Charts have the looks of all contenders they are given, so that one chart serves every group of a page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import altair as alt

from .look import NEUTRAL, Look

ROWS = "rows"
SIZES = [4**k for k in range(17)]
COUNTS = [2**k for k in range(21)]
DASHES = {"native": [1, 0], "paired": [1, 0], "unpaired": [6, 3]}
BYTES = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KiB' : "
    "datum.value < 1073741824 ? datum.value / 1048576 + ' MiB' : datum.value / 1073741824 + ' GiB'"
)
TIME = (
    "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' s' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' ms' : format(datum.value, '~g') + ' µs'"
)
RATE = "replace(format(datum.value, '~s'), 'G', ' G') + 'B/s'"


@dataclass(frozen=True)
class Measure:
    """What stands on the y axis: a field of the records, its words, its scale."""

    field: str
    title: str
    labels: str
    log: bool = True
    line: float | None = None  # a value to draw a line at
    limit: str | None = None  # the field of the limit's line
    zero: bool = False


MEASURES = {
    "time": Measure("time", "time per call", TIME, limit="limit"),
    "ratio": Measure("ratio", "native's time over this one's", "format(datum.value, '~g') + '×'", line=1.0),
    "bandwidth": Measure("bandwidth", "bus bandwidth", "format(datum.value, '.3~s') + 'B/s'", limit="limit_bandwidth"),
    "overlap": Measure("overlap", "overlap with other work", "datum.value + ' %'", log=False, zero=True),
}
AXES: dict[str, tuple[str, list[int], str]] = {
    "size": ("message size", SIZES, BYTES),
    "ranks": ("ranks", COUNTS, "datum.value"),
    "hosts": ("hosts", COUNTS, "datum.value"),
}


def curves(measure: str, x: str, looks: Mapping[str, Look], legend: bool = False) -> alt.LayerChart:
    """One line per contender: a measure over size, ranks or hosts, with intervals and the limit.

    Its parameter `hidden` lists contenders not to draw.
    """
    what = MEASURES[measure]
    hidden = alt.param(name="hidden", value=[])
    hover = alt.selection_point(name="hover", on="pointerover", clear="pointerout", fields=["contender"], nearest=True)
    shown = alt.Chart(alt.NamedData(ROWS)).transform_filter(
        f"isValid(datum.{what.field}) && !datum.wrong && datum.{x} > 0 && indexof(hidden, datum.contender) < 0"
    )
    colour = _colour(looks, legend)
    base = shown.encode(x=_x(x), color=colour)
    band = (
        base.transform_filter(f"isValid(datum.{what.field}_low)")
        .mark_area(opacity=0.14, tooltip=False)
        .encode(y=_y(what, f"{what.field}_low"), y2=f"{what.field}_high")
    )
    faded = alt.when(hover).then(alt.value(1.0)).otherwise(alt.value(0.18))
    lines = base.mark_line(tooltip=False).encode(
        y=_y(what),
        opacity=faded,
        strokeDash=alt.StrokeDash("kind:N", legend=None).scale(domain=list(DASHES), range=list(DASHES.values())),
        strokeWidth=alt.StrokeWidth("kind:N", legend=None).scale(domain=list(DASHES), range=[3.5, 2, 2]),
    )
    points = (
        base.mark_point(filled=True, size=52, opacity=1)
        .encode(y=_y(what), opacity=faded, shape=_shape(looks, legend), tooltip=tooltip())
        .add_params(hover)
    )
    layers = [*_references(what, x), band, lines, points]
    return alt.layer(*layers).add_params(hidden).properties(width="container", height=380)


def _references(what: Measure, x: str) -> list[alt.Chart]:
    """The limit's line, with its name at its end, and the line of no difference."""
    layers = []
    if what.line is not None:
        layers.append(alt.Chart().mark_rule(color=NEUTRAL, strokeWidth=1.5).encode(y=alt.datum(what.line)))
    if what.limit is not None:
        least = (
            alt.Chart(alt.NamedData(ROWS))
            .transform_filter(f"isValid(datum.{what.limit}) && datum.{x} > 0")
            .transform_aggregate(limit=f"min({what.limit})", groupby=[x])
        )
        place = least.encode(x=_x(x), y=_y(what, "limit"))
        layers.append(place.mark_line(color=NEUTRAL, strokeDash=[2, 3], strokeWidth=2, tooltip=False))
        last = least.transform_window(place="rank()", sort=[alt.SortField(x, order="descending")])
        named = last.transform_filter("datum.place == 1").encode(x=_x(x), y=_y(what, "limit"))
        layers.append(named.mark_text(text="limit of the links", color=NEUTRAL, align="right", dy=12, fontStyle="italic"))
    return layers


def dots(measure: str, looks: Mapping[str, Look], legend: bool = False) -> alt.LayerChart:
    """One size: a dot with its interval per contender, for what has but one, such as a barrier."""
    what = MEASURES[measure]
    hidden = alt.param(name="hidden", value=[])
    shown = alt.Chart(alt.NamedData(ROWS)).transform_filter(
        f"isValid(datum.{what.field}) && !datum.wrong && indexof(hidden, datum.contender) < 0"
    )
    axis = alt.Axis(labelExpr=what.labels, title=what.title)
    y = alt.Y("contender:N", sort=alt.EncodingSortField(what.field, op="min"), title=None)
    base = shown.encode(y=y, color=_colour(looks, False))
    spans = base.mark_rule(strokeWidth=3, opacity=0.4).encode(x=alt.X(f"{what.field}_low:Q"), x2=f"{what.field}_high")
    marks = base.mark_point(filled=True, size=90, opacity=1).encode(
        x=alt.X(f"{what.field}:Q", axis=axis).scale(zero=True), shape=_shape(looks, False), tooltip=tooltip()
    )
    return alt.layer(spans, marks).add_params(hidden).properties(width="container", height=alt.Step(26))


def _x(x: str) -> alt.X:
    title, values, labels = AXES[x]
    axis = alt.Axis(values=values, labelExpr=labels, labelOverlap=True, grid=False)
    return alt.X(f"{x}:Q", title=title, axis=axis).scale(type="log", base=2, nice=False, padding=12)


def _y(what: Measure, field: str | None = None) -> alt.Y:
    axis = alt.Axis(labelExpr=what.labels, tickCount=6, labelOverlap=True)
    scale = alt.Scale(type="log" if what.log else "linear", zero=what.zero, nice=not what.log)
    return alt.Y(f"{field or what.field}:Q", title=what.title, axis=axis, scale=scale)


def _colour(looks: Mapping[str, Look], legend: bool) -> alt.Color:
    scale = alt.Scale(domain=list(looks), range=[look.colour for look in looks.values()])
    shown: Any = alt.Legend(title=None, symbolType="circle") if legend else None
    return alt.Color("contender:N", scale=scale, legend=shown)


def _shape(looks: Mapping[str, Look], legend: bool) -> alt.Shape:
    scale = alt.Scale(domain=list(looks), range=[look.mark for look in looks.values()])
    shown: Any = alt.Legend(title=None) if legend else None
    return alt.Shape("contender:N", scale=scale, legend=shown)


def tooltip() -> list[alt.Tooltip]:
    """What is told of a point."""
    return [
        alt.Tooltip("contender:N", title="algorithm"),
        alt.Tooltip("chose:N", title="chose"),
        alt.Tooltip("bytes:N", title="size"),
        alt.Tooltip("time:Q", title="µs", format=",.4~r"),
        alt.Tooltip("time_low:Q", title="µs from", format=",.4~r"),
        alt.Tooltip("time_high:Q", title="µs to", format=",.4~r"),
        alt.Tooltip("ratio:Q", title="times native's speed", format=".3~r"),
        alt.Tooltip("verdict:N", title="verdict"),
        alt.Tooltip("bandwidth:Q", title="bytes/s", format=".3~s"),
        alt.Tooltip("of_limit:Q", title="of the limit", format=".0%"),
        alt.Tooltip("overlap:Q", title="overlap %", format=".0f"),
        alt.Tooltip("kind:N", title="measured"),
        alt.Tooltip("rounds:Q", title="rounds"),
    ]
