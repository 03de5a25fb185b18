"""What `mpicoll report OLD NEW --compare` prints."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..command.sizes import format_size
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


def show(console: Console, old: Run, new: Run, found: Comparison, tolerance: float) -> None:
    """Environments, tables, what is in one run only, and one line on all."""
    if facts := differing(old.environment, new.environment):
        console.print(environments(facts))
    for (title, place), changes in _tables(found.changes).items():
        console.print(table(f"{title}: {place}", changes))
    if found.changes:
        console.print(LEGEND)
    for row in found.wrong:
        console.print(Text(f"wrong answer in {new.name}: {_words(row)}", WRONG))
    for run, rows in ((old, found.only_old), (new, found.only_new)):
        if rows:
            console.print(f"only in {run.name}: {_few(rows)}")
    console.print(Text(summary(found, tolerance), "bold red" if found.worse else "bold"))


def environments(facts: Sequence[tuple[str, object, object]]) -> Table:
    """Return what differs between two environments."""
    made = Table(title="The environments differ", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("", "old", "new"):
        made.add_column(name)
    for key, *both in facts:
        made.add_row(key.replace("_", " "), *(_short(value) for value in both))
    return made


def _short(value: object) -> str:
    words = "–" if value is None else str(value)
    return words if len(words) <= SHOWN else f"{words[:SHOWN]}…"


def _tables(changes: Sequence[Change]) -> dict[tuple[str, str], list[Change]]:
    found: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        row = change.new
        found.setdefault((row.setting.title, Place(row.ranks, row.hosts).title), []).append(change)
    return found


def table(title: str, changes: Sequence[Change]) -> Table:
    """Rows by size, then contender."""
    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    made.add_column("size", justify="right", no_wrap=True)
    made.add_column("algorithm", max_width=34)
    for name in ("old µs", "new µs", "ratio", "[95 %]"):
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("verdict", no_wrap=True)
    for size in sorted({change.new.size for change in changes}):
        same = [change for change in changes if change.new.size == size]
        for place, change in enumerate(same):
            ratio = "" if change.ratio is None else f"{change.ratio:.3f}"
            made.add_row(
                "" if place else format_size(size),
                change.new.contender,
                time(change.old.median_us),
                time(change.new.median_us),
                ratio,
                span(change.interval, lambda end: f"{end:.3f}"),
                Text(change.verdict, STYLES.get(change.verdict, "")),
                end_section=change is same[-1],
            )
    return made


def summary(found: Comparison, tolerance: float) -> str:
    """Return one line: how many rows got faster and slower, and how all changed on average."""
    ratios = [change.ratio for change in found.changes if change.ratio]
    counts = ", ".join(f"{found.count(verdict)} {verdict}" for verdict in (FASTER, SLOWER, NO_DIFFERENCE, TOO_FEW))
    mean = f"; geometric mean of the ratios {geometric_mean(ratios):.3f}" if ratios else ""
    room = f"; changes up to {100 * tolerance:.3g} % are none" if tolerance else ""
    wrong = f"; {len(found.wrong)} wrong now" if found.wrong else ""
    untimed = f"; {found.untimed} not timed in both" if found.untimed else ""
    return f"{len(found.changes)} row{'s' * (len(found.changes) != 1)}: {counts}{mean}{wrong}{untimed}{room}"


def _words(row: Row) -> str:
    return f"{row.setting.title}, {Place(row.ranks, row.hosts).title}, {format_size(row.size)}, {row.contender}"


def _few(rows: Sequence[Row]) -> str:
    if len(rows) == 1:
        return _words(rows[0])
    return f"{len(rows)} rows, the first: {_words(rows[0])}"
