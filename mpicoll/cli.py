"""The command line, `mpicoll` or `python -m mpicoll`.

Errors are one line: exit status 2 for what was asked wrongly, 1 for what failed. MPI is imported only by the
commands that need it. Under mpiexec, commands that look at schedules run on one rank and the others leave.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context
from typing import Any, NamedTuple

import click

from . import __version__
from .errors import MpicollError, UnknownAlgorithm, VerifyError, spans

FAILED, USAGE = 1, 2
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


class _Later(click.Command):
    """A command that is imported when it is used, so that a part that does not load spoils no other."""

    def __init__(self, name: str, place: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.place = place

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the real command, which is then what runs."""
        module, _, attribute = self.place.partition(":")
        try:
            command = getattr(import_module(module), attribute)
        except Exception as error:
            raise click.ClickException(f"{module} does not load: {type(error).__name__}: {error}") from None
        return command.make_context(info_name, args, parent, **extra)


class _OneLine(click.Group):
    """A group whose errors are one line, and which ends with the right status."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:  # type: ignore[override]
        """Run, print what went wrong, and exit."""
        run: Any = super().main
        if not standalone_mode:
            return run(*args, standalone_mode=False, **extra)
        try:
            status = run(*args, standalone_mode=False, **extra)
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message())
            sys.exit(USAGE)
        except click.ClickException as error:
            _say(error)
            sys.exit(USAGE if isinstance(error, click.UsageError) else error.exit_code)
        except click.Abort:
            click.echo("mpicoll: interrupted", err=True)
            sys.exit(130)
        except MpicollError as error:
            click.echo(f"mpicoll: {error}", err=True)
            sys.exit(USAGE if isinstance(error, UnknownAlgorithm) else FAILED)
        sys.exit(status if isinstance(status, int) else 0)


def _say(error: click.ClickException) -> None:
    context = getattr(error, "ctx", None)
    where = context.command_path if context else "mpicoll"
    click.echo(f"{where}: {' '.join(error.format_message().split())}", err=True)


@contextlib.contextmanager
def _asking() -> Iterator[None]:
    """What is wrong with what was asked becomes a usage error."""
    try:
        yield
    except (MpicollError, ValueError) as error:
        raise click.UsageError(str(error), click.get_current_context()) from None


def _rank(environ: Any = os.environ) -> int:
    """This process's rank as its launcher tells it, without starting MPI."""
    return next((int(environ[name]) for name in RANK_VARIABLES if environ.get(name, "").isdigit()), 0)


def _alone() -> None:
    """Leave, unless this is rank 0."""
    if _rank() > 0:
        click.get_current_context().exit(0)


def _console(stderr: bool = False) -> Any:
    """A console as wide as the terminal, or 120 characters wide where there is none."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    return console if console.is_terminal else Console(stderr=stderr, highlight=False, width=120)


@click.group(cls=_OneLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="mpicoll")
def main() -> None:
    """MPI collectives as data: list, see, prove and time their algorithms."""


main.add_command(_Later("bench", "mpicoll.benchmarks.cli:bench", "Time algorithms beside MPI's own, under mpiexec."))


# -- list -----------------------------------------------------------------------------------------------------


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """Every algorithm with what its docstring claims: {collective: [{"name": …}]}."""
    from .schedule import algorithms, registered

    found: dict[str, list[dict[str, Any]]] = {collective: [] for collective in algorithms()}
    for entry in registered():
        claims = entry.claims
        found[entry.collective.name].append(
            {
                "name": entry.name, "idea": claims.idea, "steps": claims.steps,
                "bytes_per_rank": claims.bytes_per_rank, "scratch": claims.scratch, "cost": claims.cost,
                "keeps_operand_order": entry.keeps_order() if entry.collective.reduces else None,
                "parameters": dict(entry.parameters), "source": claims.source,
            }
        )  # fmt: skip
    return found


@main.command("list")
@click.option("--json", "as_json", is_flag=True, help="{collective: [{name, idea, steps, …}]}.")
def list_(as_json: bool) -> None:
    """All algorithms: idea, steps, bytes, scratch, source.

    p is the number of ranks, n the bytes of the vector, q the largest power of two up to p, lg the ceiling of
    the binary logarithm.
    """
    _alone()
    if as_json:
        click.echo(json.dumps(catalogue(), indent=2, ensure_ascii=False))
        return
    console = _console()
    for collective, entries in catalogue().items():
        if entries:
            console.print(_list_table(collective, entries))
    console.print("p ranks, n bytes, q = the largest power of two up to p, lg = log2 rounded up", style="dim")


def _list_table(collective: str, entries: Sequence[dict[str, Any]]) -> Any:
    from rich.table import Table

    table = Table(title=collective, title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column("name", style="bold cyan", min_width=20, no_wrap=True)
    table.add_column("what it is")
    for entry in entries:
        table.add_row(entry["name"], _described(entry))
    return table


def _described(entry: dict[str, Any]) -> Any:
    """One algorithm's idea, formulas and source."""
    from rich.text import Text

    out = Text(f"{entry['idea']}\n")
    for label, key in (("steps", "steps"), ("bytes per rank", "bytes_per_rank"), ("scratch", "scratch")):
        out.append(f"{label} ", "dim").append(entry[key], "green").append("  ·  " if key != "scratch" else "\n", "dim")
    for name, default in entry["parameters"].items():
        out.append("parameter ", "dim").append(f"{name}={default}", "cyan").append("  ·  ", "dim")
    order = entry["keeps_operand_order"]
    if order is not None:
        out.append("keeps operand order" if order else "for commutative operators", "yellow" if order else "dim")
        out.append("  ·  ", "dim")
    return out.append(f"{entry['source']}\n", "dim")


