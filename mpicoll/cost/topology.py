"""Topologies: which links between switches a message takes from node to node, and at what rate a link carries bytes.

A node is a number from 0 on, its place in the topology. Links carry as much in each direction at once, so that a link
is named for one direction. Routes are minimal and do not depend on load.

- Fat tree: Leiserson, Fat-trees: universal networks for hardware-efficient supercomputing, 1985.
- Dragonfly: Kim, Dally, Scott, Abts, Technology-driven, highly-scalable dragonfly topology, 2008.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from math import prod
from typing import Any, ClassVar

from ..errors import ArgumentError
from .fields import check_names, number, positive, whole

Link = tuple[int | str, ...]  # the name of one direction of a link
SWITCH = "switch"  # the kind in which no message shares a link between switches: the same as no topology


@dataclass(frozen=True, kw_only=True)
class Topology(ABC):
    """The links between switches. hop_latency: µs that a message takes for each of them on its way."""

    kind: ClassVar[str]
    hop_latency: float = 0.0

    @abstractmethod
    def check(self, nodes: int) -> None:
        """Raise ArgumentError, which names the field, if so many nodes have no place."""

    @abstractmethod
    def capacity(self, rate: float, ports: int) -> float:
        """Return the bytes per µs of a link between switches; rate and ports: of a node's link."""

    def slowdown(self, nodes: int) -> float:
        """Return by what the closed form divides the rate between so many nodes."""
        return 1.0

    @abstractmethod
    def route(self, sender: int, receiver: int) -> tuple[Link, ...]:
        """Return the links between switches from node to node, in order."""

    @abstractmethod
    def in_words(self) -> str:
        """Return a description of one line."""


@dataclass(frozen=True, kw_only=True)
class FatTree(Topology):
    """Switches of so many nodes under a core that is never full; consecutive nodes share a switch.

    oversubscription: what the nodes of a switch can send, over what its links to the core can carry.
    """

    kind: ClassVar[str] = "fat_tree"
    nodes_per_switch: int
    oversubscription: float

    def check(self, nodes: int) -> None:
        """Accept any number of nodes: there are as many switches as they need."""

    def capacity(self, rate: float, ports: int) -> float:
        """Return the bytes per µs of all links of a switch to the core together."""
        return self.nodes_per_switch * ports * rate / self.oversubscription

    def slowdown(self, nodes: int) -> float:
        """Return the oversubscription, or 1 for nodes of a single switch."""
        return self.oversubscription if nodes > self.nodes_per_switch else 1.0

    def route(self, sender: int, receiver: int) -> tuple[Link, ...]:
        """Return the links up from the sender's switch and down to the receiver's; none inside a switch."""
        up, down = sender // self.nodes_per_switch, receiver // self.nodes_per_switch
        return (("up", up), ("down", down)) if up != down else ()

    def in_words(self) -> str:
        """Return a description of one line."""
        return f"fat tree, {self.nodes_per_switch} nodes per switch, oversubscription {self.oversubscription:g}"


@dataclass(frozen=True, kw_only=True)
class Direct(Topology):
    """Switches linked to each other. link_rate: bytes per µs of a link, that of a node's link if None."""

    link_rate: float | None = None

    def capacity(self, rate: float, ports: int) -> float:
        """Return the bytes per µs of a link: as a rule what a node's link gives one message."""
        return self.link_rate or rate


@dataclass(frozen=True, kw_only=True)
class Torus(Direct):
    """A node per switch, linked to the next and the previous one in every dimension; the last dimension counts fastest.

    A message takes the dimensions in order, each the shorter way. Where both are as long, it goes up from an even
    coordinate and down from an odd one.
    """

    kind: ClassVar[str] = "torus"
    dims: tuple[int, ...]

    def check(self, nodes: int) -> None:
        """Raise ArgumentError if the dimensions do not multiply to the number of nodes."""
        if prod(self.dims) != nodes:
            raise ArgumentError(
                f"topology.dims is {self._size}, a torus of {prod(self.dims)} nodes, and the ranks are on {nodes}; "
                f"take dims that multiply to {nodes}, or ranks on {prod(self.dims)} nodes"
            )

    def route(self, sender: int, receiver: int) -> tuple[Link, ...]:
        """Return the links in the order of the dimensions."""
        return tuple(self._links(sender, receiver))

    def _links(self, at: int, receiver: int) -> Iterator[Link]:
        stride = prod(self.dims)
        for dimension, size in enumerate(self.dims):
            stride //= size
            coordinate, goal = at // stride % size, receiver // stride % size
            ahead = (goal - coordinate) % size
            up = 2 * ahead < size or (2 * ahead == size and coordinate % 2 == 0)
            while coordinate != goal:
                yield dimension, "+" if up else "-", at
                following = (coordinate + (1 if up else -1)) % size
                at, coordinate = at + (following - coordinate) * stride, following

    @property
    def _size(self) -> str:
        return " x ".join(map(str, self.dims))

    def in_words(self) -> str:
        """Return a description of one line."""
        return f"torus of {self._size} nodes"


