"""A program as a value: which calls on which communicators, and how ranks stagger. Its repr is what recreates it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

from support.collectives import has_in_place, meaning

from mpicoll.dispatch import methods
from mpicoll.schedules.collectives import (
    BLOCKING,
    NONBLOCKING,
    PERSISTENT,
    PLAIN,
    Collective,
    at_namesake,
    at_root,
)

NATIVE = "native"
METHODS = {**methods.METHODS, **methods.NEIGHBOR_METHODS}
NEIGHBOURING = tuple(methods.NEIGHBOR_METHODS)


def _methods(has: Callable[[Collective], bool]) -> tuple[str, ...]:
    """Return the methods of collectives that have a property."""
    return tuple(name for name in METHODS if has(meaning(name)))


GATHERING = _methods(lambda c: c.starts is at_namesake or c.repeats)
SCATTERING = _methods(lambda c: c.starts is at_root and c.ends is at_namesake)
PAIRWISE = _methods(lambda c: c.naming in ("pair", "edge") and not c.repeats)
PARTS = _methods(lambda c: c.reduces and c.ends is at_namesake)
TYPED = tuple(name for name in PAIRWISE if name.endswith("w"))
WITH_COUNTS = tuple(name for name, m in METHODS.items() if m.collective in PLAIN or "counts" in m.takes)
IN_PLACE = tuple(filter(has_in_place, methods.METHODS))
Where = tuple[int, str]         # number of a communicator, and the name of a graph of its ranks, if any


class Short:
    """Values whose repr leaves out what is as it is by default."""

    def __repr__(self) -> str:
        arguments = [(field.name, getattr(self, field.name), field.default) for field in fields(self)]  # type: ignore[arg-type]
        words = [f"{name}={value!r}" for name, value, default in arguments if value != default]
        return f"{type(self).__name__}({', '.join(words)})"


@dataclass(frozen=True, repr=False)
class Call(Short):
    """One collective on communicator number `on`.

    counts: elements of a block; where every rank may have its own, block i has counts[i % len(counts)].
    layout: how the elements lie (see kinds.LAYOUTS), on the `side` that is named; the other side is plain.
    with_gaps: blocks with counts of their own lie in reverse order, with gaps.
    has_recvcounts: the program passes recvcounts to Reduce_scatter.
    graph: of a neighbourhood collective, on a communicator of its own: a name in graphs.NAMES.
    """

    method: str
    algorithm: str = "auto"
    counts: tuple[int, ...] = (1,)
    type: str = "INT"
    layout: str = "plain"
    side: str = "both"
    op: str = "SUM"
    root: int = 0
    in_place: bool = False
    with_gaps: bool = False
    has_recvcounts: bool = True
    chunk_bytes: int | None = None
    window: int | None = None
    engine: str | None = None
    form: str = BLOCKING
    on: int = 0
    graph: str = ""

    @property
    def where(self) -> Where:
        """The communicator."""
        return self.on, self.graph

    @property
    def collective(self) -> str:
        """mpicoll's name of it."""
        return METHODS[self.method].collective

    @property
    def reduces(self) -> bool:
        """Return whether the call has an operator."""
        return meaning(self.method).reduces

    @property
    def rooted(self) -> bool:
        """Return whether the call has a root."""
        return meaning(self.method).rooted

    @property
    def starts(self) -> bool:
        """Return whether the call can be started without another rank."""
        return self.form == PERSISTENT or (self.form == NONBLOCKING and self.has_recvcounts)

    @property
    def choices(self) -> dict[str, Any]:
        """Return the arguments of using()."""
        options = {"chunk_bytes": self.chunk_bytes, "window": self.window, "engine": self.engine,
                 self.collective: None if self.algorithm == "auto" else self.algorithm}
        return {name: value for name, value in options.items() if value is not None}

    def count(self, source: int, destination: int) -> int:
        """Return the elements of the block between two ranks; in place, as many there as back.

        In a graph, `destination` is the position of the block in the source's send buffer.
        """
        if self.method in PAIRWISE and self.in_place:
            source, destination = sorted((source, destination))
        which = {"Scatterv": destination, "Reduce_scatter": destination}.get(self.method, source)
        if self.method in PAIRWISE:
            which = 3 * source + 5 * destination
        return self.counts[which % len(self.counts)]


@dataclass(frozen=True, repr=False)
class Program(Short):
    """Calls in order, each on one of the communicators; these are given by their ranks, in order.

    rounds: how often all of it is done; persistent requests are made once and started every time.
    skew: 0 for ranks that go on at once, complete at the end and in order; else a seed for what each rank does in its
    own way: delays, the order in which it starts what may be started in any, how and when it completes.
    check, progress: check mode; the progress thread.
    threads: how many of each rank play it at once, each on communicators of its own.
    """

    comms: tuple[tuple[int, ...], ...]
    calls: tuple[Call, ...]
    rounds: int = 1
    skew: int = 0
    check: bool = False
    progress: bool = True
    threads: int = 1

    def size(self, call: Call) -> int:
        """Return the number of ranks of a call."""
        return len(self.comms[call.on])

    @property
    def places(self) -> list[Where]:
        """The communicators: those of given ranks, then those of graphs."""
        of_graphs = {call.where for call in self.calls if call.graph}
        return [*((on, "") for on in range(len(self.comms))), *sorted(of_graphs)]

    @property
    def ranks(self) -> int:
        """The least ranks it needs."""
        return 1 + max(max(members) for members in self.comms)

    @property
    def times(self) -> int:
        """Return how often a rank makes each call."""
        return self.rounds * self.threads

    def tally(self) -> Counter[tuple[str, str, str]]:
        """Return the number of its calls by (collective, algorithm without parameters, form)."""
        return Counter((call.collective, call.algorithm.partition("(")[0], call.form) for call in self.calls)

    def smaller(self) -> Iterator[Program]:
        """Yield programs that differ by one simplification, the greatest first, to find the least one that hangs."""
        for threads in range(1, self.threads):
            yield replace(self, threads=threads)
        for calls in _without_one(self.calls):
            if calls:
                yield replace(self, calls=calls)
        for simple in ({"rounds": 1}, {"skew": 0}, {"check": False}):
            yield replace(self, **simple)  # type: ignore[arg-type]
        if len(used := sorted({call.on for call in self.calls})) < len(self.comms):
            calls = tuple(replace(call, on=used.index(call.on)) for call in self.calls)
            yield replace(self, comms=tuple(self.comms[on] for on in used), calls=calls)
        for i, call in enumerate(self.calls):
            for simple in SIMPLER:
                yield replace(self, calls=(*self.calls[:i], replace(call, **simple), *self.calls[i + 1 :]))
            if len(call.counts) == 1 and call.counts[0] > 1:
                less = replace(call, counts=(call.counts[0] // 2,))
                yield replace(self, calls=(*self.calls[:i], less, *self.calls[i + 1 :]))


SIMPLER: tuple[dict[str, Any], ...] = (
    {"counts": (1,)}, {"algorithm": "auto"}, {"layout": "plain"}, {"chunk_bytes": None}, {"window": None},
    {"engine": None}, {"in_place": False}, {"with_gaps": False}, {"root": 0}, {"form": BLOCKING},
)


def _without_one(values: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    for i in range(len(values)):
        yield values[:i] + values[i + 1 :]


def programs_of(size: int, quick: bool = False) -> int:
    """Return the number of programs that a test run plays on so many ranks: fewer where they share the cores."""
    return 110 if size <= 2 and not quick else 45
