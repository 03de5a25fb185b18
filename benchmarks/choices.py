"""Compare what `auto` would choose with times that others measured on clusters: regret of fixed rules and of the model.

    python -m mpicoll.benchmarks.choices FILE            # FILE: rows of algorithms' times, for columns see COLUMNS
    python -m mpicoll.benchmarks.choices FILE --fit      # and fit a network for each machine, on a fifth of its cells
    python -m mpicoll.benchmarks.choices FILE --beside swing,rabenseifner   # the time of the second over the first's

A cell is a run, a collective and a size. Regret is the time of the algorithm chosen by that of the fastest one
measured; only what was measured can be chosen. Where the rules' choice was not measured, the cell is left out of both.
"""

from __future__ import annotations

import csv
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import click
import numpy as np

from ..cost.model import cost
from ..cost.network import Level, Network, content, network, presets
from ..cost.profile import profile
from ..errors import PreconditionError
from ..schedules.grouping import Partition, by_blocks
from ..selection.select import Overrides, choose

COLUMNS = ("run", "machine", "p", "ranks_per_node", "gpu", "collective", "bytes", "median_us", "mpicoll")
SAME = {"chain": "chain(k=1)"}  # how the measurements name an algorithm that the rules choose
UNNAMED = {  # algorithms of rows whose column `mpicoll` is empty, by (collective, algorithm)
    ("allgather", "sparbit_over"): "sparbit",
    ("allreduce", "bine_bdw_remap_over"): "swing",
    ("bcast", "bine_lat_over"): "bine",
    ("reduce", "bine_lat_over"): "bine",
}
FITTED = 5  # a network is fitted on one cell in so many


class Cell(NamedTuple):
    """The place of some measurements."""

    machine: str
    run: str
    p: int
    ranks_per_node: int
    collective: str
    nbytes: int

    @property
    def nodes(self) -> Partition:
        """Return the ranks of every node, placed by blocks."""
        return by_blocks(self.p, self.ranks_per_node)


Cells = dict[Cell, dict[str, float]]  # µs by algorithm


@click.command(short_help="Regret of what auto would choose on clusters that others measured.")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--fit", is_flag=True, help="Fit a network for each machine, print it, and go by it.")
@click.option("--beside", metavar="A,B", help="Print the time of B over that of A instead, where both were measured.")
def main(file: Iterable[str], fit: bool, beside: str | None) -> None:
    """Print the regret of the fixed rules and of the model on the measurements of FILE."""
    cells = read(file)
    if beside is not None:
        first, comma, second = beside.partition(",")
        if not (first and comma and second):
            raise click.BadParameter("it must be two algorithms, such as swing,rabenseifner", param_hint="--beside")
        _compare(cells, first, second)
        return
    click.echo(f"{'machine':<16}{'by':<10}{'cells':>6}{'mean':>8}{'p90':>8}{'worst':>8}{'within 10 %':>13}")
    every: dict[str, list[float]] = defaultdict(list)
    for machine in sorted({cell.machine for cell in cells}):
        own = {cell: times for cell, times in cells.items() if cell.machine == machine}
        if not fit and machine not in presets():
            continue
        net = fitted(machine, own) if fit else network(machine)
        both = [cell for cell in own if by_rules(cell, own[cell]) is not None]
        for name, cells_of_it, choice in (
            ("rules", both, by_rules),
            ("model", both, by_model(net)),
            ("model", list(own), by_model(net)),
        ):
            regret = regrets(own, cells_of_it, choice)
            every[f"{name}{'' if cells_of_it is both else ', all cells'}"] += regret
            _print(machine, name, regret)
        if fit:
            click.echo(json.dumps(content(net)))
    for name, regret in every.items():
        _print("all", name, regret)


