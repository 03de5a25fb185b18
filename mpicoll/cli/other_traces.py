"""`mpicoll timeline` of traces that other programs wrote."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .group import console, extra
from .sizes import format_size
from .tables import Table, for_terminal, format_time

if TYPE_CHECKING:
    from ..timeline.other_traces import OtherRun, OtherSum


def report_other(run: OtherRun, as_json: bool, output: str | None) -> None:
    """Print or write where the time in a run's collectives went, and what its traces do not tell."""
    from ..describe.picture import many
    from ..timeline import other_traces

    sums, ranks = other_traces.sums(run), other_traces.by_rank(run)
    if as_json:
        facts = {"tool": run.tool, "ranks": run.ranks, "size": run.size, "unknown": run.unknown}
        rows, of_ranks = ([vars(row) | {"exposed": row.exposed} for row in some] for some in (sums, ranks))
        click.echo(json.dumps({"facts": facts, "collectives": rows, "ranks": of_ranks}, indent=1))
        return
    headline, tables = _headline(run), (_of_collectives(sums, run.ranks), _of_ranks(ranks))
    if output is not None:
        with extra("--output"):
            from ..describe import timeline_page as page
        from .explore import write

        pictures = [page.draw_hidden(sums)]
        title = f"Where the time of {many(len(run.ranks), 'rank')} in collectives went"
        write(output, page.build(title, [headline, *run.unknown], tables, pictures), many(len(pictures), "picture"))
        return
    to = console()
    to.print(headline, markup=False, soft_wrap=True)
    for table in tables[: len(run.ranks)]:  # of one rank, the second says nothing new
        to.print(for_terminal(table))
    for sentence in run.unknown:
        to.print(sentence, markup=False, soft_wrap=True)


def _headline(run: OtherRun) -> str:
    from ..errors import spans

    of = f" of {run.size}" if run.size is not None else ""
    ranks = f"rank{'s' * (len(run.ranks) > 1)} {spans(run.ranks)}{of}"
    return f"{', '.join(run.paths)}: written by {run.tool}; {ranks}, {len(run.calls):,} calls"


def _of_collectives(sums: Sequence[OtherSum], ranks: Sequence[int]) -> Table:
    columns = ("collective", "bytes", "calls", "inside", "exposed", "hidden", "longest")
    rows = []
    for row in sums:
        size = "" if row.nbytes is None else format_size(row.nbytes)
        rows.append((row.name, size, _count(row.calls, ranks), *_times(row)))
    return Table("Collectives, means over ranks", columns, rows)


def _of_ranks(sums: Sequence[OtherSum]) -> Table:
    columns = ("rank", "calls", "inside", "exposed", "hidden", "longest")
    rows = [(row.name.removeprefix("rank "), f"{row.calls.total():,}", *_times(row)) for row in sums]
    return Table("Ranks", columns, rows)


def _times(row: OtherSum) -> list[str]:
    times = (row.inside, row.exposed, row.hidden, row.longest)
    return ["unknown" if time is None else format_time(time) for time in times]


def _count(calls: Counter[int | None], ranks: Sequence[int]) -> str:
    """Return the number of calls of a rank, or the least and the most.

    >>> _count(Counter({0: 2, 1: 2}), [0, 1]), _count(Counter({0: 2}), [0, 1])
    ('2', '0-2')
    """
    least, most = (choose(calls[rank] for rank in ranks) for choose in (min, max))
    return f"{least:,}" if least == most else f"{least:,}-{most:,}"
