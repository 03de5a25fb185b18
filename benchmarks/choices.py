"""Compare the choices of `auto` with measurements of others: how much slower they are than the fastest algorithm.

    python -m mpicoll.benchmarks.choices FILE            # FILE: rows of algorithms' times, for columns see COLUMNS
    python -m mpicoll.benchmarks.choices FILE --fit      # and fit a network for each machine, on a fifth of its cases
    python -m mpicoll.benchmarks.choices FILE --beside swing,rabenseifner   # the time of the second over the first's

A case is a run, a collective and a size. The slowdown is the time of the chosen algorithm over that of the fastest one
measured. Only measured algorithms can be chosen. A case in which the choice of the rules was not measured is left out
of the comparison of rules and model.
"""

from __future__ import annotations

import csv
import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import click
import numpy as np

from ..cli.group import asking
from ..cli.placement import placement_option
from ..cost.model import cost
from ..cost.network import Level, Network, content, network, presets
from ..cost.placement import equal_tasks, place
from ..cost.profile import profile
from ..errors import PreconditionError
from ..schedules.grouping import BLOCK, Partition, Placement
from ..selection.select import Overrides, choose

COLUMNS = ("run", "machine", "p", "ranks_per_node", "gpu", "collective", "bytes", "median_us", "mpicoll")
SAME = {"chain": "chain(k=1)"}  # how the measurements name an algorithm that the rules choose
UNNAMED = {  # algorithms of rows whose column `mpicoll` is empty, by (collective, algorithm)
    ("allgather", "sparbit_over"): "sparbit",
    ("allgather", "bine_2_blocks_over"): "bine",
    ("allgather", "bine_send_remap_over"): "bine(remap=yes)",
    ("allreduce", "bine_bdw_remap_over"): "swing",
    ("bcast", "bine_bdw_remap_over"): "bine_scatter_allgather",
    ("bcast", "bine_lat_over"): "bine",
    ("gather", "bine_over"): "bine",
    ("reduce", "bine_bdw_over"): "bine_rabenseifner",
    ("reduce", "bine_lat_over"): "bine",
    ("reduce_scatter", "bine_send_remap_over"): "bine(remap=yes)",
    ("scatter", "bine_over"): "bine",
}
FITTED = 5  # a network is fitted on one case in so many
PORTS = (1, 2, 3)  # of the links, of which the fit takes the best


class Case(NamedTuple):
    """A machine, run, layout, collective and size for which several algorithms were measured."""

    machine: str
    run: str
    p: int
    ranks_per_node: int
    collective: str
    nbytes: int
    placement: Placement = BLOCK

    @property
    def nodes(self) -> Partition:
        """Return the ranks of every node."""
        return place(equal_tasks(self.p, self.ranks_per_node), self.placement)

    @property
    def is_fitted_on(self) -> bool:
        """Return whether a network is fitted on it, by a checksum of its names: of one case in FITTED."""
        return zlib.crc32(repr(self[1:6]).encode()) % FITTED == 0


Cases = dict[Case, dict[str, float]]  # µs by algorithm
Choose = Callable[[Case, dict[str, float]], str | None]  # of a case and its measurements: an algorithm


@click.command(short_help="Slowdown of the choices of auto against the fastest algorithm measured.")
@click.argument("file", type=click.File(encoding="utf-8"))
@click.option("--network", "name", help="Choose by this network for every machine: a file, or a preset.")
@click.option("--fit", is_flag=True, help="Fit a network for each machine, print it, and choose by it.")
@placement_option
@click.option("--beside", metavar="A,B", help="Print the time of B over that of A instead, where both were measured.")
def main(file: Iterable[str], name: str | None, fit: bool, placement: Placement, beside: str | None) -> None:
    """Print how much slower the choices of rules and model are than the fastest algorithm measured in FILE.

    FILE says how many ranks a node has, and --placement how they were placed.
    """
    if fit and name:
        raise click.UsageError("--fit makes a network for each machine, so --network has no use")
    with asking():
        one_network = network(name) if name else None
    cases = read(file, placement)
    if beside is not None:
        first, comma, second = beside.partition(",")
        if not (first and comma and second):
            raise click.BadParameter("it must be two algorithms, such as swing,rabenseifner", param_hint="--beside")
        _compare(cases, first, second)
        return
    click.echo(f"{'machine':<16}{'by':<10}{'cases':>6}{'mean':>8}{'p90':>8}{'worst':>8}{'within 10 %':>13}")
    every: dict[str, list[float]] = defaultdict(list)
    for machine in sorted({case.machine for case in cases}):
        own = {case: times for case, times in cases.items() if case.machine == machine}
        if not fit and one_network is None and machine not in presets():
            continue
        net = fitted(machine, own) if fit else one_network or network(machine)
        both = [case for case in own if by_rules(case, own[case]) is not None]
        for chooser, chosen_cases, choice in (
            ("rules", both, by_rules),
            ("model", both, by_model(net)),
            ("model", list(own), by_model(net)),
        ):
            ratios = slowdowns(own, chosen_cases, choice)
            every[f"{chooser}{'' if chosen_cases is both else ', all cases'}"] += ratios
            _print(machine, chooser, ratios)
        if fit:
            click.echo(json.dumps(content(net)))
    for chooser, ratios in every.items():
        _print("all", chooser, ratios)


