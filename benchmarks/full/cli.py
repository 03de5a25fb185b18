"""The command `python -m mpicoll.benchmarks.full`: launches, and a table of their results."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
from rich.table import Table

from mpicoll.cli.group import OneLineCommand, asking
from mpicoll.cli.names import split_names
from mpicoll.cli.sizes import format_size

from .. import launch
from ..cases.contenders import AUTO, NATIVE
from ..command.console import console
from ..results.records import read
from .figures import FIGURES, Figure, Ratios, Reached, ratios, reached

NAME = "mpicoll.benchmarks.full"
WRONG, INTERRUPTED = 1, 130
RANKS = 2
PATIENCE = 60.0  # seconds that a launch may take beyond three times those it measures for
RESULTS = Path("build") / "results" / "full"


@click.command(cls=OneLineCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--figures", "text", default=",".join(FIGURES), help="Which parts.")
@click.option("--launches", type=click.IntRange(min=1), default=5, help="Of each part.")
@click.option("--show", "showing", is_flag=True, help="Measure nothing: what the files say that are there.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", default=RESULTS, help="For results, by MPI.")
def full(text: str, launches: int, showing: bool, out: Path) -> None:
    """Time collectives between two ranks of this machine beside MPI's own, and compare the ratios with targets.

    Results are a file of JSON lines per part and launch. They replace those of earlier runs in the same directory.
    """
    with asking():
        figures = chosen(text)
        mpi = launch.flavour()
    directory, failures = out / mpi, list[str]()
    try:
        if not showing:
            directory.mkdir(parents=True, exist_ok=True)
            failures = [failure for failure in measured(directory, figures, launches) if failure]
    except KeyboardInterrupt:
        click.echo(f"{NAME}: interrupted; what was measured is in {directory}", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    finally:
        console().print(table(mpi, [(figure, ratios_of(directory, figure)) for figure in figures]))
    for failure in failures:
        click.echo(f"{NAME}: {failure}", err=True)
    if failures:
        raise click.exceptions.Exit(WRONG)


def chosen(text: str) -> list[Figure]:
    """Return the figures of a list. Raises ValueError."""
    names = split_names(text)
    if not names or not set(names) <= set(FIGURES):
        raise ValueError(f"--figures is {text!r}; it takes a list of {', '.join(FIGURES)}")
    return [FIGURES[name] for name in names]


def measured(directory: Path, figures: Sequence[Figure], launches: int) -> Iterator[str]:
    """Yield one launch of each figure after the other, so that none has only the machine's best hour.

    Of one that failed, yield why.
    """
    for figure in figures:
        for file in files(directory, figure):
            file.unlink()
    for number in range(1, launches + 1):
        for figure in figures:
            click.echo(f"launch {number} of {launches}: {figure.name}, about {figure.seconds:g} s")
            yield run_figure(figure, directory / f"{figure.name}-{number}.jsonl")


def run_figure(figure: Figure, file: Path) -> str:
    """Launch a figure once; return its failure in one line, empty where it went well."""
    words = [*shlex.split(figure.words), "--algorithms", f"{NATIVE},{AUTO}", "--seconds", str(figure.seconds)]
    line = launch.command(RANKS, ["mpicoll", "bench", *words, "--json", str(file)])
    with tempfile.TemporaryFile() as output:
        status = launch.run_group(line, PATIENCE + 3 * figure.seconds, launch.environment(), output)
        output.seek(0)
        last = (output.read().decode(errors="replace").strip().splitlines() or ["it said nothing"])[-1]
    return "" if status == 0 else f"{file.stem}: {'time was up' if status is None else f'status {status}'}: {last}"


def files(directory: Path, figure: Figure) -> list[Path]:
    """Return a figure's files, by launch."""
    return sorted(directory.glob(f"{figure.name}-[0-9]*.jsonl"))


def ratios_of(directory: Path, figure: Figure) -> list[Ratios]:
    """Return what each launch said."""
    return [ratios(read(file).rows) for file in files(directory, figure)]


def table(mpi: str, all_of: Sequence[tuple[Figure, Sequence[Ratios]]]) -> Table:
    """Return the targets and the results."""
    rich_table = Table(title=f"native's time over mpicoll's, {RANKS} ranks of one machine, {mpi}", title_justify="left")
    for name in ("figure", "asked", "reached", "launches", ""):
        rich_table.add_column(name, justify="right" if name in ("asked", "reached") else "left")
    for figure, launches in all_of:
        lines = reached(figure, mpi, launches)
        if not lines:
            rich_table.add_row(figure.name, "", "", "none", "")
        for target in lines:
            spread = " ".join(f"{value:.2f}" for value in target.launches)
            label = f"{figure.name}, {target.what}"
            rich_table.add_row(label, f"{target.asked:g}", f"{target.value:.2f}", spread, verdict(target))
    return rich_table


def verdict(of: Reached) -> str:
    """Return "met", or "missed" and where."""
    where = ", ".join(f"{collective} {format_size(size)}" for collective, size in of.below)
    return "met" if of.is_met else f"missed{f': {where}' if where else ''}"