def _compare(cells: Cells, first: str, second: str) -> None:
    """Print the second's time over the first's for every machine and collective: geometric mean, least and most."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for cell, times in cells.items():
        if first in times and second in times:
            ratios[cell.machine, cell.collective].append(times[second] / times[first])
    for (machine, collective), own in sorted(ratios.items()):
        mean = np.exp(np.log(own).mean())
        click.echo(f"{machine} {collective}: {mean:.2f} ({min(own):.2f} to {max(own):.2f}) in {len(own)} cells")


def read(file: Iterable[str]) -> Cells:
    """Return the cells of host memory in which several of mpicoll's algorithms were measured."""
    cells: Cells = defaultdict(dict)
    for row in csv.DictReader(file):
        name = row["mpicoll"] or UNNAMED.get((row["collective"], row.get("algorithm", "")))
        if name and row["gpu"] == "0":
            p, per_node, nbytes = (int(row[column]) for column in ("p", "ranks_per_node", "bytes"))
            cell = Cell(row["machine"], row["run"], p, per_node, row["collective"], nbytes)
            cells[cell][name] = float(row["median_us"])
    return {cell: times for cell, times in cells.items() if len(times) > 1}


def by_rules(cell: Cell, times: dict[str, float]) -> str | None:
    """Return what the fixed rules choose, None if that was not measured."""
    name = choose(cell.collective, cell.nbytes, cell.p, True, Overrides(), "", cell.nodes).algorithm
    name = SAME.get(name, name)
    return name if name in times else None


def by_model(net: Network) -> Callable[[Cell, dict[str, float]], str | None]:
    """Return a function that returns which of the measured algorithms the model calls the fastest."""
    return lambda cell, times: min(times, key=lambda name: float(predicted(cell, name, net)))


def predicted(cell: Cell, name: str, net: Network) -> float:
    """Return the µs of an algorithm by the model; infinite where p will not do."""
    try:
        steps = profile(cell.collective, name, cell.p, cell.nodes if cell.ranks_per_node > 1 else None)
        return float(cost(steps, net, np.array([cell.nbytes]))[0])
    except PreconditionError:
        return float("inf")


def regrets(cells: Cells, some: Iterable[Cell], choice: Callable[[Cell, dict[str, float]], str | None]) -> list[float]:
    """Return the time of what is chosen by that of the fastest, of some cells."""
    chosen = [(cells[cell], choice(cell, cells[cell])) for cell in some]
    return [times[name] / min(times.values()) for times, name in chosen if name is not None]


def fitted(machine: str, cells: Cells) -> Network:
    """Return the network whose model comes nearest to a part of the cells, which their names draw."""
    from scipy.optimize import least_squares

    some = [cell for cell in cells if zlib.crc32(repr(cell[1:]).encode()) % FITTED == 0]
    times = [(cell, name, us) for cell in some for name, us in cells[cell].items()]

    def errors(numbers: np.ndarray) -> list[float]:
        net, start = _network(machine, np.exp(numbers[:-1])), np.exp(numbers[-1])
        return [float(np.log((predicted(cell, name, net) + start) / us)) for cell, name, us in times]

    first = np.log([3.0, 5.0, 0.5, 3e3, 1e4, 0.5, 3.0, 0.3, 3e3, 8e3, 5e3, 5e3, 1.0])
    prior = 0.05  # how much a number may cost that the measurements do not tell
    best = least_squares(
        lambda x: [*errors(x), *(prior * (x - first))], first, loss="soft_l1", f_scale=0.3, max_nfev=40
    )
    return _network(machine, [float(f"{value:.3g}") for value in np.exp(best.x)])


def _network(name: str, numbers: Sequence[float] | np.ndarray) -> Network:
    return Network(name, Level(*numbers[5:10]), Level(*numbers[:5]), 16384.0, *numbers[10:12])


def _print(machine: str, name: str, regret: Sequence[float]) -> None:
    values = np.array(regret)
    mean, p90 = float(np.exp(np.log(values).mean())), float(np.quantile(values, 0.9))
    within = float((values <= 1.1).mean())
    click.echo(f"{machine:<16}{name:<10}{len(values):>6}{mean:>8.2f}{p90:>8.2f}{values.max():>8.1f}{within:>12.0%}")


if __name__ == "__main__":
    main(prog_name="python -m mpicoll.benchmarks.choices")
