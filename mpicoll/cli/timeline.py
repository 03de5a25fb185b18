"""`mpicoll timeline`: where the time of a recorded run went."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click

from .group import alone, asking, console
from .sizes import format_size

if TYPE_CHECKING:
    from ..timeline.path import Link
    from ..timeline.read import Part, TimelineFile

ROWS = 12  # of a table


@click.command(short_help="Where the time of a recorded run went.")
@click.argument("file")
@click.option("--call", type=click.IntRange(1), help="The critical path of this call; else of the slowest.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON, with all rows.")
def timeline(file: str, call: int | None, as_json: bool) -> None:
    """Say where the time in collectives went, of a FILE that MPICOLL_TIMELINE or `mpicoll run --timeline` wrote.

    \b
        mpiexec -n 4 mpicoll run --timeline run.json train.py
        mpicoll timeline run.json

    By collective and size: the time inside, of which a rank waited for ranks that began later, and what was hidden
    behind the program's own work, as means over ranks; the fastest such call; and what the calls took beyond its pace.
    Then the ranks that others waited for, and the critical path of the slowest call, or of one that --call names. FILE
    is in the Trace Event Format, which viewers such as Perfetto read.
    """
    alone()
    from ..timeline import path, read, waits

    with asking():
        try:
            recorded = read.read(file)
        except OSError as error:
            raise ValueError(f"{file} cannot be read: {error.strerror}") from None
        slowest = waits.slowest(recorded, call)
    links = path.critical_path(slowest, recorded.steps.get(slowest[0].key, []))
    sums, late = waits.sums(recorded), waits.stragglers(recorded)
    if as_json:
        rows = [vars(total) | {"algorithms": sorted(total.algorithms), "beyond": total.beyond} for total in sums]
        content = {"facts": recorded.facts, "collectives": rows, "stragglers": [vars(rank) for rank in late]}
        click.echo(json.dumps(content | {"path": [link._asdict() for link in links]}, indent=1))
        return
    to = console()
    to.print(_headline(recorded), markup=False, soft_wrap=True)
    total = _table("collective", "bytes", "calls", "inside", "late ranks", "hidden", "fastest", "beyond", "algorithms")
    for row in sums[:ROWS]:
        times = map(_time, (row.inside, row.late, row.hidden, row.fastest, row.beyond))
        size, names = format_size(row.nbytes), ", ".join(sorted(row.algorithms))
        total.add_row(row.name, size, f"{row.calls:,}", *times, names)
    to.print(total)
    if late:
        table = _table("rank", "began last", "others waited", "longest", "in")
        for rank in late[:ROWS]:
            table.add_row(str(rank.rank), f"{rank.times:,}", _time(rank.waited), _time(rank.worst), rank.where)
        to.print(table)
    to.print(_described(slowest, links, call is None), markup=False, soft_wrap=True)
    if links:
        to.print(_of_path(links))


def _headline(recorded: TimelineFile) -> str:
    ends = [end for parts in recorded.calls.values() for part in parts for end in (part.began, part.ended)]
    facts, ranks = recorded.facts, {part.rank for parts in recorded.calls.values() for part in parts}
    words = [
        f"{recorded.path}: {len(ranks)} ranks, {len(recorded.calls):,} calls in {_time(max(ends) - min(ends))}",
        f"clocks agree to {_time(facts.get('clock_error_us', 0.0))}",
    ]
    for name, says in (
        ("dropped_calls", "earlier calls were too many to keep"),
        ("lost_messages", "messages were too many to keep"),
        ("unmatched_messages", "messages have no sender here"),
    ):
        if facts.get(name):
            words.append(f"{facts[name]:,} {says}")
    return "; ".join(words)


def _described(parts: list[Part], links: list[Link], is_slowest: bool) -> str:
    first, facts = parts[0], parts[0].facts
    took = max(part.ended for part in parts) - min(part.began for part in parts)
    start = f", start {facts['start']}" if facts["start"] else ""
    name = f"{first.name} (call {facts['call']}{start}) of {format_size(facts['bytes'])} on {facts['communicator']}"
    path = "its critical path:" if links else "its messages are MPI's own, so nothing is known of its path"
    return f"{'The slowest call' if is_slowest else 'The call'} is {name}, {facts['algorithm']}, {_time(took)}; {path}"


def _of_path(links: list[Link]) -> Any:
    """Return a table of a critical path: a row sums up the links of a kind on a rank, the most time first."""
    table = _table("rank", "what", "from rank", "times", "time")
    rows: dict[tuple[int, str, int | None], list[float]] = defaultdict(list)
    for link in links:
        rows[link.rank, link.what, link.source].append(link.ended - link.began)
    for (rank, what, source), times in sorted(rows.items(), key=lambda item: -sum(item[1]))[:ROWS]:
        table.add_row(str(rank), what, "" if source is None else str(source), str(len(times)), _time(sum(times)))
    return table


def _table(*names: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in names:
        words = name in ("collective", "algorithms", "what", "in")
        table.add_column(name, justify="left" if words else "right", no_wrap=name != "algorithms")
    return table


def _time(microseconds: float) -> str:
    """Return a time with three digits.

    >>> [_time(t) for t in (0.0, 12.34, 5678.0, 4.2e6)]
    ['0 µs', '12.3 µs', '5.68 ms', '4.2 s']
    """
    microseconds = round(microseconds, 3)
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if microseconds >= size:
            return f"{microseconds / size:.3g} {unit}"
    return f"{microseconds:.3g} µs"
