"""Time what grows with the number of ranks: one rank's plan, and its table; auto's rules; starting, and its memory.

    python -m mpicoll.benchmarks.scale --ranks 1024,16384 --algorithms "allreduce ring,alltoall bruck"
    python -m mpicoll.benchmarks.scale --ranks 8,4096 --algorithms "" --starts 0 --rules 1,64

Schedules and plans need no MPI, so one process times any number of ranks. A plan is that of rank p // 3, without
chunks; its time is the least processor time of some tries. The cache keeps its table, which stores repeated steps
once. Rules are those that `auto` takes from the cost model on a preset's network if no file has them, in the processor
time of one try. Memory is the private memory of a process after its first Allreduce, beyond that with NumPy and mpi4py
imported and MPI started.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from mpi4py import MPI
from rich.table import Table

from mpicoll.cli.group import OneLineCommand, asking
from mpicoll.cli.sizes import parse_size
from mpicoll.cost.network import Network, network
from mpicoll.plans.lowering import lower
from mpicoll.plans.rolled import rolled
from mpicoll.schedules.grouping import by_blocks
from mpicoll.schedules.registry import parse_spec
from mpicoll.schedules.schedule import schedule
from mpicoll.selection.modelled import modelled_rules
from mpicoll.selection.rules import RULES, UNKNOWN_TO_ALL

from .command.checks import listed, positive
from .command.console import console
from .command.results_file import write_lines

NAME = "mpicoll.benchmarks.scale"
USUAL = (
    "allreduce ring,allreduce rabenseifner,allreduce recursive_doubling,allreduce hierarchical(groups=64),"
    "reduce_scatter ring,reduce_scatter recursive_halving,allgather ring,allgather bruck,"
    "allgather hierarchical(groups=64),bcast binomial,alltoall pairwise,alltoall bruck"
)
TRIES, PATIENCE = 3, 2.0  # of one plan; seconds after which none is tried again
MEMORY = """
import re, sys, time
from mpi4py import MPI
import numpy as np
def private():
    return sum(map(int, re.findall(r"^Private_\\w+: +(\\d+) kB", open("/proc/self/smaps_rollup").read(), re.M)))
before, modules, began = private(), len(sys.modules), time.perf_counter()
import mpicoll
comm = mpicoll.Comm(MPI.COMM_WORLD)
made = time.perf_counter()
comm.Allreduce(np.ones(1), np.zeros(1))
print(made - began, time.perf_counter() - made, (private() - before) / 1024, len(sys.modules) - modules)
"""


@dataclass(frozen=True)
class Lowered:
    """The cost of one rank's plan of an algorithm: processor seconds to lower it, its rows, and its table's bytes."""

    collective: str
    algorithm: str
    ranks: int
    seconds: float
    rows: int
    table_bytes: int


@dataclass(frozen=True)
class Ruled:
    """The cost of a collective's rules, on nodes of so many ranks: processor seconds, and how many rules there are."""

    collective: str
    ranks: int
    ranks_per_node: int
    seconds: float
    rules: int


@dataclass(frozen=True)
class Started:
    """The cost of starting a rank, beyond NumPy, mpi4py and MPI: seconds, MiB of private memory, modules imported."""

    comm_seconds: float
    first_seconds: float
    private_mib: float
    modules: int


