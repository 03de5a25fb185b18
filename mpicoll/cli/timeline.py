"""`mpicoll timeline`: where the time of a recorded run went."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..garbage import collection_off
from .group import alone, asking, console, extra, refuse
from .other_traces import report_other
from .recorded import load, merged
from .sizes import format_size
from .tables import Table, for_terminal, format_time

if TYPE_CHECKING:
    from ..timeline.path import Link
    from ..timeline.read import Part, TimelineFile, Trace
    from ..timeline.threads import Progress
    from ..timeline.waits import Straggler, Sum


@click.command(short_help="Where the time of a recorded run went.")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--call", type=click.IntRange(1), help="The critical path of this call; else of the slowest.")
@click.option("--json", "as_json", is_flag=True, help="Print the same as JSON, with all rows.")
@click.option("-o", "--output", metavar="PAGE", help="Write the same as a page with pictures, with all rows.")
@click.option("--otf2", metavar="DIR", help="Write the timeline as an OTF2 archive, for Vampir and other tools.")
@collection_off()  # there may be millions of events, none of them garbage
def timeline(files: Sequence[str], call: int | None, as_json: bool, output: str | None, otf2: str | None) -> None:
    """Say where the time in collectives went, of a FILE that MPICOLL_TIMELINE or `mpicoll run --timeline` wrote.

    \b
        mpiexec -n 4 mpicoll run --timeline run.json train.py
        mpicoll timeline run.json
        mpicoll timeline run.json -o page.html
        mpicoll timeline first.json second.json
        mpicoll timeline rank0.json.gz rank1.json.gz

    By collective and size: the time inside, of which a rank waited for ranks that began later, and what was hidden
    behind the program's own work, as means over ranks; the fastest such call; and what the calls took beyond its pace.
    Then the ranks that others waited for, what the progress threads of each rank did and hid, and the critical path of
    the slowest call, or of one that --call names. FILE is in the Trace Event Format, which viewers such as Perfetto
    read. Several timelines of one run, as blocks of `with comm.timeline(FILE)` write them, are laid together on one
    clock.

    Of files that torch.profiler (export_chrome_trace) or another program wrote, one or more ranks in each: the time
    inside, how much of it no computing hid, and what such files do not tell.
    """
    alone()
    from ..timeline import other_traces, read

    forms = [name for name, has in (("--json", as_json), ("--output", output is not None), ("--otf2", otf2)) if has]
    refuse(f"{' and '.join(forms)} are {len(forms)} forms; give one of them" if len(forms) > 1 else "")
    with asking():
        traces = [load(file) for file in files]
        ours = [trace.path for trace in traces if read.is_timeline(trace)]
        if 0 < len(ours) < len(traces):
            other = next(trace.path for trace in traces if trace.path not in ours)
            raise ValueError(f"{ours[0]} is mpicoll's timeline, and {other} is of another program; pass them apart")
        if not ours:
            for option, is_given in (("--call", call is not None), ("--otf2", otf2 is not None)):
                if is_given:
                    raise ValueError(f"{option} needs a timeline of mpicoll's, and {files[0]} is of another program")
            run = other_traces.collect(traces)
    if otf2 is not None:
        _write_otf2(traces, otf2)
    elif ours:
        _report(traces, call, as_json, output)
    else:
        report_other(run, as_json, output)


def _write_otf2(traces: Sequence[Trace], folder: str) -> None:
    """Write the timeline of a run as an OTF2 archive."""
    with extra("--otf2", "pip install 'mpicoll[otf2]'"):
        from ..timeline import otf2_archive
    with asking():
        recorded = merged(traces)
        try:
            otf2_archive.write(recorded, folder)
        except OSError as error:
            raise click.ClickException(f"cannot write {folder}: {error.strerror}") from None
    click.echo(f"{folder}: an OTF2 archive of {len(recorded.calls):,} calls; open {folder}/traces.otf2")


def _report(traces: Sequence[Trace], call: int | None, as_json: bool, output: str | None) -> None:
    """Print or write where the time of a timeline of mpicoll's went."""
    from ..describe.picture import many
    from ..timeline import path, threads, waits

    with asking():
        recorded = merged(traces)
        slowest = waits.slowest(recorded, call)
    steps = recorded.steps.get(slowest[0].key, [])
    links = path.critical_path(slowest, steps)
    sums, late, hidden = waits.sums(recorded), waits.stragglers(recorded), threads.progress(recorded)
    if as_json:
        rows = [vars(total) | {"algorithms": sorted(total.algorithms), "beyond": total.beyond} for total in sums]
        content = {"facts": recorded.facts, "collectives": rows, "stragglers": [vars(rank) for rank in late]}
        content["threads"] = [vars(rank) for rank in hidden]
        click.echo(json.dumps(content | {"path": [link._asdict() for link in links]}, indent=1))
        return
    headline, described = _headline(recorded), _described(slowest, call is None)
    of_path = "its critical path:" if links else "its messages are MPI's own, so nothing is known of its path"
    tables = _of_collectives(sums), _of_stragglers(late), _of_threads(hidden), _of_path(links)
    if output is not None:
        with extra("--output"):
            from ..describe import timeline_page as page
        from .explore import write

        pictures = [page.draw_collectives(sums), page.draw_call(slowest, steps, links)]
        if late:
            pictures.insert(1, page.draw_stragglers(late))
        shown = [table for table in tables if table.rows]
        title = f"Where the time of {', '.join(Path(trace.path).name for trace in traces)} went"
        write(output, page.build(title, [headline, described], shown, pictures), many(len(pictures), "picture"))
        return
    to = console()
    to.print(headline, markup=False, soft_wrap=True)
    for table, words in zip(tables, ("", "", "", f"{described}; {of_path}")):
        if words:
            to.print(words, markup=False, soft_wrap=True)
        if table.rows:
            to.print(for_terminal(table))


