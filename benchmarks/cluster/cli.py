"""The command: check its options, start the hosts, write the table and the page at the end."""

from __future__ import annotations

import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from mpicoll.cli import main
from mpicoll.cli.group import OneLineCommand, asking
from mpicoll.cli.names import split_names
from mpicoll.cli.sizes import parse_sizes

from ..hosts import LaunchError, enter, parse_rate
from ..results.environment import shortened
from .conduct import Conductor
from .installed import ENVIRONMENTS, FOUND, PEERS, find_peers, python_of
from .plan import STANDARD, Layout, Plan, check_algorithms, check_collectives, minutes, parse_layouts
from .summary import console, show

NAME = "mpicoll.benchmarks.cluster"
WRONG, INTERRUPTED = 1, 130
RESULTS = Path("build") / "results"
LAYOUTS = "8x1,6x1,4x2-block,4x2-cyclic"
QUICK = {"layouts": "8x1", "sizes": "64K,256K"}  # where the command line says nothing else


@click.command(cls=OneLineCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--layouts", default=LAYOUTS, help="HOSTSxRANKS, and -block or -cyclic where hosts have several ranks.")
@click.option("--rate", default="50Mbit", help="Of each host's link, in each direction.")
@click.option("--sizes", default="64K,1M,4M", help="Of the whole vector, of which a rank's share may be 1/p.")
@click.option("--collectives", default=",".join(STANDARD), help="Also gather and scatter.")
@click.option("--algorithms", default="", help="Beside native. [default: auto, and one for large vectors]")
@click.option("--mpi", "mpis", default="mpich", help="Of mpich, openmpi and intel; one or several.")
@click.option("--peers", default=FOUND, help=f"Of {', '.join(PEERS)}; {FOUND}: what is installed; none.")
@click.option("--torch-python", type=click.Path(path_type=Path), metavar="FILE", help="One that has torch, for Gloo.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="For each size. [default: by the wire]")
@click.option("--cycles", type=click.IntRange(min=1), default=1, help="How often all is launched; rounds are pooled.")
@click.option("--quick", is_flag=True, help="One layout and small sizes: " + " and ".join(QUICK.values()) + ".")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help=f"For results. [default: {RESULTS}/TIME]")
def cluster(quick: bool, out: Path | None, **options: Any) -> None:
    """Time collectives on several hosts with slow links, all on this machine: native, ours, peers, and the limit.

    Results come as a file of JSON lines per layout, a table, and a page. An interrupted run keeps what it has. Needs
    root.
    """
    with asking():
        if quick:
            options |= {name: value for name, value in QUICK.items() if by_default(name)}
        layouts = parse_layouts(options["layouts"])
        plan = made_plan(options)
        pythons = {mpi: python_of(mpi) for mpi in split_names(options["mpis"])}
        if not pythons:
            raise ValueError(f"--mpi names none; there is {', '.join(ENVIRONMENTS)}")
        peers, lines = find_peers(options["peers"], options["torch_python"])
        out = out or RESULTS / time.strftime("%Y%m%d-%H%M%S")
        enter()
    screen = console()
    takes = len(pythons) * minutes(plan, [layout.ranks for layout in layouts], peers)
    left_out = dict.fromkeys(line for layout in layouts for line in plan.left_out(layout.ranks))
    with_peers = (f"with {peer.about}" for peer in peers)
    for line in (*lines, *left_out, *with_peers, f"about {takes:.1f} min; results go to {out}"):
        screen.print(line)
    with directory(out):
        measured(screen, plan, layouts, pythons, peers, out, takes)


def by_default(name: str) -> bool:
    """Return whether the command line does not say it."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.DEFAULT


def made_plan(options: dict[str, Any]) -> Plan:
    """Return the plan, from the words of the command line. Raises ValueError."""
    sizes = parse_sizes(options["sizes"])
    if not sizes or not min(sizes):
        raise ValueError(f"--sizes is {options['sizes']!r}; a size must be above 0")
    parse_rate(options["rate"])
    if options["seconds"] is not None and not math.isfinite(options["seconds"]):
        raise ValueError(f"--seconds is {options['seconds']}; it must be a finite number above 0")
    collectives = check_collectives(split_names(options["collectives"]))
    named = check_algorithms(split_names(options["algorithms"]), collectives)
    return Plan(collectives, tuple(sizes), options["rate"], options["cycles"], named, options["seconds"])


@contextmanager
def directory(out: Path) -> Iterator[None]:
    """Make the directory where there is none; remove it again if it stays empty. Raises UsageError."""
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.UsageError(f"--out {out}: {error.strerror}") from None
    try:
        yield
    finally:
        with suppress(OSError):  # it is not empty
            for folder in new:
                folder.rmdir()


def measured(
    screen: Console, plan: Plan, layouts: Sequence[Layout], pythons: dict[str, Path], peers: Sequence[Any], out: Path,
    takes: float,
) -> None:
    """Measure, and show the results even if the run is interrupted."""
    interrupted, impossible = False, None
    with tempfile.TemporaryDirectory(dir=out, prefix=".launches-") as raw, bar(screen, takes * 60) as progress:
        conductor = Conductor(plan, peers, out, Path(raw), screen.print, progress, command())
        try:
            conductor.run(pythons, layouts)
        except LaunchError as error:
            impossible = error
        except KeyboardInterrupt:
            interrupted = True
    results = conductor.results
    files = [out / f"{result.name}.jsonl" for result in results if result.rows]
    show(screen, results, [plan.calls(result.layout.ranks) for result in results], f"{plan.rate} links")
    page(screen, files, out / "report.html")
    for failure in conductor.failures:
        click.echo(f"{NAME}: {failure}", err=True)
    if impossible:
        raise click.UsageError(str(impossible))
    if interrupted:
        click.echo(f"{NAME}: interrupted; what was measured is in {out}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if conductor.failures or not conductor.all_valid:
        raise click.exceptions.Exit(WRONG)


def command() -> str:
    """Return this command, so that it can be given again; of paths only the last part."""
    return shlex.join(["python", "-m", NAME, *map(shortened, sys.argv[1:])])


@contextmanager
def bar(screen: Console, seconds: float) -> Iterator[Any]:
    """Provide a function to call when so many of the seconds expected are over; on a terminal it shows a bar."""
    if not screen.is_terminal:
        yield lambda _: None
        return
    columns = (TextColumn("{task.percentage:>3.0f} %"), BarColumn(), TextColumn("about {task.remaining:.0f} s to go"))
    with Progress(*columns, console=screen, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=seconds)

        def step(done: float) -> None:
            progress.update(task, advance=done, refresh=True)

        yield step


def page(screen: Console, files: Sequence[Path], html: Path) -> None:
    """Write the report's page of these results, where there is such a command."""
    if not files or "report" not in main.commands:
        return
    words = [sys.executable, "-m", "mpicoll", "report", *map(str, files), "-o", str(html)]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    error = (done.stderr.strip().splitlines() or [""])[-1]
    screen.print(f"page: {html}" if done.returncode == 0 else f"no page: {error}")
