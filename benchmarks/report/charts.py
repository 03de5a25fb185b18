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
FIT = alt.AutoSizeParams(type="fit-x", contains="padding")  # what is as high as it has lines
POWERS = [2**k for k in range(37)]
DASHES = {"native": [1, 0], "paired": [1, 0], "unpaired": [6, 3]}
BYTES = (
    "datum.value < 1024 ? datum.value + ' B' : datum.value < 1048576 ? datum.value / 1024 + ' KiB' : "
    "datum.value < 1073741824 ? datum.value / 1048576 + ' MiB' : datum.value / 1073741824 + ' GiB'"
)
TIME = (
    "datum.value >= 1e6 ? format(datum.value / 1e6, '~g') + ' s' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, '~g') + ' ms' : format(datum.value, '~g') + ' µs'"
)
TENS = [10.0**k for k in range(-3, 14)]


def _steps(*steps: float) -> list[float]:
    return sorted(step * ten for ten in TENS for step in steps)


# Of a logarithmic axis: powers of ten where it has many, and the more between them, the fewer it has.
REACH = "domain('y')[1] / domain('y')[0]"
TICKS = f"{REACH} > 500 ? {TENS} : {REACH} > 20 ? {_steps(1, 2, 5)} : {_steps(1, 1.5, 2, 3, 4, 5, 7)}"
NEAR = 0.1  # of the limit: further away its line would only squeeze the others


@dataclass(frozen=True)
class Measure:
    """A quantity on the y axis: its field in the records, its title and labels, its scale."""

    field: str
    title: str
    labels: str
    log: bool = True
    line: float | None = None  # a value to draw a line at
    limit: str | None = None  # the field of the limit's line
    zero: bool = True  # on an axis that is not logarithmic


MEASURES = {
    "time": Measure("time", "time per call", TIME, limit="limit"),
    "ratio": Measure("ratio", "speed against native", "format(datum.value, '~g') + '×'", line=1.0),
    "bandwidth": Measure("bandwidth", "bandwidth", "format(datum.value, '.3~s') + 'B/s'", limit="limit_bandwidth"),
    "overlap": Measure("overlap", "overlap with other work", "datum.value + ' %'", log=False),
}
AXES: dict[str, tuple[str, str]] = {
    "size": ("message size", BYTES),
    "ranks": ("ranks", "datum.value"),
    "hosts": ("hosts", "datum.value"),
}


def curves(measure: str, x: str, looks: Mapping[str, Look], legend: bool = False) -> alt.LayerChart:
    """Return one line per contender: a measure over size, ranks or hosts, with intervals and the limit.

    Its parameter `hidden` lists contenders not to draw.
    """
    what = MEASURES[measure]
    hidden = alt.param(name="hidden", value=[])
    hover = alt.selection_point(name="hover", on="pointerover", clear="pointerout", fields=["contender"])
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
        strokeWidth=alt.when("datum.kind == 'native'").then(alt.value(3.5)).otherwise(alt.value(2)),
    )
    points = (
        base.mark_point(filled=True, size=52, opacity=1)
        .encode(y=_y(what), opacity=faded, shape=_shape(looks, legend), tooltip=tooltip())
        .add_params(hover)
    )
    layers = [*_references(what, x), band, lines, points]
    chart: alt.LayerChart = alt.layer(*layers).add_params(hidden).properties(width="container", height=380)
    return chart


def _references(what: Measure, x: str) -> list[alt.Chart]:
    """Return the limit's line, with its name at its end, and the line of no difference."""
    layers = []
    if what.line is not None:
        even = (
            alt.Chart(alt.NamedData(ROWS)).transform_aggregate(rows="count()").transform_calculate(even=str(what.line))
        )
        layers.append(even.mark_rule(color=NEUTRAL, strokeWidth=2.5, tooltip=False).encode(y=_y(what, "even")))
    if what.limit is not None:
        least = (
            alt.Chart(alt.NamedData(ROWS))
            .transform_filter(f"isValid(datum.{what.limit}) && datum.{x} > 0")
            .transform_aggregate(limit=f"min({what.limit})", near="max(of_limit)", groupby=[x])
            .transform_filter(f"datum.near > {NEAR}")
        )
        place = least.encode(x=_x(x), y=_y(what, "limit"))
        layers.append(place.mark_line(color=NEUTRAL, strokeDash=[2, 3], strokeWidth=2, tooltip=False))
        ordered = least.transform_window(place="rank()", sort=[alt.SortField(x)])
        first = ordered.transform_filter("datum.place == 1").encode(x=_x(x), y=_y(what, "limit"))
        words = {"text": "limit of the links", "align": "left", "dx": 8, "dy": 10 if what.field == "time" else -8}
        layers.append(first.mark_text(color=NEUTRAL, fontStyle="italic", **words))
    return layers


def dots(measure: str, looks: Mapping[str, Look], legend: bool = False) -> alt.LayerChart:
    """Return a chart of one size: a dot with its interval per contender, for what has but one, such as a barrier."""
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
    layers = alt.layer(spans, marks).add_params(hidden)
    chart: alt.LayerChart = layers.properties(width="container", autosize=FIT, height=alt.Step(26))
    return chart


def _x(x: str) -> alt.X:
    title, labels = AXES[x]
    axis = alt.Axis(values=POWERS, labelExpr=labels, labelOverlap="parity", ticks=False, labelPadding=8, grid=False)
    return alt.X(f"{x}:Q", title=title, axis=axis).scale(type="log", base=2, nice=False, padding=12)


def _y(what: Measure, field: str | None = None) -> alt.Y:
    values: Any = alt.ExprRef(TICKS) if what.log else alt.Undefined
    axis = alt.Axis(
        labelExpr=what.labels, values=values, labelOverlap="greedy", ticks=False, domain=False, labelPadding=8
    )
    scale = alt.Scale(type="log", nice=False, padding=12) if what.log else alt.Scale(zero=what.zero)
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
    """Return the fields that a point's tooltip shows."""
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
