"""Map the best algorithm: one collective over places, and all collectives on one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import altair as alt

from .charts import FIT
from .look import Look

CELLS = "cells"
SLOWER, SAME, FASTER = "#d9772b", "#9aa0a8", "#0a84c6"
STEP, HEIGHT, LOW, LINE = 110, 60, 56, 13
MOST = 6  # lines in a tile
TWO_LINES = "[slice(datum.label, 0, indexof(datum.label, ', ')), slice(datum.label, indexof(datum.label, ', ') + 2)]"
_TOOLTIP = [
    alt.Tooltip("bytes:N", title="size"),
    alt.Tooltip("place:N", title="on"),
    alt.Tooltip("fastest:N", title="fastest"),
    alt.Tooltip("time:Q", title="µs", format=",.4~r"),
    alt.Tooltip("next:N", title="next"),
    alt.Tooltip("margin:Q", title="next's time over it", format=".2f"),
    alt.Tooltip("ours:N", title="our fastest"),
    alt.Tooltip("against:N", title="against"),
    alt.Tooltip("ratio:Q", title="times the speed of native or of fixed rules", format=".2f"),
    alt.Tooltip("verdict:N", title="verdict"),
]


def best(looks: Mapping[str, Look]) -> alt.LayerChart:
    """Chart the fastest of all over size and place; the stronger its colour, the further the next one is behind."""
    scale = alt.Scale(domain=list(looks), range=[look.colour for look in looks.values()])
    base = alt.Chart(alt.NamedData(CELLS)).encode(x=_size(), y=_down("place"), tooltip=_TOOLTIP)
    tiles = base.mark_rect(cornerRadius=5).encode(
        color=alt.Color("contender:N", scale=scale, legend=None),
        opacity=alt.Opacity("margin:Q", legend=None).scale(domain=[1, 1.6], range=[0.16, 0.62], clamp=True),
    )
    layers = alt.layer(tiles, *_words(base, "words"))
    chart: alt.LayerChart = layers.properties(width="container", autosize=FIT, height=alt.Step(HEIGHT))
    return chart


def glance() -> alt.LayerChart:
    """Return how our fastest stands against native, by collective and size: slower is orange, faster blue."""
    return _ratios("setting", "ours_words", lines=2)


def price() -> alt.LayerChart:
    """Return the time of fixed rules, or of native, over the least, by size and place: the price of their choice."""
    return _ratios("place", "price_words")


def _ratios(down: str, words: str, lines: int = 1) -> alt.LayerChart:
    colour = alt.Color("ratio:Q", legend=None).scale(
        type="log", domain=[0.4, 1, 2.5], range=[SLOWER, SAME, FASTER], clamp=True, interpolate="rgb"
    )
    base = (
        alt.Chart(alt.NamedData(CELLS))
        .transform_filter("isValid(datum.ratio)")
        .transform_calculate(distance="abs(log(datum.ratio))")
        .encode(x=_size(), y=_down(down, lines=lines), tooltip=_TOOLTIP)
    )
    strength = alt.Opacity("distance:Q", legend=None).scale(domain=[0, 0.9], range=[0.1, 0.62], clamp=True)
    tiles = base.mark_rect(cornerRadius=5).encode(color=colour, opacity=strength)
    layers = alt.layer(tiles, *_words(base, words))
    chart: alt.LayerChart = layers.properties(width="container", autosize=FIT, height=alt.Step(LOW))
    return chart


def _words(base: alt.Chart, field: str) -> list[alt.Chart]:
    """Return the words of each tile, in its middle: a text of several lines is placed by its first."""
    style: dict[str, Any] = {"lineBreak": "\n", "fontSize": 11, "lineHeight": LINE, "baseline": "middle"}
    return [
        base.transform_filter(f"length(split(datum.{field}, '\\n')) == {lines}")
        .mark_text(dy=-LINE * (lines - 1) / 2, **style)
        .encode(text=f"{field}:N")
        for lines in range(2, MOST + 1)
    ]


def _size() -> alt.X:
    axis = alt.Axis(orient="top", labelAngle=0, domain=False, ticks=False, labelPadding=6)
    return alt.X("bytes:N", sort=alt.EncodingSortField("order"), title=None, axis=axis).scale(paddingInner=0.04)


def _down(field: str, lines: int = 1) -> alt.Y:
    axis = alt.Axis(domain=False, ticks=False, labelPadding=8, labelLimit=260, labelLineHeight=LINE)
    if lines == 2:
        axis.labelExpr, axis.labelOffset = TWO_LINES, -LINE / 2
    return alt.Y(f"{field}:N", sort=None, title=None, axis=axis).scale(paddingInner=0.06)
