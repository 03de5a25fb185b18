"""The command `mpicoll train`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click
import numpy as np

from mpicoll.cli.group import asking
from mpicoll.errors import UnknownAlgorithm

from ..command.checks import positive
from ..command.console import console
from ..command.progress import bar
from ..command.results_file import opened, write_lines
from ..command.spmd import WRONG, SpmdCommand, world
from .data import load, text
from .patterns import PATTERNS, Work

TOLERANCES = {"float64": 1e-9, "float32": 1e-3}  # relative, between losses; sums differ in their order only


def chosen(names: str) -> list[str]:
    """Return the patterns that are named. Raises UnknownAlgorithm."""
    patterns = list(PATTERNS) if names == "all" else [name.strip() for name in names.split(",")]
    for name in patterns:
        if name not in PATTERNS:
            raise UnknownAlgorithm("training pattern", name, PATTERNS)
    return patterns


class Train(SpmdCommand):
    """Takes names in one word."""

    extra = "several patterns are one word, with commas: data_parallel,zero3"


@click.command(cls=Train, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.argument("patterns", default="all")
@click.option("--steps", default=6, help="Steps of each pattern.")
@click.option("--dtype", type=click.Choice(list(TOLERANCES)), default="float64", help="Of the models.")
@click.option("--width", default=512, help="Of the digits' network.")
@click.option("--batch", default=96, help="Images in a batch, of all ranks together.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="DIR", help="Draw memory and time of a step.")
@click.option("--explore", "page", metavar="FILE", help="Play the last step of each pattern on one HTML page.")
@click.option("--time", "timing", is_flag=True, help="Time one pattern, native beside mpicoll, instead.")
@click.option("--seconds", default=10.0, help="With --time: to time for.")
@click.option("--list", "listing", is_flag=True, help="Say what the patterns are.")
def train(
    patterns: str, steps: int, dtype: str, width: int, batch: int, path: Path | None, svg: Path | None,
    page: str | None, timing: bool, seconds: float, listing: bool,
) -> None:  # fmt: skip
    """Train by each of PATTERNS, names with commas between them, beside one rank: start it under mpiexec."""
    out = console()
    if listing:
        for name, pattern in PATTERNS.items():
            out.print(f"{name:<20}{pattern.about}", highlight=False)
        return
    with asking():
        names = chosen(patterns)
        for option, value in (("--steps", steps), ("--width", width), ("--batch", batch), ("--seconds", seconds)):
            positive(option, value)
        if timing and len(names) > 1:
            raise ValueError(f"--time takes one pattern, and {len(names)} are named")
        check_files(timing, svg, page)
    work = Work(load(), text(), np.dtype(dtype), width, batch=batch)
    with ExitStack() as stack:
        one_thread(stack)
        if timing:
            time_steps(names[0], work, seconds, path)
            return
        if wrong := compare(names, work, steps, path, svg, page, TOLERANCES[dtype]):
            for complaint in wrong if world().rank == 0 else ():
                click.echo(f"FAILED: {complaint}", err=True)
            raise click.exceptions.Exit(WRONG)


def check_files(timing: bool, svg: Path | None, page: str | None) -> None:
    """Raise ValueError for pictures with --time, or for a page in a directory that does not exist."""
    for option, file in (("--svg", svg), ("--explore", page)):
        if timing and file:
            raise ValueError(f"{option} goes without --time")
    if page and not Path(page).parent.is_dir():
        raise ValueError(f"--explore is {page}; its directory does not exist")


def one_thread(stack: ExitStack) -> None:
    """Limit linear algebra to one thread per rank, since ranks share the cores already."""
    from threadpoolctl import threadpool_limits

    stack.enter_context(threadpool_limits(1))


def compare(
    names: list[str], work: Work, steps: int, path: Path | None, svg: Path | None, page: str | None, tolerance: float
) -> list[str]:
    """Train by each pattern, print the table, and return what does not hold."""
    from mpi4py import MPI

    from mpicoll.cli.explore import write
    from mpicoll.describe.explore.training import Training, build
    from mpicoll.describe.picture import many
    from mpicoll.training import report

    from . import pictures
    from .compare import Alone, outnumber_cores, result, whole_bytes

    comm = MPI.Intracomm(MPI.COMM_WORLD)
    crowded = outnumber_cores(comm)
    alone, rows, trainings = Alone(comm, work, steps), [], list[Training]()
    with bar(console(), len(names), comm.rank == 0) as progress:
        for name in names:
            progress.begin(name)
            row, measured = result(comm, name, work, alone, steps, record=bool(page))
            rows.append(row)
            if page and (recorded := comm.gather(measured.step)) is not None:
                trainings.append(Training(name, PATTERNS[name].about, recorded, whole_bytes(name, work, steps)))
            if svg:
                histories = comm.gather((measured.events, measured.history))
                if histories is not None:
                    pictures.write(svg, name, histories)
            progress.end()
    if comm.rank == 0:
        console().print(report(rows))
        if crowded:
            console().print("hidden is not measured: more ranks than cores, so no core is free to overlap anything")
        if path:
            write_lines(path, rows)
        if page:
            write(page, build(trainings), many(len(trainings), "pattern"))
    return [
        f"{row.pattern}: the losses differ from one rank's by {row.difference:.1e}, more than {tolerance:.0e}"
        for row in rows
        if not row.difference <= tolerance
    ]


def time_steps(name: str, work: Work, seconds: float, path: Path | None) -> None:
    """Time steps with either's collectives in turn."""
    from mpi4py import MPI

    from .timing import keep, timed

    plain = MPI.Intracomm(MPI.COMM_WORLD.Dup())
    if path is None:  # `make bench` is to leave nothing behind
        timed(plain, name, work, seconds)
        return
    with opened(str(path), plain, "train") as file:
        keep(file, timed(plain, name, work, seconds), plain, name, work, {"seconds": seconds, "batch": work.batch})