def _compare(cases: Cases, first: str, second: str) -> None:
    """Print the second's time over the first's for every machine and collective: geometric mean, least and most."""
    ratios: dict[tuple[str, str], list[float]] = defaultdict(list)
    for case, times in cases.items():
        if first in times and second in times:
            ratios[case.machine, case.collective].append(times[second] / times[first])
    for (machine, collective), own in sorted(ratios.items()):
        mean = np.exp(np.log(own).mean())
        click.echo(f"{machine} {collective}: {mean:.2f} ({min(own):.2f} to {max(own):.2f}) in {len(own)} cases")


def read(file: Iterable[str], placement: Placement = BLOCK) -> Cases:
    """Return the cases in host memory in which several of mpicoll's algorithms were measured."""
    cases: Cases = defaultdict(dict)
    for row in csv.DictReader(file):
        name = row["mpicoll"] or UNNAMED.get((row["collective"], row.get("algorithm", "")))
        if name and row["gpu"] == "0":
            p, per_node, nbytes = (int(row[column]) for column in ("p", "ranks_per_node", "bytes"))
            case = Case(row["machine"], row["run"], p, per_node, row["collective"], nbytes, placement)
            cases[case][name] = float(row["median_us"])
    return {case: times for case, times in cases.items() if len(times) > 1}


def by_rules(case: Case, times: dict[str, float]) -> str | None:
    """Return the choice of the fixed rules; None if it was not measured."""
    name = choose(case.collective, case.nbytes, case.p, True, Overrides(), "", case.nodes).algorithm
    name = SAME.get(name, name)
    return name if name in times else None


def by_model(net: Network) -> Choose:
    """Return a function that chooses the algorithm that is fastest by the model, of those measured."""
    return lambda case, times: min(times, key=lambda name: float(predicted(case, name, net)))


def predicted(case: Case, name: str, net: Network) -> float:
    """Return the µs of an algorithm by the model; infinite if it does not support p."""
    try:
        steps = profile(case.collective, name, case.p, case.nodes if case.ranks_per_node > 1 else None)
        return float(cost(steps, net, np.array([case.nbytes]))[0])
    except PreconditionError:
        return float("inf")


def slowdowns(cases: Cases, some: Iterable[Case], choice: Choose) -> list[float]:
    """Return the time of the chosen algorithm over that of the fastest one, for each of some cases."""
    chosen = [(cases[case], choice(case, cases[case])) for case in some]
    return [times[name] / min(times.values()) for times, name in chosen if name is not None]


def fitted(machine: str, cases: Cases) -> Network:
    """Fit a network to a fifth of the cases, with the best number of ports."""
    from scipy.optimize import least_squares

    times = [(case, name, us) for case in cases if case.is_fitted_on for name, us in cases[case].items()]
    first = np.log([3.0, 5.0, 0.5, 3e3, 1e4, 0.5, 3.0, 0.3, 3e3, 8e3, 5e3, 5e3, 1.0])
    prior = 0.05  # the weight that holds numbers which no measurement determines near their start

    def errors(numbers: np.ndarray, ports: int) -> list[float]:
        net, start = _network(machine, np.exp(numbers[:-1]), ports), np.exp(numbers[-1])
        return [float(np.log((predicted(case, name, net) + start) / us)) for case, name, us in times]

    def fit(ports: int) -> Any:
        residuals = lambda x: [*errors(x, ports), *(prior * (x - first))]
        return least_squares(residuals, first, loss="soft_l1", f_scale=0.3, max_nfev=40)

    fits = {ports: fit(ports) for ports in PORTS}
    ports = min(PORTS, key=lambda ports: float(fits[ports].cost))
    return _network(machine, [float(f"{value:.3g}") for value in np.exp(fits[ports].x)], ports)


def _network(name: str, numbers: Sequence[float] | np.ndarray, ports: int) -> Network:
    links, node = (Level(*numbers[at : at + 5]) for at in (0, 5))
    return Network(name, node, replace(links, ports=ports), 16384.0, *numbers[10:12])


def _print(machine: str, name: str, ratios: Sequence[float]) -> None:
    if not ratios:  # what the rules choose was not measured in any case
        return
    values = np.array(ratios)
    mean, p90 = float(np.exp(np.log(values).mean())), float(np.quantile(values, 0.9))
    within = float((values <= 1.1).mean())
    click.echo(f"{machine:<16}{name:<10}{len(values):>6}{mean:>8.2f}{p90:>8.2f}{values.max():>8.1f}{within:>12.0%}")


if __name__ == "__main__":
    main(prog_name="python -m mpicoll.benchmarks.choices")
