"""Results as tables for people: one per setting and place, rows by size and contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from mpicoll.cli.sizes import format_size

from ..cases.contenders import NATIVE
from ..results.text import STYLES, WRONG, microseconds, rate
from . import points
from .groups import Group
from .model import MEDIAN_OF_LONGEST, Row

COLUMNS = ("time µs", "[95 %]", "ratio", "[95 %]", "verdict", "bus bandwidth", "of limit", "overlap", "")
DEAR = 1.25  # times the least: a price in red
LEGEND = (
    "time: {statistic}. ratio: native's time over this one's, paired by round; above 1 is faster.\n"
    "[95 %]: where the median lies with 95 % confidence. bus bandwidth: as nccl-tests defines it.\n"
    "of limit: the least time the links allow over this one's. unpaired: not in the same rounds as native."
)


def legend(groups: Sequence[Group]) -> str:
    """Return what the columns mean, for these rows."""
    kinds = dict.fromkeys(row.statistic for group in groups for row in group.rows if row.median_us is not None)
    others = "; ".join(kind for kind in kinds if kind != MEDIAN_OF_LONGEST)
    programs = sorted({row.algorithm for g in groups for row in g.rows if row.statistic != MEDIAN_OF_LONGEST})
    statistic = MEDIAN_OF_LONGEST if MEDIAN_OF_LONGEST in kinds else ""
    statistic += "; " * bool(statistic and others) + (f"of {', '.join(programs)}: {others}" if others else "")
    return LEGEND.format(statistic=statistic or "none")


def table(group: Group) -> Table:
    """Return a table of a group; the fastest right row of each size is bold, and empty columns are left out."""
    lines = [(row, _cells(row)) for row in group.rows]
    used = [at for at, name in enumerate(COLUMNS) if any(str(cells[at]) for _, cells in lines)]
    rich_table = Table(title=group.title, box=box.SIMPLE_HEAD, title_justify="left")
    rich_table.add_column("size", justify="right", no_wrap=True)
    rich_table.add_column("algorithm", max_width=34)
    for at in used:
        rich_table.add_column(COLUMNS[at], justify="left" if COLUMNS[at] in ("verdict", "") else "right", no_wrap=True)
    for size in group.sizes:
        rows = group.at(size)
        fastest = min((row.median_us for row in rows if row.right and row.median_us), default=None)
        for place, row in enumerate(rows):
            cells, best = _cells(row), row.right and row.median_us is not None and row.median_us == fastest
            first = "" if place else format_size(size)
            style = "bold" if best else ""
            rich_table.add_row(first, row.label, *(cells[at] for at in used), style=style, end_section=row is rows[-1])
    return rich_table


def fastest(groups: Sequence[Group]) -> Table:
    """Return the map of one setting: for every size and place the fastest algorithm, and the price of another choice.

    The price is the time of native or of fixed rules over the least.
    """
    every = {(group.place, cell["size"]): cell for group in groups for cell in points.cells(group)}
    against = next((cell["against"].partition(":")[0] for cell in every.values() if cell["against"]), "")
    runs = "" if against == NATIVE else f", and what {against} runs"
    beside = f"; the time of {against} over its{runs}" if against else ""
    title = f"{groups[0].setting.title}: the fastest{beside}"
    rich_table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    rich_table.add_column("size", justify="right", no_wrap=True)
    for group in groups:
        rich_table.add_column(group.place.title, overflow="fold")
    for size in sorted({size for group in groups for size in group.sizes}):
        tiles = [_tile(every.get((group.place, size))) for group in groups]
        rich_table.add_row(format_size(size), *tiles)
    return rich_table


def _tile(cell: points.Record | None) -> Text:
    """Return the fastest algorithm, the price, and the choice that has it, if it is another."""
    if cell is None:
        return Text()
    tile = Text(cell["fastest"])
    if cell["ratio"]:
        other = cell["against"].partition(": ")[2]
        same = other == cell["contender"]
        style = "red" if cell["ratio"] > DEAR else "dim"
        tile.append(f" {cell['ratio']:.2f}" + f" {other}" * (not same), style)
    return tile


def _cells(row: Row) -> list[str | Text]:
    if row.median_us is None and row.bandwidth is None:
        return ["–", *[""] * 7, Text(f"not timed: {row.note}" if row.note else "not timed", "dim")]
    return [
        time(row.median_us),
        span(row.interval_us, time),
        _ratio(row.ratio),
        span(row.ratio_interval, _ratio),
        Text(row.verdict or "", STYLES.get(row.verdict or "", "")),
        rate(row.bandwidth),
        "" if row.of_limit is None else f"{row.of_limit:.0%}",
        "" if row.overlap is None else f"{row.overlap.percent:.0f} %",
        _remarks(row),
    ]


def _remarks(row: Row) -> Text:
    marks = [("wrong answer", WRONG)] * (row.valid is False) + [("unpaired", "dim")] * (not row.paired)
    marks += [(f"{row.late} late", "dim")] * bool(row.late) + [(row.note, "dim")] * bool(row.note)
    return Text(", ").join(Text(*mark) for mark in marks)


def time(us: float | None) -> str:
    """Return the microseconds as `mpicoll bench` prints them; nothing for none."""
    return "" if us is None else microseconds(us / 1e6)


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def span(interval: tuple[float, float] | None, words: Callable[[float], str]) -> str:
    """Return an interval's two ends."""
    return "" if interval is None else "–".join(words(end) for end in interval)