# -- show -----------------------------------------------------------------------------------------------------


@main.command(short_help="A space-time picture of an algorithm, in the terminal or as SVG.")
@click.argument("collective")
@click.argument("algorithm")
@click.option("-p", "--ranks", "p", default=5, show_default=True, help="Number of ranks.")
@click.option("--root", default=0, show_default=True, help="For bcast, scatter, gather and reduce.")
@click.option("--svg", metavar="FILE", help="Write a drawing to FILE, or to - for standard output.")
@click.option("--plain", is_flag=True, help="No colour, and never narrower than the picture needs.")
def show(collective: str, algorithm: str, p: int, root: int, svg: str | None, plain: bool) -> None:
    """A space-time picture of ALGORITHM, a name or "name(key=value)": who sends what, and who then holds whose."""
    _alone()
    from . import draw
    from . import svg as drawing
    from .schedule import schedule

    with _asking():
        wanted = schedule(collective, algorithm, p, root)
        if root and not wanted.collective.rooted:
            raise ValueError(f"{collective} has no root")
        next(iter(wanted.program(0)), None)
    if svg:
        _write(svg, drawing.svg(wanted))
    elif plain:
        click.echo(draw.text(wanted), nl=False)
    else:
        console = _console()
        console.print(draw.render(wanted, console.width if console.is_terminal else None), soft_wrap=True, end="")


