"""The page of `mpicoll timeline -o`: tables and pictures of where the time of a recorded run went, in one file.

A picture is SVG, drawn once for a light page and once for a dark one. The page has no script, and asks nothing of any
network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import altair as alt
import jinja2
import vl_convert
from markupsafe import Markup

from .._version import __version__
from ..timeline.other_traces import OtherSum
from ..timeline.path import Link
from ..timeline.read import Part
from ..timeline.waits import Straggler, Sum

BARS = 30  # of a picture at most
WIDTH, BAR = 820, 24  # pixels: of a picture, and of a line of it
LATE, PACE, BEYOND = "waits for late ranks", "pace of the fastest call", "beyond that pace"
EXPOSED, HIDDEN = "exposed", "hidden behind computing"
INSIDE, MESSAGES, WORK, PATH = "in the call", "waits for messages", "reduces or copies", "critical path"
COLOURS = {  # told apart with red-green blindness too
    LATE: "#b4b400",
    PACE: "#0a84c6",
    BEYOND: "#e45460",
    EXPOSED: "#e45460",
    HIDDEN: "#0a84c6",
    INSIDE: "#8a8f98",
    MESSAGES: "#00c0d8",
    WORK: "#f09c60",
    PATH: "#a80c90",
}
TEXT = {"light": "#1d2129", "dark": "#e8eaee"}  # its colour, by theme
Rows = list[dict[str, Any]]
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]


class Picture(NamedTuple):
    """A picture of the page: a title, and its SVG by theme."""

    title: str
    svg: dict[str, Markup]


def build(title: str, paragraphs: Sequence[str], tables: Sequence[Table], pictures: Sequence[Picture]) -> str:
    """Return the page as HTML. A table has a title, the names of its columns, and rows of text."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = (files(__package__) / "timeline_page.html.j2").read_text(encoding="utf-8")
    content = {"title": title, "paragraphs": paragraphs, "tables": tables, "pictures": pictures}
    return environment.from_string(template).render(**content, version=__version__)


def draw_collectives(sums: Sequence[Sum]) -> Picture:
    """Return a bar for each collective and size, with the parts of its calls' time, in means over ranks."""
    rows: Rows = []
    for total in sums[:BARS]:
        name = f"{total.name}, {total.nbytes:,} B"
        pace = total.inside - total.late - total.beyond
        for part, us in ((LATE, total.late), (PACE, pace), (BEYOND, total.beyond)):
            rows.append({"call": name, "part": part, "ms": max(0.0, us) / 1e3})
    bars = _chart(rows).mark_bar().encode(x=alt.X("ms:Q", title="ms in all calls"), y=_lines("call", rows))
    return _picture("Where the time went" + _cut(len(sums)), bars, rows, "call")


def draw_hidden(sums: Sequence[OtherSum]) -> Picture:
    """Return a bar for each collective and size of another program's trace: how much of its time computing hid."""
    rows: Rows = []
    for total in sums[:BARS]:
        name = total.name if total.nbytes is None else f"{total.name}, {total.nbytes:,} B"
        known = total.hidden is not None and total.exposed is not None
        parts = ((EXPOSED, total.exposed), (HIDDEN, total.hidden)) if known else ((INSIDE, total.inside),)
        rows += [{"call": name, "part": part, "ms": (us or 0.0) / 1e3} for part, us in parts]
    bars = _chart(rows).mark_bar().encode(x=alt.X("ms:Q", title="ms in all calls"), y=_lines("call", rows))
    return _picture("Where the time went" + _cut(len(sums)), bars, rows, "call")


def draw_stragglers(late: Sequence[Straggler]) -> Picture:
    """Return a bar for each rank: how long other ranks waited for it."""
    rows: Rows = [{"rank": f"rank {rank.rank}", "part": LATE, "ms": rank.waited / 1e3} for rank in late[:BARS]]
    bars = _chart(rows).mark_bar().encode(x=alt.X("ms:Q", title="ms that others waited"), y=_lines("rank", rows))
    return _picture("Ranks that others waited for" + _cut(len(late)), bars, rows, "rank")


def draw_call(parts: Sequence[Part], steps: Sequence[Part], path: Sequence[Link]) -> Picture:
    """Return a call in time: a line for each rank with what it did, and the critical path across ranks.

    Of many ranks, those of the critical path come first.
    """
    first = min(part.began for part in parts)
    others = sorted({part.rank for part in parts} - (on_path := {link.rank for link in path}))
    ranks = sorted([*sorted(on_path), *others][:BARS])
    rows: Rows = []
    for rank, part, *times in (*_spans(parts, steps), *((x.rank, PATH, x.began, x.ended) for x in path)):
        if rank in ranks:
            began, ended = ((time - first) / 1e3 for time in times)
            rows.append({"rank": f"rank {rank}", "part": part, "ms": began, "to": ended})
    size = {INSIDE: 0.75, MESSAGES: 0.5, WORK: 0.5, PATH: 0.2}
    bars = alt.layer(
        *(
            _chart([row for row in rows if row["part"] == part])
            .mark_bar(size=BAR * share)
            .encode(x=alt.X("ms:Q", title="ms from the beginning of the first rank"), x2="to:Q", y=_lines("rank", rows))
            for part, share in size.items()
        )
    )
    return _picture("The call in time" + _cut(len(on_path) + len(others)), bars, rows, "rank")


def _cut(number: int) -> str:
    """Return what a title says of lines that are left out."""
    return f", {BARS} of {number} lines" if number > BARS else ""


def _spans(parts: Sequence[Part], steps: Sequence[Part]) -> Iterator[tuple[int, str, float, float]]:
    for part in parts:
        yield part.rank, INSIDE, part.began, part.ended
    for step in steps:
        yield step.rank, MESSAGES if "receives" in step.facts else WORK, step.began, step.ended


def _chart(rows: Rows) -> alt.Chart:
    return alt.Chart(alt.InlineData(values=rows))


def _lines(field: str, rows: Rows) -> alt.Y:
    """Return the axis of a picture's lines, in the order of the rows."""
    return alt.Y(f"{field}:N", title=None, sort=list(dict.fromkeys(row[field] for row in rows)))


def _picture(title: str, bars: Any, rows: Rows, line: str) -> Picture:
    """Return a picture with a colour for each kind of part and a legend, in both themes."""
    kinds = [part for part in COLOURS if any(row["part"] == part for row in rows)]
    scale = alt.Scale(domain=kinds, range=[COLOURS[part] for part in kinds])
    legend = alt.Legend(title=None, orient="top", labelLimit=WIDTH)
    chart = bars.encode(color=alt.Color("part:N", scale=scale, legend=legend))
    chart = chart.properties(width=WIDTH, height=BAR * max(1, len({row[line] for row in rows})))
    spec = chart.to_dict()
    svg = {theme: Markup(vl_convert.vegalite_to_svg(spec | {"config": _config(text)})) for theme, text in TEXT.items()}
    return Picture(title, svg)


def _config(text: str) -> dict[str, Any]:
    """Return Vega-Lite's configuration of a theme."""
    words = {"labelColor": text, "titleColor": text, "labelFontSize": 12, "titleFontSize": 12, "labelLimit": 300}
    lines = {"domainColor": "#8a8f98", "tickColor": "#8a8f98", "gridColor": "#8a8f98", "gridOpacity": 0.25}
    return {
        "background": None,
        "font": "Arial, 'Liberation Sans', Helvetica, sans-serif",  # by whose widths labels are placed
        "padding": 8,
        "axis": words | lines | {"titleFontWeight": "normal"},
        "legend": words,
        "view": {"stroke": None},
    }
