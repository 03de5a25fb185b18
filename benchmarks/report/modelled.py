"""A run whose times are the cost model's: every algorithm on a network, beside fixed rules or native's measured times.

A row is in the best chunks of its algorithm. The run joins tables, curves and maps like one of measured times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mpicoll.cost.model import WHOLE
from mpicoll.cost.network import Network, in_words
from mpicoll.errors import UnknownAlgorithm
from mpicoll.schedules.collectives import base_collective
from mpicoll.schedules.grouping import Partition
from mpicoll.selection.modelled import CHUNKS, costs, model_us, ranking
from mpicoll.selection.rules import UNKNOWN_TO_ALL

from ..cases.contenders import NATIVE
from ..cases.patterns import PATTERNS, Shape
from ..command.checks import ALL
from .fixed import Choice, Choose, choices
from .model import BY_MODEL, MODEL, Row, Run, Setting

USUAL = ("bcast", "reduce", "allreduce", "allgather", "reduce_scatter", "alltoall")
MOST_RANKS = 1 << 20


class Area(NamedTuple):
    """A collective on p ranks, placed on these nodes, and sizes, as `mpicoll bench` means them."""

    collective: str
    p: int
    nodes: Partition
    sizes: tuple[int, ...]


def areas(
    names: Sequence[str], ranks: Sequence[int], partition: Callable[[int], Partition], sizes: Sequence[int]
) -> list[Area]:
    """Return the areas of collectives on some numbers of ranks. Raises ValueError for a wrong name or number.

    partition: returns the nodes of so many ranks.
    """
    every = [name for name in PATTERNS if name not in UNKNOWN_TO_ALL]
    chosen = list(dict.fromkeys(name for word in names for name in (every if word == ALL else [word])))
    for name in chosen:
        if name in UNKNOWN_TO_ALL:
            raise ValueError(f"{name}: its ranks know only their own counts, so bytes decide nothing")
        if name not in PATTERNS:
            raise UnknownAlgorithm("collective", name, (*every, ALL))
    if out := [p for p in ranks if not 1 <= p <= MOST_RANKS]:
        raise ValueError(f"--ranks has {out[0]}; it must be 1 to {MOST_RANKS:,}")
    nodes = {p: partition(p) for p in ranks}
    return [Area(name, p, nodes[p], tuple(sizes) if PATTERNS[name].recv else (0,)) for name in chosen for p in ranks]


def run(net: Network, areas: Sequence[Area], against: str) -> Run:
    """Return the times of all algorithms, and of the choice of the fixed rules that `against` names.

    Raises ValueError for rules that are unknown.
    """
    name, choose = choices(against)
    rows = [row for area in areas for row in _rows(net, area, name, choose)]
    return Run(net.name, MODEL, tuple(rows), _environment(net))


def beside_native(net: Network, runs: Sequence[Run], partition: Callable[[int, int], Partition]) -> Run:
    """Return the times of all algorithms where the runs have times of native, and these.

    partition: returns the nodes of so many ranks on so many hosts. Raises ValueError if no run has times of native.
    """
    measured = {
        (row.setting.collective, row.ranks, row.hosts, row.size): row
        for run in runs
        for row in run.rows
        if row.ranks and row.hosts and _is_native(row)
    }
    if not measured:
        raise ValueError("no native times of blocking calls with a number of ranks and hosts; or name --against rules")
    rows: list[Row] = []
    for collective, p, hosts in dict.fromkeys(key[:3] for key in measured):
        sizes = tuple(sorted(key[3] for key in measured if key[:3] == (collective, p, hosts)))
        area = Area(collective, p, partition(p, hosts), sizes)
        setting = _setting(net, collective)
        rows += _rows(net, area)
        native = (measured[collective, p, hosts, size] for size in sizes)
        rows += [Row(setting, row.size, NATIVE, None, p, hosts, paired=True, median_us=row.median_us) for row in native]
    return Run(net.name, MODEL, tuple(rows), _environment(net))


def _is_native(row: Row) -> bool:
    is_known = row.setting.form == "blocking" and row.setting.collective not in UNKNOWN_TO_ALL
    return bool(row.native and row.right and is_known)


def _rows(net: Network, area: Area, name: str = "", choose: Choose | None = None) -> Iterator[Row]:
    setting, nodes, p = _setting(net, area.collective), area.nodes, area.p
    nbytes = [Shape(area.collective).bytes_of_call(size, p) for size in area.sizes]
    lines = costs(net, area.collective, p, True, nodes, np.array(nbytes))
    place = p, len(nodes)
    for i, (size, n) in enumerate(zip(area.sizes, nbytes, strict=True)):
        for us, algorithm in ranking(lines, i):
            if us < np.inf:
                yield Row(setting, size, algorithm, None, *place, paired=True, median_us=us, statistic=BY_MODEL)
        if choose is not None and (choice := choose(base_collective(area.collective), n, p, nodes)) is not None:
            us, ran = _us(net, area, n, choice), {"algorithm": choice.algorithm}
            yield Row(setting, size, name, None, *place, ran, True, median_us=us, statistic=BY_MODEL, fixed=True)


def _us(net: Network, area: Area, nbytes: int, choice: Choice) -> float:
    """Return the µs of a choice, in its chunks or in the best ones."""
    base, nodes = base_collective(area.collective), area.nodes
    ways = CHUNKS if choice.in_best_chunks else ((choice.chunk_bytes or WHOLE, choice.window),)
    n, (chunks, windows) = np.full(len(ways), nbytes), zip(*ways)
    return float(model_us(net, base, choice.algorithm, area.p, True, nodes, n, chunks, windows).min())


def _setting(net: Network, collective: str) -> Setting:
    return Setting(collective, f"by the model of {net.name}")


def _environment(net: Network) -> dict[str, str]:
    return {"network": "; ".join(in_words(net))}
