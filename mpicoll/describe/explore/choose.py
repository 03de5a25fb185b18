"""Choose what the page holds: schedules of algorithms by ranks, roots, parameters and operator order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ...errors import ParameterError, PreconditionError
from ...schedules.collectives import COLLECTIVES, base_collective
from ...schedules.grouping import Partition
from ...schedules.registry import Algorithm, find, parse_spec, registered
from ...schedules.schedule import Schedule
from .presets import PRESETS

RANKS = (*range(2, 10), 13, 16)
MOST_RANKS = 64
ALL_ROOTS = 9  # ranks up to which the page has every root; beyond, the first and the last
NodesByRanks = Mapping[int, Partition]
NODES: NodesByRanks = {}  # the nodes by number of ranks; algorithms take nodes of 4 ranks where there are none


class Wanted(NamedTuple):
    """An algorithm and the parameters that the page is to have: None for the defaults and those it is proved on."""

    entry: Algorithm
    parameters: dict[str, Any] | None


@dataclass(frozen=True)
class Key:
    """The choices that name one schedule on the page."""

    collective: str
    spec: str
    p: int
    root: int = 0
    ordered: bool = False

    def __str__(self) -> str:
        """Return the key as links have it, without the step.

        >>> str(Key("reduce", "knomial(k=3)", 5, 2, True))
        'reduce/knomial(k=3)/p=5/root=2/order=rank'
        """
        root = f"/root={self.root}" if self.root else ""
        return f"{self.collective}/{self.spec}/p={self.p}{root}{'/order=rank' * self.ordered}"


def wanted(collectives: Sequence[str] = (), specs: Sequence[str] = ()) -> list[Wanted]:
    """Return the algorithms of these collectives, all if none is named; only those of the specs if any is.

    Raises UnknownAlgorithm, ParameterError for what does not exist; ValueError for a spec that fits no collective.
    """
    names = list(dict.fromkeys(map(base_collective, collectives))) or list(COLLECTIVES)
    for name in names:
        if name not in COLLECTIVES:
            find(name, "")
    if not specs:
        return [Wanted(entry, None) for entry in registered() if entry.collective.name in names]
    chosen = []
    for spec in specs:
        name = spec.partition("(")[0].strip()
        having = [c for c in names if any(e.name == name and e.collective.name == c for e in registered())]
        if not having and len(names) == 1:
            find(names[0], name)
        if not having:
            raise ValueError(f"no algorithm is named {name!r}; `mpicoll list` has all names")
        for collective in having:
            entry, parameters = parse_spec(collective, spec)
            chosen.append(Wanted(entry, dict(parameters) if "(" in spec else None))
    return chosen


def schedules(
    algorithms: Sequence[Wanted], ranks: Sequence[int], nodes: NodesByRanks = NODES
) -> Iterator[tuple[Key, Schedule]]:
    """Yield every schedule of the algorithms on these numbers of ranks, with its key; of a graph, if it has edges."""
    for entry, given_parameters in algorithms:
        for p in ranks:
            choices = [given_parameters] if given_parameters is not None else _choices(entry, p)
            for number, parameters in enumerate(choices):
                roots = _roots(p) if entry.collective.rooted and (not number or len(choices) == 1) else (0,)
                for root in roots:
                    for key, schedule in orders(entry, p, root, nodes.get(p), parameters):
                        if entry.collective.naming != "edge" or schedule.blocks:
                            yield key, schedule


def with_tours(
    algorithms: Sequence[Wanted], ranks: Sequence[int], nodes: NodesByRanks = NODES
) -> list[tuple[Key, Schedule]]:
    """Return every schedule of the algorithms on these numbers of ranks, and those that the tours show there."""
    chosen = list(schedules(algorithms, ranks, nodes))
    keys = [key for tour in PRESETS for key in (tour.left, tour.right) if key]
    return chosen + missing(keys, chosen, ranks, nodes)


def reason(algorithms: Sequence[Wanted], p: int) -> str:
    """Return why the first of the algorithms has no schedule on p ranks."""
    entry, parameters = algorithms[0]
    try:
        Schedule(entry, p, **(parameters or {}))
    except (PreconditionError, ParameterError) as error:
        return str(error)
    return "there is one"


def missing(
    keys: Iterable[str], present: Sequence[tuple[Key, Schedule]], ranks: Sequence[int], nodes: NodesByRanks
) -> list[tuple[Key, Schedule]]:
    """Return the schedules of keys "collective/algorithm/p=N" that are not present, though algorithm and ranks are."""
    there = {str(key) for key, _ in present}
    names = {(key.collective, schedule.algorithm.name) for key, schedule in present}
    schedules = []
    for text in keys:
        collective, spec, size = text.split("/")
        entry, parameters = parse_spec(collective, spec)
        p = int(size.removeprefix("p="))
        if text not in there and p in ranks and (collective, entry.name) in names:
            schedules.append((Key(collective, spec, p), Schedule(entry, p, nodes=nodes.get(p), **dict(parameters))))
    return schedules


def _choices(entry: Algorithm, p: int) -> list[dict[str, Any]]:
    """Return the defaults, and the parameters that the algorithm is proved on, each once."""
    return list({spec_of(entry, parameters): parameters for parameters, _ in entry.choices(p)}.values())


def _roots(p: int) -> Sequence[int]:
    return range(p) if p <= ALL_ROOTS else (0, p - 1)


def orders(
    entry: Algorithm, p: int, root: int, nodes: Partition | None, parameters: dict[str, Any]
) -> Iterator[tuple[Key, Schedule]]:
    """Yield the schedule for any operator order, and that for rank order if the algorithm keeps it."""
    spec = spec_of(entry, parameters)
    for commutative in (True, False):
        try:
            if not commutative and not (entry.collective.reduces and entry.keeps_order(p, nodes, **parameters)):
                continue
            schedule = Schedule(entry, p, root, commutative=commutative, nodes=nodes, **parameters)
        except (PreconditionError, ParameterError):  # this p or these parameters do not suit
            continue
        yield Key(entry.collective.name, spec, p, root, not commutative), schedule


def spec_of(entry: Algorithm, parameters: dict[str, Any]) -> str:
    """Return an algorithm and its parameters as users write them."""
    words = ", ".join(f"{name}={value}".replace(" ", "") for name, value in parameters.items())
    return f"{entry.name}({words})" if words else entry.name
