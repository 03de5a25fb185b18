"""The types and ranges of algorithms' parameters.

An algorithm declares each of its parameters with a kind, as an annotation:

    def knomial(p: int, rank: int, *, k: Radix = 4) -> Steps: ...

The kind says which values are in range, reads what a user wrote, and hands the algorithm what it works with: a
number, a partition of the ranks, another algorithm. So every radix, grouping and choice has one form everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from ..compression import codecs
from ..errors import ParameterError, spans
from .graphs import Graph, ring
from .grouping import Partition, balanced, by_blocks
from .stencils import Stencil, row

NODES = "nodes"
TOPOLOGY = "topology"
ALL = "all"
OWN = "own"  # of a codec: the group that it has by itself
STAND_IN = 4  # ranks of a node where no communicator says which ranks share one


class Kind(ABC):
    """A kind of parameter: its range in words, and the way from a given value to the one an algorithm gets."""

    range: str = ""
    of_codes = False  # whether it says how blocks are encoded, or may hold what does

    @abstractmethod
    def resolve(self, value: Any, p: int, nodes: Partition | None) -> Any:
        """Return the value an algorithm gets. Raises ValueError for one out of range."""

    def turned(self, resolved: Any, p: int, by: int) -> Any:
        """Return the value for ranks renamed by rank - by, as when a root moves."""
        return resolved


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number of at least `low`; at most the number of ranks where `up_to_p`."""

    low: int
    up_to_p: bool = False

    @property
    def range(self) -> str:  # type: ignore[override]
        """Return the range in words."""
        return f"a whole number from {self.low} to p" if self.up_to_p else f"a whole number of at least {self.low}"

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> int:
        """Return the number itself."""
        if type(value) is not int or value < self.low or (self.up_to_p and value > p):
            raise ValueError(f"it must be {self.range}" + (f" = {p}" if self.up_to_p else ""))
        return value


@dataclass(frozen=True)
class Bound(Whole):
    """The most messages at once, ranks of a group or the like: a number of at least `low`, or ALL for no bound."""

    low: int = 1

    @property
    def range(self) -> str:  # type: ignore[override]
        """Return the range in words."""
        return f"{ALL}, or {super().range}"

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> int:
        """Return the number; p for ALL, since there are no more peers or ranks."""
        return p if value == ALL else super().resolve(value, p, nodes)


@dataclass(frozen=True)
class Groups(Kind):
    """A partition of the ranks: "nodes" (those that share memory), ranks per group, or the groups themselves."""

    range = "nodes, the ranks per group (at least 1), or groups that hold each rank 0..p-1 once"

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> Partition:
        """Return the groups, in the order of their lowest ranks."""
        if value == NODES:
            value = nodes if nodes is not None else STAND_IN
        if type(value) is int and value < 1:
            raise ValueError(f"it must be {self.range}")
        try:
            groups = by_blocks(p, value) if type(value) is int else tuple(sorted(tuple(sorted(g)) for g in value))
            wrong = {rank for group in groups for rank in group if not 0 <= rank < p or type(rank) is not int}
        except TypeError:
            raise ValueError(f"it must be {self.range}") from None
        if wrong:
            raise _misplaced(p, "names", wrong)
        return partition(p, groups)

    def turned(self, resolved: Partition, p: int, by: int) -> Partition:
        """Return the same groups under the ranks' new names."""
        return tuple(sorted(tuple(sorted((rank - by) % p for rank in group)) for group in resolved))


@lru_cache(maxsize=16)
def partition(p: int, groups: Partition) -> Partition:
    """Return groups without the empty ones. Raises ValueError unless each of p ranks is in one."""
    ranks = [rank for group in groups for rank in group]
    missing, twice = set(range(p)).difference(ranks), {rank for rank, n in Counter(ranks).items() if n > 1}
    for what, misplaced in (("leaves out", missing), ("holds more than once", twice)):
        if misplaced:
            raise _misplaced(p, what, misplaced)
    return tuple(group for group in groups if group)


