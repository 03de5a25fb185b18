"""A network as the cost model sees it: what messages inside a node and between nodes cost, and reductions and copies.

The model is LogGP's (Alexandrov, Ionescu, Schauser, Scheiman, LogGP: incorporating long messages into the LogP model,
1995) with a rate for short messages and one for long ones, and a level for messages inside a node. Times are in
microseconds, rates in bytes per microsecond, which are megabytes per second.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from .fields import check_names, number, positive, whole
from .topology import Topology, parse_topology, topology_content

if TYPE_CHECKING:
    from importlib.abc import Traversable

SUFFIX = ".json"
TURNS, PORTS, TOPOLOGY = ("cores", "turn"), "ports", "topology"  # what a network's file may leave out
NOT_KEPT = ("name", "rough")  # what it does not hold


@dataclass(frozen=True)
class Level:
    """The messages of one level.

    - latency: µs from the start of a short message to its end.
    - rendezvous: µs that a long message takes beyond that.
    - gap: µs for every further message that a rank sends or receives at once.
    - short_rate, rate: bytes per µs of short and of long messages.
    - ports: the messages of which each has that rate where several are sent or received at once (the k-ported model of
      Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing systems, 1997).
    """

    latency: float
    rendezvous: float
    gap: float
    short_rate: float
    rate: float
    ports: int = 1


@dataclass(frozen=True)
class Network:
    """Both levels, the bytes up to which a message is short, and the rates at which a rank reduces and copies.

    The ranks of a node share the ports of its link. Where a node has more ranks than processors they take turns.

    - cores: the processors of a node; 0 where each rank has one.
    - turn: µs of a rank's turn on a processor that others wait for.
    - rough: whether it was measured in passing, so that small differences say nothing.
    - topology: the links between switches that nodes share; None where messages share only the links of nodes.
    """

    name: str
    node: Level
    links: Level
    short_bytes: float
    fold_rate: float
    copy_rate: float
    cores: int = 0
    turn: float = 0.0
    rough: bool = False
    topology: Topology | None = None


def network(name: str | os.PathLike[str]) -> Network:
    """Return the network of a file, or of a preset's name. Raises ArgumentError, which says what is wrong."""
    if str(name) in presets():
        return parse((_own() / f"{name}{SUFFIX}").read_text(), str(name))
    path = Path(name)
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ArgumentError(f"no network: cannot read {path}: {why}; presets are {', '.join(presets())}") from None


@cache
def presets() -> tuple[str, ...]:
    """Return the names of the networks that come with mpicoll."""
    names = (entry.name for entry in _own().iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))


def _own() -> Traversable:
    from importlib.resources import files  # here, since it loads much

    return files(__package__) / "networks"


def parse(text: str, where: str) -> Network:
    """Return the network that a JSON text describes. Raises ArgumentError that names the field."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ArgumentError(f"{where} is no JSON: {error}") from None
    optional = {*TURNS, TOPOLOGY}
    names = {field.name for field in fields(Network)} - {*NOT_KEPT, *optional}
    check_names(content, names, where, {"source", *optional})
    node, links = (_level(content[name], f"{where}: {name}") for name in ("node", "links"))
    short, fold, copy = (
        positive(content[name], f"{where}: {name}") for name in ("short_bytes", "fold_rate", "copy_rate")
    )
    cores, turn = (number(content.get(name, 0.0), f"{where}: {name}", 0.0) for name in TURNS)
    topology = parse_topology(content[TOPOLOGY], f"{where}: {TOPOLOGY}") if TOPOLOGY in content else None
    name = Path(where).name.removesuffix(SUFFIX)
    return Network(name, node, links, short, fold, copy, int(cores), turn, topology=topology)


def content(described: Network) -> dict[str, Any]:
    """Return what the file of a network holds."""
    kept = {name: value for name, value in asdict(described).items() if name not in (*NOT_KEPT, TOPOLOGY)}
    return kept if described.topology is None else {**kept, TOPOLOGY: topology_content(described.topology)}


def in_words(described: Network) -> tuple[str, ...]:
    """Return the costs of messages, reductions and copies, one line each."""
    levels = {"inside a node": described.node}
    if described.links != described.node:
        levels["between nodes"] = described.links
    lines = [
        f"{name}: {level.latency:g} µs, long messages {level.rendezvous:g} more, others at once {level.gap:g}; "
        f"{level.short_rate:g} and {level.rate:g} MB/s{f', {level.ports} at once' * (level.ports > 1)}"
        for name, level in levels.items()
    ]
    lines.append(f"reduces {described.fold_rate:g} MB/s, copies {described.copy_rate:g} MB/s")
    if described.turn:
        lines.append(f"ranks of a node take turns of {described.turn:g} µs on its {described.cores} processors")
    if described.topology is not None:
        hop = described.topology.hop_latency
        lines.append(described.topology.in_words() + f", {hop:g} µs more for each link between switches" * bool(hop))
    return tuple(lines)


def two_level(described: Network, nodes: int) -> Network:
    """Return a network without its topology, as the closed form takes it for calls on so many nodes.

    Oversubscription divides what a node sends and receives, by fewer ports first: every message between nodes counts
    as between switches, unless a single switch has all nodes.
    """
    topology, links = described.topology, described.links
    if topology is None:
        return described
    if (slowdown := topology.slowdown(nodes)) > 1:
        ports = ceil(links.ports / slowdown)
        rate = links.ports * links.rate / slowdown / ports
        links = replace(links, rate=rate, short_rate=min(links.short_rate, rate), ports=ports)
    return replace(described, links=links, topology=None)


def _level(content: Any, where: str) -> Level:
    names = {field.name for field in fields(Level)} - {PORTS}
    check_names(content, names, where, {PORTS})
    rates = {name: positive(content[name], f"{where}.{name}") for name in ("short_rate", "rate")}
    times = {name: number(content[name], f"{where}.{name}", 0.0) for name in names - rates.keys()}
    return Level(**times, **rates, ports=whole(content.get(PORTS, 1), f"{where}.{PORTS}"))
