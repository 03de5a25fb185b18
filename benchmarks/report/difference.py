"""Print the differences of two runs, for `mpicoll report OLD NEW --compare`."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpicoll.cli.sizes import format_size

from ..measure.stats import FASTER, NO_DIFFERENCE, SLOWER, TOO_FEW, geometric_mean
from ..results.text import STYLES, WRONG
from .compare import Change, Comparison, differing
from .model import Place, Row, Run
from .terminal import span, time

LEGEND = (
    "ratio: old time over new, above 1 is faster; the median over all pairs of rounds. [95 %]: of one row by itself.\n"
    "verdict: Mann–Whitney test, at most 5 % of all that are called faster or slower wrongly (Benjamini–Hochberg)."
)
SHOWN = 60  # characters of a fact


def show(console: Console, old: Run, new: Run, comparison: Comparison, tolerance: float) -> None:
    """Print environments, tables, what is in one run only, and one line on all."""
    if facts := differing(old.environment, new.environment):
        console.print(environments(facts))
    for (title, place), changes in _tables(comparison.changes).items():
        console.print(table(f"{title}: {place}", changes))
    if comparison.changes:
        console.print(LEGEND)
    for row in comparison.wrong:
        console.print(Text(f"wrong answer in {new.name}: {_words(row)}", WRONG))
    for run, rows in ((old, comparison.only_old), (new, comparison.only_new)):
        if rows:
            console.print(f"only in {run.name}: {_few(rows)}")
    console.print(Text(summary(comparison, tolerance), "bold red" if comparison.worse else "bold"))


def environments(facts: Sequence[tuple[str, object, object]]) -> Table:
    """Return what differs between two environments."""
    rich_table = Table(title="The environments differ", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("", "old", "new"):
        rich_table.add_column(name)
    for key, *both in facts:
        rich_table.add_row(key.replace("_", " "), *(_short(value) for value in both))
    return rich_table


def _short(value: object) -> str:
    words = "–" if value is None else str(value)
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}…"


def _tables(changes: Sequence[Change]) -> dict[tuple[str, str], list[Change]]:
    by_title: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        row = change.new
        by_title.setdefault((row.setting.title, Place(row.ranks, row.hosts).title), []).append(change)
    return by_title


def table(title: str, changes: Sequence[Change]) -> Table:
    """Return the rows by size, then contender."""
    rich_table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    rich_table.add_column("size", justify="right", no_wrap=True)
    rich_table.add_column("algorithm", max_width=34)
    for name in ("old µs", "new µs", "ratio", "[95 %]"):
        rich_table.add_column(name, justify="right", no_wrap=True)
    rich_table.add_column("verdict", no_wrap=True)
    for size in sorted({change.new.size for change in changes}):
        same = [change for change in changes if change.new.size == size]
        for place, change in enumerate(same):
            ratio = "" if change.ratio is None else f"{change.ratio:.3f}"
            rich_table.add_row(
                "" if place else format_size(size),
                change.new.contender,
                time(change.old.median_us),
                time(change.new.median_us),
                ratio,
                span(change.interval, lambda end: f"{end:.3f}"),
                Text(change.verdict, STYLES.get(change.verdict, "")),
                end_section=change is same[-1],
            )
    return rich_table


def summary(comparison: Comparison, tolerance: float) -> str:
    """Return one line: how many rows got faster and slower, and how all changed on average."""
    ratios = [change.ratio for change in comparison.changes if change.ratio]
    counts = ", ".join(f"{comparison.count(verdict)} {verdict}" for verdict in (FASTER, SLOWER, NO_DIFFERENCE, TOO_FEW))
    mean = f"; geometric mean of the ratios {geometric_mean(ratios):.3f}" if ratios else ""
    room = f"; changes up to {100 * tolerance:.3g} % are none" if tolerance else ""
    wrong = f"; {len(comparison.wrong)} wrong now" if comparison.wrong else ""
    untimed = f"; {comparison.untimed} not timed in both" if comparison.untimed else ""
    return f"{len(comparison.changes)} row{'s' * (len(comparison.changes) != 1)}: {counts}{mean}{wrong}{untimed}{room}"


def _words(row: Row) -> str:
    return f"{row.setting.title}, {Place(row.ranks, row.hosts).title}, {format_size(row.size)}, {row.contender}"


def _few(rows: Sequence[Row]) -> str:
    if len(rows) == 1:
        return _words(rows[0])
    return f"{len(rows)} rows, the first: {_words(rows[0])}"
