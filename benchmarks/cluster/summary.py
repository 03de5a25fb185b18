"""The table at the end: how far native, ours and the peers are from the limit, and how they compare."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mpicoll.cli.sizes import format_size

from ..cases.contenders import AUTO, NATIVE
from ..command.console import WIDTH
from ..peers import Call
from ..peers.rows import call_of
from ..results.records import Row
from ..results.text import STYLES, WRONG
from .conduct import Found

ABSENT = "–"
LEGEND = (
    "× limit: median time over the least time that the links need; the bucket of a link lets a burst of 64 KiB pass\n"
    "at once, so that small sizes can come out below 1. ratio: native's time over that of auto, of the best of ours\n"
    "or of the peer, above 1 is faster; [95 %]: where auto's lies with 95 % confidence. Ours are paired with native\n"
    "by round; peers are separate programs in launches of their own, so theirs is the ratio of two independent samples."
)


class Line(NamedTuple):
    """The table's line for one call on one layout. best: the fastest right row of mpicoll."""

    where: str
    call: Call
    n: int
    native: Row | None
    auto: Row | None
    best: Row | None
    peers: dict[str, Row]


def lines(result: Found, sizes: dict[Call, int]) -> list[Line]:
    """Return a line for every call that was planned, and that anything is known of. sizes: its n."""
    call_lines = []
    for call, n in sizes.items():
        rows = [row for row in result.rows if call_of(row) == call]
        ours = [row for row in rows if row["paired"] and row["algorithm"] != NATIVE]
        right = [row for row in ours if row["valid"] and row["median_us"]]
        call_lines.append(
            Line(
                result.name,
                call,
                n,
                next((row for row in rows if row["algorithm"] == NATIVE), None),
                next((row for row in ours if row["algorithm"] == AUTO), None),
                min(right, key=lambda row: row["median_us"], default=None),
                {row["algorithm"]: row for row in rows if not row["paired"]},
            )
        )
    return [line for line in call_lines if line.native or line.auto or line.best]


def table(all_lines: Sequence[Line], title: str) -> Table:
    """Return the rows by layout, collective and size."""
    peers = list(dict.fromkeys(name for line in all_lines for name in line.peers))
    rich_table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("MPI, hosts × ranks", "collective"):
        rich_table.add_column(name, no_wrap=True)
    for name in ("n", "limit ms", "native\n× limit", "auto\n× limit", "ratio", "[95 %]"):
        rich_table.add_column(name, justify="right", no_wrap=True)
    rich_table.add_column("verdict", no_wrap=True)
    rich_table.add_column("best of ours\n× limit, ratio", no_wrap=True)
    for name in peers:
        rich_table.add_column(f"{name}, unpaired\n× limit, ratio", no_wrap=True)
    for place, line in enumerate(all_lines):
        last = all_lines[place + 1 : place + 2]
        ends = not last or (last[0].where, last[0].call.collective) != (line.where, line.call.collective)
        rich_table.add_row(*_cells(line), *(_peer(line.peers.get(name)) for name in peers), end_section=ends)
    return rich_table


def _cells(line: Line) -> list[str | Text]:
    limit = line.native and line.native["limit_us"]
    return [
        line.where,
        line.call.collective,
        format_size(line.n),
        f"{limit / 1000:.1f}" if limit else ABSENT,
        _over(line.native),
        _over(line.auto),
        *_ratio(line.auto),
        _best(line),
    ]


def _best(line: Line) -> str | Text:
    """Return who it is and how it does, which of auto is said already."""
    if line.best is None:
        return ABSENT
    name = line.best["algorithm"]
    return name if line.best is line.auto else Text.assemble(f"{name} ", _compared(line.best))


def _over(row: Row | None) -> str | Text:
    """Time over the limit, or why there is none."""
    if row is None or not row["median_us"]:
        return ABSENT
    if row["valid"] is False:
        return Text("WRONG", WRONG)
    return f"{1 / row['of_limit']:.2f}" if row["of_limit"] else f"{row['median_us'] / 1000:.1f} ms"


def _ratio(row: Row | None) -> list[str | Text]:
    if row is None or row["ratio"] is None:
        return [ABSENT, "", ""]
    interval = row["ratio_interval"]
    span = f"{interval[0]:.2f}–{interval[1]:.2f}" if interval else "?"
    return [f"{row['ratio']:.2f}", span, _verdict(row)]


def _verdict(row: Row) -> Text:
    return Text(row["verdict"] or "", STYLES.get(row["verdict"], ""))


def _peer(row: Row | None) -> str | Text:
    if row is None or row["note"]:
        return row["note"] if row else ABSENT
    return _compared(row)


def _compared(row: Row) -> Text:
    """Time over the limit, ratio and verdict."""
    return Text.assemble(_over(row), f", {_ratio(row)[0]} ", _verdict(row))


def console() -> Console:
    """Return a console on standard output, wide enough for the table if that is no terminal."""
    screen = Console(markup=False, highlight=False)
    return screen if screen.is_terminal else Console(markup=False, highlight=False, width=WIDTH)


def show(screen: Console, results: Iterable[Found], sizes: Iterable[dict[Call, int]], title: str) -> None:
    """Print the table and what its columns mean, if there is anything in it."""
    all_lines = [line for result, calls in zip(results, sizes) for line in lines(result, calls)]
    if all_lines:
        screen.print(table(all_lines, title))
        screen.print(LEGEND)
