"""What the parameters of algorithms may be.

An algorithm declares each of its parameters with a kind, as an annotation:

    def knomial(p: int, rank: int, *, k: Radix = 4) -> Steps: ...

The kind says which values are in range, reads what a user wrote, and hands the algorithm what it works with: a
number, a partition of the ranks, another algorithm. So every radix, grouping and choice has one form everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Any, NamedTuple

from ..errors import ParameterError, spans

Partition = tuple[tuple[int, ...], ...]  # groups of ranks, each in ascending order, the group of rank 0 first
NODES = "nodes"
STAND_IN = 4  # ranks of a node where no communicator says which ranks share one


class Kind(ABC):
    """A kind of parameter: its range in words, and the way from a given value to the one an algorithm gets."""

    range: str = ""

    @abstractmethod
    def settle(self, value: Any, p: int, nodes: Partition | None) -> Any:
        """The value an algorithm gets. Raises ValueError for one out of range."""

    def turned(self, settled: Any, p: int, by: int) -> Any:
        """The value for ranks renamed by rank - by, as when a root moves."""
        return settled


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number of at least `low`; at most the number of ranks where `up_to_p`."""

    low: int
    up_to_p: bool = False

    @property
    def range(self) -> str:  # type: ignore[override]
        """The range in words."""
        return f"a whole number from {self.low} to p" if self.up_to_p else f"a whole number of at least {self.low}"

    def settle(self, value: Any, p: int, nodes: Partition | None) -> int:
        """The number itself."""
        if type(value) is not int or value < self.low or (self.up_to_p and value > p):
            raise ValueError(f"it must be {self.range}" + (f" = {p}" if self.up_to_p else ""))
        return value


@dataclass(frozen=True)
class Groups(Kind):
    """A partition of the ranks: "nodes" (those that share memory), ranks per group, or the groups themselves."""

    range = "nodes, the ranks per group (at least 1), or groups that hold each rank 0..p-1 once"

    def settle(self, value: Any, p: int, nodes: Partition | None) -> Partition:
        """The groups, in the order of their lowest ranks."""
        if value == NODES:
            value = nodes if nodes is not None else STAND_IN
        if type(value) is int:
            if value < 1:
                raise ValueError(f"it must be {self.range}")
            value = [range(first, min(first + value, p)) for first in range(0, p, value)]
        try:
            groups = sorted(tuple(sorted(group)) for group in value)
            ranks = [rank for group in groups for rank in group]
            wrong = sorted({rank for rank in ranks if not 0 <= rank < p or type(rank) is not int})
        except TypeError:
            raise ValueError(f"it must be {self.range}") from None
        missing, twice = sorted(set(range(p)) - set(ranks)), sorted({r for r in ranks if ranks.count(r) > 1})
        for what, which in (("names", wrong), ("leaves out", missing), ("holds more than once", twice)):
            if which:
                raise ValueError(f"each of the ranks 0..{p - 1} must be in one group, and it {what} {spans(which)}")
        return tuple(group for group in groups if group)

    def turned(self, settled: Partition, p: int, by: int) -> Partition:
        """The same groups under the ranks' new names."""
        return tuple(sorted(tuple(sorted((rank - by) % p for rank in group)) for group in settled))


@dataclass(frozen=True)
class Of(Kind):
    """Another algorithm, of one of these collectives: a name or "name(key=value)"."""

    collective: str

    @property
    def range(self) -> str:  # type: ignore[override]
        """The range in words."""
        return f"an algorithm of {self.collective}"

    def settle(self, value: Any, p: int, nodes: Partition | None) -> Any:
        """The algorithm with its own parameters, as a building block. Raises UnknownAlgorithm, ValueError."""
        from .registry import Chosen, parse_spec

        if not isinstance(value, str):
            raise ValueError(f"it must be {self.range}")
        entry, given = parse_spec(self.collective, value)
        return Chosen(entry, given, nodes)

    def turned(self, settled: Any, p: int, by: int) -> Any:
        """The same algorithm, nodes under the ranks' new names."""
        return settled if settled.nodes is None else replace(settled, nodes=Groups().turned(settled.nodes, p, by))