def _of_collectives(sums: Sequence[Sum]) -> Table:
    columns = ("collective", "bytes", "calls", "inside", "late ranks", "hidden", "fastest", "beyond", "algorithms")
    rows = []
    for row in sums:
        times = map(format_time, (row.inside, row.late, row.hidden, row.fastest, row.beyond))
        names = ", ".join(sorted(row.algorithms))
        rows.append((row.name, format_size(row.nbytes), f"{row.calls:,}", *times, names))
    return Table("Collectives", columns, rows)


def _of_stragglers(late: Sequence[Straggler]) -> Table:
    columns = ("rank", "began last", "others waited", "longest", "in")
    rows = [(str(r.rank), f"{r.times:,}", format_time(r.waited), format_time(r.worst), r.where) for r in late]
    return Table("Late ranks", columns, rows)


def _of_threads(hidden: Sequence[Progress]) -> Table:
    columns = ("rank", "turns of threads", "working", "steps", "of all", "hidden", "by threads")
    rows = []
    for row in hidden:
        working, *times = map(format_time, (row.working, row.hidden, row.by_threads))
        rows.append((str(row.rank), f"{row.turns:,}", working, f"{row.steps:,}", f"{row.all_steps:,}", *times))
    return Table("Progress threads", columns, rows)


def _headline(recorded: TimelineFile) -> str:
    ends = [end for parts in recorded.calls.values() for part in parts for end in (part.began, part.ended)]
    facts, ranks = recorded.facts, {part.rank for parts in recorded.calls.values() for part in parts}
    words = [
        f"{recorded.path}: {len(ranks)} ranks, {len(recorded.calls):,} calls in {format_time(max(ends) - min(ends))}",
        f"clocks agree to {format_time(facts.get('clock_error_us', 0.0))}",
    ]
    for name, says in (
        ("dropped_calls", "earlier calls were too many to keep"),
        ("dropped_turns", "earlier turns of progress threads were too many to keep"),
        ("lost_messages", "messages were too many to keep"),
        ("unmatched_messages", "messages have no sender here"),
    ):
        if facts.get(name):
            words.append(f"{facts[name]:,} {says}")
    return "; ".join(words)


def _described(parts: list[Part], is_slowest: bool) -> str:
    first, facts = parts[0], parts[0].facts
    took = max(part.ended for part in parts) - min(part.began for part in parts)
    start = f", start {facts['start']}" if facts["start"] else ""
    name = f"{first.name} (call {facts['call']}{start}) of {format_size(facts['bytes'])} on {facts['communicator']}"
    return f"{'The slowest call' if is_slowest else 'The call'} is {name}, {facts['algorithm']}, {format_time(took)}"


def _of_path(links: list[Link]) -> Table:
    """Return a table of a critical path: a row sums up the links of a kind on a rank, the most time first."""
    sums: dict[tuple[int, str, int | None], list[float]] = defaultdict(list)
    for link in links:
        sums[link.rank, link.what, link.source].append(link.ended - link.began)
    rows = []
    for (rank, what, source), times in sorted(sums.items(), key=lambda item: -sum(item[1])):
        rows.append((str(rank), what, "" if source is None else str(source), str(len(times)), format_time(sum(times))))
    return Table("Critical path", ("rank", "what", "from rank", "times", "time"), rows)
