"""`mpicoll verify`: proofs for every number of ranks, in a table."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from ..errors import spans
from ..schedules.collectives import base_collective
from .group import FAILED, alone, asking, console
from .kept_proofs import kept_proofs
from .names import UpToRanks, canonical, check_order
from .proofs import Name, Proof, Proofs, large_tasks, run, tasks

LISTED = 8  # the most runs of numbers of ranks that few() lists in full


@click.command(cls=UpToRanks, short_help="Prove algorithms for every number of ranks.")
@click.argument("collective", required=False)
@click.argument("algorithm", required=False)
@click.option("--max-ranks", default=16, show_default=True, type=click.IntRange(min=1), help="Prove p = 1 to this.")
@click.option("--large", type=click.IntRange(min=2), help="Also prove logarithmic algorithms for this p.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes  [default: as many as there are CPUs]")
@click.option("--explore", "page", metavar="FILE", help="If any fails, write a page that plays the faults to FILE.")
@click.option("--cache/--no-cache", default=True, help="Use and keep proofs of earlier runs of these sources, or not.")
def verify(
    collective: str | None, algorithm: str | None, max_ranks: int, large: int | None, jobs: int | None,
    page: str | None, cache: bool,
) -> None:  # fmt: skip
    """Prove algorithms, all or those named, for every number of ranks: no deadlock, no hazard, each contribution once
    and in order, messages and memory as claimed. Exit status 0 only if all hold.

    Schedules are proved with every root up to 8 ranks, and with two roots beyond, since another root only renames the
    ranks. The lowered tables and their memory are proved up to 8 ranks and on 9, 12, 13, 16, 23 and 32.

    ALGORITHM is a name, proved with its default parameters and all others it declares, or "name(key=value)", proved
    with these.

    --large 1024 proves algorithms of at most 4 lg p steps, in which a rank sends and receives at most 8 lg p messages,
    on 1,024 ranks too, with their default parameters.

    Proofs that held are kept in $XDG_CACHE_HOME/mpicoll (~/.cache/mpicoll) until a source they depend on changes. With
    algorithms of your own (--load), the command proves all again.
    """
    alone()
    if collective is not None:
        check_order("mpicoll verify", collective, algorithm)
        collective = None if collective == "all" and algorithm is None else canonical(collective)
    with asking():
        names = named(collective, algorithm)
    results = {name: Proofs() for name in names}
    start = time.perf_counter()
    kept = kept_proofs(cache)
    beyond = large_tasks(names, large) if large is not None and large > max_ranks else []
    earlier_proofs, left = kept.split([*beyond, *tasks(names, max_ranks)])
    for proof in earlier_proofs:
        results[proof.algorithm].add(proof)
    proofs = run(left, jobs or _cpus())
    try:
        with _progress(len(left)) as advance:
            for proof in proofs:
                results[proof.algorithm].add(proof)
                kept.add(proof)
                advance(proof)
    finally:
        kept.save()
    if "(" in (algorithm or "") and len(results[names[0]].excluded) == max_ranks:
        why = results[names[0]].excluded[max_ranks]
        raise click.UsageError(f"{algorithm} serves no number of ranks up to {max_ranks}: {why}")
    _report(results, time.perf_counter() - start, sum(proof.schedules for proof in earlier_proofs))
    if page is not None:
        explore_faults(page, {name: list(proofs.failed) for name, proofs in results.items() if proofs.failed})
    if any(result.failed for result in results.values()):
        click.get_current_context().exit(FAILED)


def named(collective: str | None, algorithm: str | None) -> list[Name]:
    """Return the algorithms to prove: all, those of a collective, or one with its parameters as written."""
    from ..proofs.prove import selected
    from ..schedules.registry import parse_spec

    if collective is None or algorithm is None:
        return [(a.collective.name, a.name) for a in selected(collective and base_collective(collective))]
    parse_spec(collective, algorithm)
    return [(base_collective(collective), algorithm)]


def explore_faults(path: str, failed: dict[Name, list[int]]) -> None:
    """Write a page that plays the faults on the smallest numbers of ranks, or print that it cannot show them."""
    from ..describe.explore import faults, page
    from ..describe.picture import many
    from .explore import write

    if not failed:
        click.echo(f"{path}: not written, since all hold; `mpicoll explore` plays algorithms that hold")
        return
    shown = faults.schedules(failed)
    if not shown:
        click.echo(f"{path}: not written; what failed is in lowered tables or memory, which a page does not play")
        return
    write(path, page.build(shown, "What the verifier rejects", broken=True), many(len(shown), "fault"))


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[Proof], None]]:
    """Show a progress bar on a terminal; yield a function to call after each proof."""
    to = console(stderr=True)
    if not to.is_terminal:
        yield lambda proof: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=to, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda proof: progress.update(task, advance=1, description=f"{' '.join(proof.algorithm)} p={proof.p}")


def _report(results: dict[Name, Proofs], seconds: float, kept: int) -> None:
    to = console()
    to.print(_table(results))
    for name, proofs in results.items():
        if proofs.excluded:
            why = proofs.excluded[min(proofs.excluded)]
            message = f"{' '.join(name)} is not for p = {few(list(proofs.excluded))}: {why}"
            to.print(message, style="yellow", markup=False, soft_wrap=True)
    for proofs in results.values():
        for p in sorted(proofs.failed)[:3]:
            to.print(proofs.failed[p], style="red", markup=False, soft_wrap=True)
        if len(proofs.failed) > 3:
            to.print(f"… and on p = {spans(sorted(proofs.failed)[3:])}", style="red", soft_wrap=True)
    bad = sum(bool(proofs.failed) for proofs in results.values())
    count = sum(proofs.schedules for proofs in results.values())
    message = f"{bad} of {len(results)} fail" if bad else "all hold"
    total = f"{len(results)} algorithm{'s' * (len(results) != 1)}, {count} schedules proved in {seconds:.1f} s"
    total += f"; {kept} of them kept from earlier runs, which --no-cache proves again" if kept else ""
    to.print(f"{message}: {total}", style="bold red" if bad else "bold green")


def _table(results: dict[Name, Proofs]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("collective", "algorithm", "proved for p", "fails for p"):
        table.add_column(name)
    for name in ("schedules", "CPU s"):
        table.add_column(name, justify="right")
    for (collective, algorithm), proofs in results.items():
        fails = Text(few(list(proofs.failed)), "bold red")
        numbers = str(proofs.schedules), f"{proofs.seconds:.2f}"
        table.add_row(collective, Text(algorithm), few(proofs.proved) or "none", fails, *numbers)
    return table


def few(ranks: Sequence[int]) -> str:
    """Return the numbers of ranks in short form: runs as ranges, without those between the third and the last.

    >>> few([3, 1, 2]), few(range(2, 65, 2))
    ('1-3', '2, 4, 6, …, 64')
    """
    runs = spans(ranks).split(", ") if ranks else []
    return ", ".join(runs if len(runs) <= LISTED else [*runs[:3], "…", runs[-1]])