def _misplaced(p: int, what: str, ranks: Collection[Any]) -> ValueError:
    """Return the error of ranks that are not in one group."""
    return ValueError(f"each of the ranks 0..{p - 1} must be in one group, and it {what} {spans(sorted(ranks))}")


@dataclass(frozen=True)
class Dimensions(Kind):
    """The sizes of a grid of ranks, consecutive ones along the last dimension, or how many dimensions it has."""

    range = "the sizes of a grid of all ranks, such as (4, 2), or how many dimensions it has (at least 1)"

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> tuple[int, ...]:
        """Return the sizes above 1; the most balanced ones of p ranks where only their number is given."""
        sizes = (value,) if type(value) is int else value
        if not isinstance(sizes, tuple) or not sizes or any(type(size) is not int or size < 1 for size in sizes):
            raise ValueError(f"it must be {self.range}")
        sizes = balanced(p, value) if type(value) is int else sizes
        return tuple(size for size in sizes if size > 1) or (1,)


@dataclass(frozen=True)
class OneOf(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def range(self) -> str:  # type: ignore[override]
        """Return the range in words."""
        return " or ".join(self.words)

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> str:
        """Return the word."""
        if value not in self.words:
            raise ValueError(f"it must be {self.range}")
        return str(value)


@dataclass(frozen=True)
class Encoding(Kind):
    """A codec of mpicoll.compression: a name or "name(key=value)"."""

    range = "a codec"
    of_codes = True

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> codecs.Codec:
        """Return the codec. Raises ParameterError."""
        return value if isinstance(value, codecs.Codec) else codecs.parse(str(value))


@dataclass(frozen=True)
class Group(Kind):
    """A number of elements that a codec encodes together, or OWN: the number that the codec itself has."""

    range = f"{OWN}, or a whole number of at least 1"
    of_codes = True

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> Any:
        """Return the number, or OWN."""
        if value != OWN and (type(value) is not int or value < 1):
            raise ValueError(f"it must be {self.range}")
        return value


@dataclass(frozen=True)
class Neighbours(Kind):
    """The graph of a neighbourhood collective: that of the communicator's topology."""

    range = "the topology of the communicator"

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> Graph:
        """Return the graph; a ring of all ranks where no communicator says which ranks are neighbours."""
        if value == TOPOLOGY:
            return ring(p)
        if not isinstance(value, Graph) or value.p != p:
            raise ValueError(f"it must be {self.range}")
        return value


@dataclass(frozen=True)
class StencilNeighbours(Neighbours):
    """The same where every rank's neighbours are at the same offsets."""

    range = "the topology of a communicator of Create_stencil, with an offset of 1 along every dimension"

    def resolve(self, value: Any, p: int, nodes: Partition | None) -> Graph:
        """Return the graph; both neighbours on a ring of all ranks where no communicator says which."""
        graph = row(p) if value == TOPOLOGY else super().resolve(value, p, nodes)
        if not (isinstance(graph, Stencil) and graph.has_equal_blocks):
            raise ValueError(f"it must be {self.range}")
        return graph


class Parameter(NamedTuple):
    """One parameter of an algorithm: what it is when not given, and its kind."""

    default: Any
    kind: Kind

    def resolve(self, who: str, name: str, value: Any, p: int, nodes: Partition | None) -> Any:
        """Return the value an algorithm gets. Raises ParameterError that names the range."""
        try:
            return self.kind.resolve(value, p, nodes)
        except ParameterError:
            raise
        except ValueError as error:
            raise ParameterError(f"{who}: {name} is {value!r}; {error}") from None


Radix = Annotated[int, Whole(2)]
Fanout = Annotated[int, Whole(1)]
AtMost = Annotated[Any, Bound()]
Share = Annotated[int, Whole(1, up_to_p=True)]
Grouping = Annotated[Any, Groups()]
Grid = Annotated[Any, Dimensions()]
Neighbourhood = Annotated[Any, Neighbours()]
StencilNeighbourhood = Annotated[Any, StencilNeighbours()]
Codec = Annotated[Any, Encoding()]
GroupSize = Annotated[Any, Group()]
YesOrNo = Annotated[str, OneOf(("no", "yes"))]