@dataclass(frozen=True, kw_only=True)
class Dragonfly(Direct):
    """Groups of routers of nodes; a link between any two routers of a group, and one between any two groups.

    Group g has its link to group h at router (h - g - 1) mod groups mod routers. A message takes at most three links:
    to that router, to the other group, and to the router of its receiver.
    """

    kind: ClassVar[str] = "dragonfly"
    groups: int
    routers: int
    nodes: int

    def check(self, nodes: int) -> None:
        """Raise ArgumentError if there are more nodes than places."""
        places = self.groups * self.routers * self.nodes
        if nodes > places:
            raise ArgumentError(
                f"topology.groups is {self.groups}, of {self.routers} routers of {self.nodes} nodes: {places} places "
                f"for {nodes} nodes; take more groups, or fewer ranks"
            )

    def route(self, sender: int, receiver: int) -> tuple[Link, ...]:
        """Return the links of the minimal route."""
        (group, router), (goal, last) = (self._router(node) for node in (sender, receiver))
        if group == goal:
            return self._local(group, router, last)
        leaves, enters = ((to - at - 1) % self.groups % self.routers for at, to in ((group, goal), (goal, group)))
        return *self._local(group, router, leaves), ("global", group, goal), *self._local(goal, enters, last)

    def _router(self, node: int) -> tuple[int, int]:
        """Return the group of a node, and its router there."""
        return divmod(node // self.nodes, self.routers)

    @staticmethod
    def _local(group: int, router: int, other: int) -> tuple[Link, ...]:
        return (("local", group, router, other),) if router != other else ()

    def in_words(self) -> str:
        """Return a description of one line."""
        return f"dragonfly of {self.groups} groups of {self.routers} routers of {self.nodes} nodes"


def _dims(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not value:
        raise ArgumentError(f"{where} is {value!r}; it must be a list of sizes, such as [4, 4, 2]")
    return tuple(whole(size, f"{where}[{i}]") for i, size in enumerate(value))


KINDS: dict[str, type[Topology]] = {kind.kind: kind for kind in (FatTree, Torus, Dragonfly)}
CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "hop_latency": number, "link_rate": positive, "dims": _dims,
    "nodes_per_switch": whole, "oversubscription": lambda value, where: number(value, where, 1.0),
    "groups": whole, "routers": whole, "nodes": whole,
}  # fmt: skip
OPTIONAL = {"hop_latency", "link_rate"}


def parse_topology(content: Any, where: str) -> Topology | None:
    """Return the topology that the object of a network's file describes; None for a single switch.

    Raises ArgumentError that names the field.
    """
    check_names(content, {"kind"}, where, content.keys() if isinstance(content, dict) else frozenset())
    kinds = (SWITCH, *KINDS)
    if content["kind"] not in kinds:
        raise ArgumentError(f"{where}.kind is {content['kind']!r}; it must be one of {', '.join(kinds)}")
    if content["kind"] == SWITCH:
        check_names(content, {"kind"}, where)
        return None
    build: Callable[..., Topology] = KINDS[content["kind"]]
    names = {field.name for field in fields(KINDS[content["kind"]])}
    check_names(content, names - OPTIONAL, where, names & OPTIONAL | {"kind"})
    checked = {name: CHECKS[name](content[name], f"{where}.{name}") for name in names & content.keys()}
    return build(**checked)


def topology_content(topology: Topology) -> dict[str, Any]:
    """Return what the file of a network holds of its topology."""
    return {"kind": topology.kind, **{name: value for name, value in asdict(topology).items() if value is not None}}
