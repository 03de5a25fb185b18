"""Give each contender a look, the same in every picture of a report; native is always grey, and auto blue.

Algorithms get a colour by name, so a variant with parameters or on another engine keeps its algorithm's. Those that
meet in one picture get different colours as long as there are enough, and marks distinguish entries that share one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..cases.contenders import AUTO, NATIVE
from .groups import Group

NEUTRAL, CHOICE = "#8a8f98", "#0a84c6"  # of native and fixed rules, and of auto
# Told apart with red-green blindness too, and neither too light for white nor too dark for near-black.
COLOURS = (
    "#a80c90",
    "#f09c60",
    "#248400",
    "#00c0d8",
    "#e45460",
    "#b4b400",
    "#0054d8",
    "#54c090",
    "#844860",
    "#606030",
)
MARKS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


class Look(NamedTuple):
    """A colour and the shape of a point, as Vega names them."""

    colour: str
    mark: str


def name_of(contender: str) -> str:
    """Return the algorithm alone.

    >>> name_of("knomial(k=4) @compiled"), name_of("ring")
    ('knomial', 'ring')
    """
    return contender.partition(" @")[0].partition("(")[0].strip()


def looks(groups: Sequence[Group]) -> dict[str, Look]:
    """Return each contender's look: native first, then auto, then the others as they come.

    What auto chose has one too.
    """
    pictures = [[label for row in group.rows for label in (row.contender, row.counts_as)] for group in groups]
    names = _meetings([{name_of(label) for label in picture} for picture in pictures])
    fixed = {row.algorithm for group in groups for row in group.rows if row.fixed}
    others = {name: met for name, met in names.items() if name not in (NATIVE, AUTO, *fixed)}
    colours = {NATIVE: NEUTRAL, AUTO: CHOICE, **dict.fromkeys(fixed, NEUTRAL)} | _dealt(others, COLOURS, {})
    met = _meetings([set(picture) for picture in pictures])
    every = contenders(label for picture in pictures for label in picture)
    own = {contender: colours[name_of(contender)] for contender in every}
    marks = _dealt({contender: met[contender] for contender in every}, MARKS, own)
    return {contender: Look(own[contender], marks[contender]) for contender in every}


def contenders(labels: Iterable[str]) -> list[str]:
    """Return each label once: native, then auto, then the others as they come."""
    first = (NATIVE, AUTO)
    place = {label: first.index(name) if (name := name_of(label)) in first else 2 for label in labels}
    return sorted(place, key=place.__getitem__)


def _meetings(pictures: Sequence[set[str]]) -> dict[str, set[str]]:
    """Return for each name the names shown beside it, those with the most neighbours first."""
    met: dict[str, set[str]] = defaultdict(set)
    for names in pictures:
        for name in names:
            met[name] |= names - {name}
    return dict(sorted(met.items(), key=lambda item: (-len(item[1]), item[0])))


def _dealt(met: Mapping[str, set[str]], choices: Sequence[str], beside: Mapping[str, str]) -> dict[str, str]:
    """Return for each name a choice that few neighbours have, least of all those alike in `beside`."""
    chosen: dict[str, str] = {}
    for name, others in met.items():
        known = [other for other in others if other in chosen]
        near, used = Counter(chosen[other] for other in known), Counter(chosen.values())
        alike = Counter(chosen[other] for other in known if beside and beside[other] == beside[name])
        chosen[name] = min(choices, key=lambda choice: (alike[choice], near[choice], used[choice]))
    return chosen


def config(ink: str, soft: str, grid: str, background: str | None) -> dict[str, Any]:
    """Return Vega-Lite's configuration of a theme: text, labels and axes, grid lines, and what is behind it all."""
    axis = {"labelColor": soft, "titleColor": soft, "domainColor": grid, "tickColor": grid, "gridColor": grid}
    sizes = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "titlePadding": 10}
    legend = {
        "labelColor": ink,
        "labelFontSize": 12,
        "symbolStrokeWidth": 0,
        "symbolOpacity": 1,
        "symbolSize": 90,
        "labelLimit": 300,
    }
    return {
        "background": background,
        "font": FONT,
        "axis": axis | sizes,
        "legend": legend,
        "text": {"color": ink},
        "title": {"color": ink, "anchor": "start", "fontWeight": 600, "fontSize": 14, "offset": 12},
        "view": {"stroke": None},
    }


FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
LIGHT = config("#1d2129", "#5b6270", "#e4e7ec", None)
DARK = config("#e8eaee", "#a3abb8", "#2c313a", None)
PAPER = config("#1d2129", "#5b6270", "#e4e7ec", "white")