@click.command(cls=OneLineCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--ranks", default="64,1024,4096,16384", help="Numbers of ranks.")
@click.option("--algorithms", default=USUAL, help="Collective and algorithm, as in 'allreduce ring'.")
@click.option("--rules", "per_node", default="", help="Ranks per node for which rules of auto are made; none if empty.")
@click.option("--network", "name", default="infiniband", help="The network of these rules: a file, or a preset.")
@click.option("--bytes", "size", default="8M", help="Of the whole vector, or of all of a rank's blocks.")
@click.option("--starts", default=5, help="How many processes are started; 0 for none.")
@click.option("--json", "path", type=click.Path(path_type=Path), metavar="FILE", help="Write JSON lines.")
@click.option("--svg", type=click.Path(path_type=Path), metavar="FILE", help="Draw plans over ranks, as SVG.")
def scale(
    ranks: str,
    algorithms: str,
    per_node: str,
    name: str,
    size: str,
    starts: int,
    path: Path | None,
    svg: Path | None,
) -> None:
    """Time lowering and the rules of auto by number of ranks, and starting."""
    with asking():
        numbers = [int(p) for p in listed("--ranks", ranks)]
        names = [_named(algorithm) for algorithm in listed("--algorithms", algorithms)] if algorithms else []
        sizes = [int(size) for size in listed("--rules", per_node)] if per_node else []
        net = network(name)
        nbytes = parse_size(size)
        if MPI.COMM_WORLD.size > 1:
            raise ValueError("plans are lowered on one rank: start it without mpiexec")
        for ranks_per_node in sizes:
            positive("--rules", ranks_per_node)
        for p in numbers:
            positive("--ranks", p)
            schedule("barrier", "dissemination", p)  # refuses what no machine has
    plans = [lowered(collective, algorithm, p, nbytes) for collective, algorithm in names for p in numbers]
    timed_rules = [
        ruled(net, collective, p, ranks_per_node)
        for p in numbers
        for ranks_per_node in sizes
        if ranks_per_node == 1 or ranks_per_node < p
        for collective in RULES
        if collective not in UNKNOWN_TO_ALL
    ]
    started = list(starting(starts))
    if plans:
        console().print(table(plans))
    if timed_rules:
        console().print(rules_table(timed_rules))
    if started:
        median = Started(*(float(np.median(column)) for column in zip(*map(_fields, started), strict=True)))  # type: ignore[arg-type]
        console().print(
            f"starting, the median of {starts}: the first Comm {median.comm_seconds:.3f} s, the first Allreduce "
            f"{1e3 * median.first_seconds:.2f} ms, {median.private_mib:.1f} MiB of private memory, "
            f"{median.modules:.0f} modules imported"
        )
    if path:
        write_lines(path, [*plans, *timed_rules, *started])
    if svg:
        svg.write_text(drawn(plans))


def _named(text: str) -> tuple[str, str]:
    """Return collective and algorithm. Raises ValueError, UnknownAlgorithm."""
    collective, _, algorithm = text.strip().partition(" ")
    if not algorithm:
        raise ValueError(f"--algorithms names {text!r}; it needs a collective and an algorithm of it, 'allreduce ring'")
    parse_spec(collective, algorithm)
    return collective, algorithm


def lowered(collective: str, algorithm: str, p: int, nbytes: int) -> Lowered:
    """Lower one rank's plan some times; the least processor time counts, the schedule's own part included."""
    seconds: list[float] = []
    while len(seconds) < TRIES and sum(seconds) < PATIENCE:
        began = time.process_time()
        source = schedule(collective, algorithm, p)
        count = nbytes if source.collective.naming == "vector" else -(-nbytes // p)
        plan = rolled(lower(source, p // 3, count if source.collective.naming != "none" else 0, 1))
        seconds.append(time.process_time() - began)
    return Lowered(collective, algorithm, p, min(seconds), plan.all_rows, plan.nbytes)


def ruled(net: Network, collective: str, p: int, ranks_per_node: int) -> Ruled:
    """Make the rules of a collective as the first call on such ranks does."""
    nodes = by_blocks(p, ranks_per_node)
    modelled_rules(net, collective, 2, True, None)  # imports and parses what does not depend on the ranks
    began = time.process_time()
    rules = modelled_rules.__wrapped__(net, collective, p, True, nodes)
    return Ruled(collective, p, ranks_per_node, time.process_time() - began, len(rules))


def starting(processes: int) -> Iterator[Started]:
    """Yield what some processes took to start, on a warm cache."""
    command = [sys.executable, "-c", MEMORY]
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(processes + 1)]
    for output in outputs[1:] if processes else []:  # the first may have had to compile
        comm, first, private, modules = map(float, output.split())
        yield Started(comm, first, private, int(modules))


def _fields(started: Started) -> tuple[float, ...]:
    return started.comm_seconds, started.first_seconds, started.private_mib, started.modules


def table(plans: list[Lowered]) -> Table:
    """Return a line for every algorithm and number of ranks."""
    rich_table = Table(title="one rank's plan", title_justify="left")
    for name in ("collective", "algorithm", "ranks", "ms", "rows", "table", "µs a row"):
        rich_table.add_column(name, justify="left" if name in ("collective", "algorithm") else "right")
    before = ("", "")
    for plan in plans:
        same = (plan.collective, plan.algorithm) == before
        rich_table.add_row(
            *("", "") if same else (plan.collective, plan.algorithm),
            f"{plan.ranks:,}",
            f"{1e3 * plan.seconds:,.2f}",
            f"{plan.rows:,}",
            f"{plan.table_bytes / 1024:,.0f} KiB",
            f"{1e6 * plan.seconds / max(1, plan.rows):.1f}",
        )
        before = plan.collective, plan.algorithm
    return rich_table


def rules_table(timed_rules: list[Ruled]) -> Table:
    """Return a line for every collective, with a column of ms for each number of ranks and ranks per node."""
    rich_table = Table("collective", title="rules of auto, ms", title_justify="left")
    times = {(entry.collective, (entry.ranks, entry.ranks_per_node)): 1e3 * entry.seconds for entry in timed_rules}
    shapes, collectives = (list(dict.fromkeys(names)) for names in zip(*((shape, name) for name, shape in times)))
    for ranks, ranks_per_node in shapes:
        rich_table.add_column(f"{ranks:,} by {ranks_per_node}", justify="right")
    for collective in collectives:
        rich_table.add_row(collective, *(f"{times[collective, shape]:.1f}" for shape in shapes))
    return rich_table


def drawn(plans: list[Lowered]) -> str:
    """Return an SVG of the time that a plan takes, and of its table's memory, over ranks."""
    import altair as alt
    import vl_convert

    from .report.look import COLOURS, MARKS

    names = list(dict.fromkeys(f"{x.collective} {x.algorithm}" for x in plans))
    one_legend: dict[str, Any] = {"title": "algorithm", "sort": names}
    looks = {
        "color": alt.Color("algorithm:N", scale=alt.Scale(domain=names, range=list(COLOURS)), **one_legend),
        "shape": alt.Shape("algorithm:N", scale=alt.Scale(domain=names, range=list(MARKS)), **one_legend),
    }

    def axis(field: str, title: str) -> dict[str, Any]:
        return {"shorthand": f"{field}:Q", "scale": alt.Scale(type="log"), "axis": alt.Axis(title=title, format="~s")}

    rows = [{**asdict(x), "algorithm": f"{x.collective} {x.algorithm}"} for x in plans]
    plot = alt.Chart(alt.InlineData(values=rows)).mark_line(point=True).encode(alt.X(**axis("ranks", "ranks")), **looks)
    seconds = plot.encode(alt.Y(**axis("seconds", "seconds to make one rank's plan")))
    table = plot.encode(alt.Y(**axis("table_bytes", "bytes of its tables")))
    return str(vl_convert.vegalite_to_svg(alt.hconcat(seconds, table).to_json()))


if __name__ == "__main__":
    scale.main(prog_name=f"python -m {NAME}")