@dataclass(frozen=True)
class OneOf(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def range(self) -> str:  # type: ignore[override]
        """The range in words."""
        return " or ".join(self.words)

    def settle(self, value: Any, p: int, nodes: Partition | None) -> str:
        """The word."""
        if value not in self.words:
            raise ValueError(f"it must be {self.range}")
        return str(value)


class Parameter(NamedTuple):
    """One parameter of an algorithm: what it is when not given, and its kind."""

    default: Any
    kind: Kind

    def settle(self, who: str, name: str, value: Any, p: int, nodes: Partition | None) -> Any:
        """The value an algorithm gets. Raises ParameterError that names the range."""
        try:
            return self.kind.settle(value, p, nodes)
        except ParameterError:
            raise
        except ValueError as error:
            raise ParameterError(f"{who}: {name} is {value!r}; {error}") from None


Radix = Annotated[int, Whole(2)]
Fanout = Annotated[int, Whole(1)]
Share = Annotated[int, Whole(1, up_to_p=True)]
Grouping = Annotated[Any, Groups()]
Reducing = Annotated[Any, Of("reduce")]
Broadcasting = Annotated[Any, Of("bcast")]
Allreducing = Annotated[Any, Of("allreduce")]
ReduceScattering = Annotated[Any, Of("reduce_scatter")]
Allgathering = Annotated[Any, Of("allgather")]
Gathering = Annotated[Any, Of("gather")]
Scattering = Annotated[Any, Of("scatter")]
Alltoalling = Annotated[Any, Of("alltoall")]


# -- what an algorithm is proved on -------------------------------------------------------------------------


Values = Sequence[Any] | Callable[[int], Sequence[Any]]


def every_root(p: int) -> Sequence[int]:
    """All of them up to 16 ranks; beyond, where moving the root is but a renaming, the first, the last and two more."""
    return range(p) if p <= 16 else (0, 1, p // 2, p - 1)


def two_roots(p: int) -> Sequence[int]:
    """The first and the last rank."""
    return (0,) if p == 1 else (0, p - 1)


@dataclass(frozen=True)
class Grid:
    """Choices of parameters that are proved on every p in `ranks`: all combinations of the values given for each."""

    values: dict[str, Values]
    ranks: Sequence[int] = range(1, 65)
    roots: Callable[[int], Sequence[int]] = two_roots

    def rows(self, p: int) -> Iterator[dict[str, Any]]:
        """The choices at p ranks; values, or one of them, may be functions of p."""
        if p in self.ranks:
            columns = [values(p) if callable(values) else values for values in self.values.values()]
            for row in product(*columns):
                yield {name: x(p) if callable(x) else x for name, x in zip(self.values, row, strict=True)}


def over(
    ranks: Sequence[int] = range(1, 65), roots: Callable[[int], Sequence[int]] = two_roots, **values: Values
) -> Grid:
    """A grid: over(k=(2, 3, 8), groups=(4, uneven)); all values of a parameter, or one, may be a function of p."""
    return Grid(values, ranks, roots)


def uneven(p: int) -> Partition:
    """Groups of 1, 2, 3, 1, 2, 3 … consecutive ranks: nodes of unequal size.

    >>> uneven(5)
    ((0,), (1, 2), (3, 4))
    """
    groups, first, size = [], 0, 1
    while first < p:
        groups.append(tuple(range(first, min(first + size, p))))
        first, size = first + size, size % 3 + 1
    return tuple(groups)


def within(nodes: Partition | None, ranks: Sequence[int]) -> Partition | None:
    """The nodes of some of the ranks, under their places among these.

    >>> within(((0, 2, 4), (1, 3, 5)), (4, 5, 2))
    ((0, 2), (1,))
    """
    if nodes is None:
        return None
    node = {rank: i for i, members in enumerate(nodes) for rank in members}
    shared: dict[int, list[int]] = {}
    for place, rank in enumerate(ranks):
        shared.setdefault(node[rank], []).append(place)
    return tuple(map(tuple, shared.values()))


def leaders(groups: Partition) -> list[int]:
    """The first rank of every group."""
    return [group[0] for group in groups]


def in_order(p: int, inner: Any, middle: Any, groups: Partition, **others: Any) -> bool:
    """Whether the algorithm `inner` in each group, then `middle` among the groups, combine operands in rank order."""
    return consecutive(groups) and middle.ordered(leaders(groups)) and all(map(inner.ordered, groups))


def places(ranks: Sequence[int]) -> Callable[[int], int | None]:
    """A rank's place among these ranks, None for any other.

    >>> place = places((2, 5))
    >>> place(5), place(1)
    (1, None)
    """
    return {rank: place for place, rank in enumerate(ranks)}.get


def homes(groups: Partition) -> dict[int, int]:
    """The number of every rank's group.

    >>> homes(((0, 2), (1,)))
    {0: 0, 2: 0, 1: 1}
    """
    return {rank: number for number, group in enumerate(groups) for rank in group}


def consecutive(groups: Partition) -> bool:
    """Whether the ranks, group by group, are in rank order."""
    ranks = [rank for group in groups for rank in group]
    return ranks == sorted(ranks)


def dealt(p: int, groups: int = 3) -> Partition:
    """Ranks dealt out to groups one by one: nodes whose ranks do not follow each other.

    >>> dealt(5)
    ((0, 3), (1, 4), (2,))
    """
    return tuple(tuple(range(first, p, groups)) for first in range(min(groups, p)))