def _write(path: str, content: str) -> None:
    try:
        with click.open_file(path, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None


# -- verify ---------------------------------------------------------------------------------------------------


class Proof(NamedTuple):
    """What came of proving one algorithm at one p."""

    algorithm: tuple[str, str]
    p: int
    schedules: int
    seconds: float
    failure: str | None


@dataclass
class Proofs:
    """What came of one algorithm at all p."""

    proved: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    schedules: int = 0
    seconds: float = 0.0

    def add(self, proof: Proof) -> None:
        """One more p."""
        self.schedules += proof.schedules
        self.seconds += proof.seconds
        if proof.failure is None:
            self.proved.append(proof.p)
        else:
            self.failed[proof.p] = proof.failure


def prove(algorithm: tuple[str, str], p: int) -> Proof:
    """Prove one algorithm at one p; any error is a failure, an algorithm that raises included."""
    from .schedule import find
    from .verify import prove

    start, count, failure = time.process_time(), 0, None
    try:
        count = prove(find(*algorithm), p)
    except VerifyError as error:
        failure = str(error)
    except Exception as error:
        failure = f"{' '.join(algorithm)} on p={p}: {type(error).__name__}: {error}"
    return Proof(algorithm, p, count, time.process_time() - start, failure)


@main.command(short_help="Prove algorithms for every number of ranks and every root.")
@click.argument("collective", required=False)
@click.argument("algorithm", required=False)
@click.option("--max-ranks", default=16, show_default=True, type=click.IntRange(min=1), help="Prove p = 1 to this.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes  [default: as many as there are CPUs]")
def verify(collective: str | None, algorithm: str | None, max_ranks: int, jobs: int | None) -> None:
    """Prove algorithms, all or those named, for every number of ranks and every root: no deadlock, no hazard, each
    contribution once and in order, messages and memory as claimed. Exit status 0 only if all hold."""
    _alone()
    from .verify import selected

    with _asking():
        names = [(a.collective.name, a.name) for a in selected(collective, algorithm)]
    results = {name: Proofs() for name in names}
    start = time.perf_counter()
    for proof in _proofs(names, max_ranks, jobs or _cpus()):
        results[proof.algorithm].add(proof)
    _report(results, time.perf_counter() - start)
    if any(proofs.failed for proofs in results.values()):
        click.get_current_context().exit(FAILED)


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _proofs(names: Sequence[tuple[str, str]], max_ranks: int, jobs: int) -> Iterator[Proof]:
    """All proofs as they come, large p first so that no process is left with the longest at the end."""
    tasks = [(name, p) for p in range(max_ranks, 0, -1) for name in names]
    with _progress(len(tasks)) as advance:
        for proof in _run(tasks, min(jobs, len(tasks))):
            advance(" ".join(proof.algorithm), proof.p)
            yield proof


def _run(tasks: Sequence[tuple[tuple[str, str], int]], jobs: int) -> Iterator[Proof]:
    if jobs == 1:
        yield from (prove(*task) for task in tasks)
        return
    pool = ProcessPoolExecutor(jobs, get_context("fork"), _collect_rarely)
    try:
        for future in as_completed([pool.submit(prove, *task) for task in tasks]):
            yield future.result()
    except BrokenProcessPool:
        raise MpicollError("a process of the pool was killed, for want of memory perhaps; try --jobs 1") from None
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _collect_rarely() -> None:
    """Proofs make millions of small objects and few cycles: looking for those less often saves a tenth."""
    gc.freeze()
    gc.set_threshold(100_000, 50, 50)


@contextlib.contextmanager
def _progress(total: int) -> Iterator[Callable[[str, int], None]]:
    """A bar on a terminal; what it yields is called after each proof."""
    console = _console(stderr=True)
    if not console.is_terminal:
        yield lambda name, p: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda name, p: progress.update(task, advance=1, description=f"{name} p={p}")


def _report(results: dict[tuple[str, str], Proofs], seconds: float) -> None:
    console = _console()
    console.print(_proofs_table(results))
    for proofs in results.values():
        for p in sorted(proofs.failed)[:3]:
            console.print(proofs.failed[p], style="red", markup=False, soft_wrap=True)
        if len(proofs.failed) > 3:
            console.print(f"… and on p = {spans(sorted(proofs.failed)[3:])}", style="red", soft_wrap=True)
    bad = sum(bool(proofs.failed) for proofs in results.values())
    count = sum(proofs.schedules for proofs in results.values())
    said = f"{bad} of {len(results)} fail" if bad else "all hold"
    total = f"{len(results)} algorithm{'s' * (len(results) != 1)}, {count} schedules proved in {seconds:.1f} s"
    console.print(f"{said}: {total}", style="bold red" if bad else "bold green")


def _proofs_table(results: dict[tuple[str, str], Proofs]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for name in ("collective", "algorithm", "proved for p", "fails for p"):
        table.add_column(name)
    for name in ("schedules", "CPU s"):
        table.add_column(name, justify="right")
    for (collective, algorithm), proofs in results.items():
        fails = f"[bold red]{spans(proofs.failed)}[/]" if proofs.failed else ""
        numbers = str(proofs.schedules), f"{proofs.seconds:.2f}"
        table.add_row(collective, algorithm, spans(proofs.proved), fails, *numbers)
    return table


# -- info -----------------------------------------------------------------------------------------------------


@main.command(short_help="What runs where: MPI, ranks, engines, kernels.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def info(as_json: bool) -> None:
    """The MPI library, ranks and their binding, engines and kernels; alone or under mpiexec."""
    from . import info as facts

    try:
        found = facts.gather()
    except (ImportError, RuntimeError) as error:
        raise click.ClickException(f"MPI does not start: {error}") from None
    if found is None:
        return
    click.echo(json.dumps(found, indent=2) if as_json else facts.lines(found))
