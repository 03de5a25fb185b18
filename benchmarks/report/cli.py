"""`mpicoll report`: results read, shown, compared and drawn. Runs alone, without MPI."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from mpicoll.cli.group import FAILED, alone, asking, extra
from mpicoll.cli.names import canonical
from mpicoll.cli.placement import Nodes, places_ranks
from mpicoll.cli.sizes import parse_sizes

from ..cases.contenders import NATIVE
from ..command.checks import listed
from . import fixed, terminal
from .groups import gather
from .model import Run
from .read import read

Made = TypeVar("Made")
MAPS = ("ranks", "sizes", "against")  # options of maps by the model, beside those that place ranks


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("paths", nargs=-1, metavar="FILE...")
@click.option("--collectives", metavar="NAME,NAME", help="Only these.")
@click.option("--network", metavar="NAME", help="Maps by the cost model, on a network's file or a preset.")
@click.option("--ranks", metavar="LIST", help="Of the maps: numbers and ranges FIRST:LAST[:FACTOR].  [default: 4:1024]")
@places_ranks
@click.option("--sizes", metavar="LIST", help="Of the maps: bytes, as for mpicoll bench.  [default: 8:8M:8]")
@click.option("--against", metavar="NAME",
              help="Compare the model's best with: rules (mpicoll's fixed ones), mpich or openmpi (as they choose), an "
              "algorithm, or native, as FILEs have it, on as many nodes.  [default: native with FILEs, else rules]")
@click.option("--compare", "comparing", is_flag=True, help="Compare two files, the old and the new, row by row.")
@click.option("--fail-if-slower", is_flag=True, help="With --compare: exit status 1 if any row got slower, or wrong.")
@click.option(
    "--tolerance", type=click.FloatRange(min=0), metavar="PERCENT", help="With --compare: changes up to this are none."
)
@click.option("-o", "--output", metavar="FILE", help="Write one HTML page, which needs no network.")
@click.option("--title", help="Of that page.  [default: Collectives, measured]")
@click.option("--png", metavar="DIR", help="Write every chart as a PNG file in DIR.")
@click.option("--svg", metavar="DIR", help="Write every chart as an SVG file in DIR.")
def report(paths: tuple[str, ...], collectives: str | None, comparing: bool, **options: Any) -> None:
    """Show what FILEs hold: tables, a page of charts, or what changed between two runs.

    A FILE is of `mpicoll bench --json`, or the output of the OSU micro-benchmarks or Intel's IMB-MPI1; its
    content says which. Without options, tables are printed.

    With --network also the fastest algorithm by the cost model, over size and ranks, and what another choice costs:
    its time over the least. FILEs may then be left out.
    """
    alone()
    check(paths, comparing, **options)
    with asking():
        runs = [only(read(path), collectives) for path in paths]
        if options["network"] is not None:
            runs.append(model(runs, collectives, **options))
    for run in runs:
        click.echo(run.description, err=comparing or not _writes(options))
    if comparing:
        old, new = runs
        compare(old, new, options["fail_if_slower"], (options["tolerance"] or 0.0) / 100)
    elif _writes(options):
        title, folders = options["title"] or "Collectives, measured", {k: options[k] for k in ("png", "svg")}
        write(runs, options["output"], title, folders)
    else:
        show(runs)


def _writes(options: dict[str, Any]) -> list[str]:
    return [name for name in ("output", "png", "svg") if options[name] is not None]


def model(
    runs: Sequence[Run], collectives: str | None, *, network: str, ranks: str | None, where: Nodes,
    sizes: str | None, against: str | None, **_: Any,
) -> Run:  # fmt: skip
    """Return the times of the cost model. Raises ValueError and ArgumentError, which say what is wrong."""
    from mpicoll.cost import network as networks

    from . import modelled

    net = networks.network(network)
    if (against or (NATIVE if runs else fixed.RULES)) == NATIVE:
        if not runs:
            raise ValueError("--against native needs a FILE with native's times, of mpicoll bench --json")
        if ranks or sizes:
            raise ValueError("--against native has the ranks and sizes of the FILEs; leave out --ranks and --sizes")
        return modelled.beside_native(net, runs, where.partition)
    names = [canonical(name) for name in listed("--collectives", collectives or ",".join(modelled.USUAL))]
    numbers, places = parse_sizes(sizes or "8:8M:8"), parse_sizes(ranks or "4:1024")
    return modelled.run(net, modelled.areas(names, places, where.partition, numbers), against or fixed.RULES)


def check(paths: Sequence[str], comparing: bool, **options: Any) -> None:
    """Raise UsageError for options that do not go together."""
    if not paths and options["network"] is None:
        raise click.UsageError("Missing argument 'FILE...', or --network NAME for maps by the cost model")
    wrong = [f"--{name}" for name in MAPS if options[name] is not None] + options["where"].options
    if options["network"] is None and wrong:
        raise click.UsageError(f"{', '.join(wrong)}: of the maps that --network NAME draws")
    if comparing and options["network"] is not None:
        raise click.UsageError("--compare compares two files, and goes without --network")
    if comparing and len(paths) != 2:
        raise click.UsageError(f"--compare takes two files, the old one and the new one; {len(paths)} given")
    if comparing and _writes(options):
        raise click.UsageError("--compare prints tables, and goes with none of --output, --png and --svg")
    if not comparing and (options["fail_if_slower"] or options["tolerance"] is not None):
        raise click.UsageError("--fail-if-slower and --tolerance need --compare")
    if options["tolerance"] is not None and not math.isfinite(options["tolerance"]):
        raise click.UsageError(f"--tolerance is {options['tolerance']}; it must be a number of per cent, 0 or above")
    if options["title"] is not None and options["output"] is None:
        raise click.UsageError("--title is of the page that --output FILE writes")


def only(run: Run, collectives: str | None) -> Run:
    """Return the run with the rows of some collectives. Raises ValueError for one that it does not have."""
    if collectives is None:
        return run
    from dataclasses import replace

    wanted = [name.strip() for name in collectives.split(",")]
    known = list(dict.fromkeys(row.setting.collective for row in run.rows))
    if missing := [name for name in wanted if name not in known]:
        raise ValueError(f"{run.name} has no {', '.join(missing)}; it has {', '.join(known)}")
    return replace(run, rows=tuple(row for row in run.rows if row.setting.collective in wanted))


def show(runs: Sequence[Run]) -> None:
    """Print a table per setting and place."""
    from ..command.console import console

    to, groups = console(), gather(runs)
    measured = [group for group in groups if not group.is_modelled]
    for group in measured:
        to.print(terminal.table(group))
    if measured:
        to.print(terminal.legend(measured))
    for setting in dict.fromkeys(group.setting for group in groups if group.is_modelled):
        to.print(terminal.fastest([group for group in groups if group.setting == setting]))


def compare(old: Run, new: Run, fail: bool, tolerance: float) -> None:
    """Print what changed; exit status 1 if asked to fail and anything got worse."""
    from ..command.console import console

    with extra("--compare"):
        from . import compare as statistics
    from . import difference

    comparison = statistics.compare(old, new, tolerance)
    if not comparison.changes and not comparison.wrong:
        raise click.UsageError(f"{old.name} and {new.name} have no row in common; ranks, hosts and settings must agree")
    difference.show(console(), old, new, comparison, tolerance)
    if fail and comparison.worse:
        click.get_current_context().exit(FAILED)


def write(runs: Sequence[Run], output: str | None, title: str, folders: dict[str, str | None]) -> None:
    """Write the page and the pictures; one line on each."""
    if output is not None:
        with extra("--output"):
            from .page import build
        text = build(runs, title)
        _written(output, partial(Path(output).write_text, text, encoding="utf-8"))
        click.echo(f"{output}: {len(text.encode()) / 1e6:.1f} MB, opens in any browser without a network")
    for kind, folder in folders.items():
        if folder is not None:
            with extra(f"--{kind}"):
                from . import pictures
            files = _written(folder, partial(pictures.write, runs, Path(folder), kind))
            click.echo(f"{folder}: {len(files)} {kind.upper()} file{'s' * (len(files) != 1)}")


def _written(path: str, act: Callable[[], Made]) -> Made:
    try:
        return act()
    except OSError as error:
        raise click.ClickException(f"cannot write {path}: {error.strerror}") from None
