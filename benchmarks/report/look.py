"""How a contender looks: the same in every picture of a report; native is always grey, and auto blue.

Algorithms get a colour by name, so a variant with parameters or on another engine keeps its algorithm's. Those that
meet in one picture get different colours as long as there are enough, and marks tell apart what shares one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..contenders import AUTO, NATIVE
from .groups import Group

NEUTRAL, CHOICE = "#8a8f98", "#0a84c6"  # of native, and of auto
# Told apart with red-green blindness too, and on white as well as on near-black.
COLOURS = (
    "#e8862a",
    "#12a17f",
    "#d6457a",
    "#8867d8",
    "#c9a20a",
    "#56bde8",
    "#a8552f",
    "#6f9a2c",
    "#e58fc2",
    "#4a5fc4",
)
MARKS = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


class Look(NamedTuple):
    """A colour and the shape of a point, as Vega names them."""

    colour: str
    mark: str


def name_of(contender: str) -> str:
    """The algorithm alone.

    >>> name_of("knomial(k=4) @compiled"), name_of("ring")
    ('knomial', 'ring')
    """
    return contender.partition(" @")[0].partition("(")[0].strip()


def looks(groups: Sequence[Group]) -> dict[str, Look]:
    """Each contender's look; native and auto first, then as they come."""
    meetings = _meetings(groups)
    colours = _colours([name for name in meetings if name not in (NATIVE, AUTO)], meetings) | {AUTO: CHOICE}
    found: dict[str, Look] = {}
    marks: Counter[str] = Counter()
    for contender in contenders(row.contender for group in groups for row in group.rows):
        colour = colours.get(name_of(contender), NEUTRAL)
        found[contender] = Look(colour, MARKS[marks[colour] % len(MARKS)])
        marks[colour] += 1
    return found


def contenders(labels: Iterable[str]) -> list[str]:
    """Each label once: native, then auto, then the others as they come."""
    first = (NATIVE, AUTO)
    place = {label: first.index(name) if (name := name_of(label)) in first else 2 for label in labels}
    return sorted(place, key=place.__getitem__)


def _meetings(groups: Iterable[Group]) -> dict[str, set[str]]:
    """For each name those it is seen beside, the names that meet most first."""
    met: dict[str, set[str]] = defaultdict(set)
    for group in groups:
        names = {name_of(row.contender): None for row in group.rows}
        for name in names:
            met[name] |= set(names) - {name}
    return dict(sorted(met.items(), key=lambda item: -len(item[1])))


def _colours(names: Iterable[str], meetings: dict[str, set[str]]) -> dict[str, str]:
    """For each name the colour that fewest of those it meets have, and among these the one used least."""
    chosen: dict[str, str] = {}
    for name in names:
        near = Counter(chosen[other] for other in meetings[name] if other in chosen)
        used = Counter(chosen.values())
        chosen[name] = min(COLOURS, key=lambda colour: (near[colour], used[colour]))
    return chosen


def config(ink: str, soft: str, grid: str, background: str | None) -> dict[str, Any]:
    """Vega-Lite's configuration of a theme: text, labels and axes, grid lines, and what is behind it all."""
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
