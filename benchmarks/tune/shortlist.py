"""The candidates that are worth measuring at a size: those that the cost model puts near its best, without doubles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

import numpy as np

from mpicoll.cost.network import Network
from mpicoll.schedules.collectives import base_collective
from mpicoll.schedules.grouping import Partition
from mpicoll.schedules.ir import Strands
from mpicoll.schedules.registry import parse_spec
from mpicoll.schedules.schedule import schedule
from mpicoll.selection.modelled import OWN, costs

NEAR = 3.0  # times the model's best: an algorithm that takes longer in all chunks is left out
NEAR_IN_CHUNKS = 1.5  # times an algorithm's own best: chunks in which it takes longer are left out
COMPARED_UP_TO = 16  # ranks up to which programs are compared: on more hardly any are the same


class Choice(Protocol):
    """An algorithm, and in which chunks it runs."""

    @property
    def algorithm(self) -> str:
        """Return its name."""

    @property
    def chunk_bytes(self) -> int | None:
        """Return the bytes of a chunk; None for whole blocks."""

    @property
    def window(self) -> int:
        """Return the chunks in flight."""


SomeChoice = TypeVar("SomeChoice", bound=Choice)


class Shortlist:
    """The cost model's times of calls of nbytes: the same on every rank, since `auto` goes by the same numbers.

    Without a network everything is near, and so are algorithms of a program, of which the model knows nothing.
    """

    def __init__(self, network: Network | None, collective: str, p: int, nodes: Partition, nbytes: int) -> None:
        self.collective = collective
        lines = costs(network, collective, p, True, nodes, np.array([nbytes])) if network else []
        self.times = {(algorithm, chunk): float(us[0]) for algorithm, chunk, _, us in lines}
        self.least = min(self.times.values(), default=0.0)

    def is_near(self, algorithm: str) -> bool:
        """Return whether an algorithm may be the fastest, in whichever chunks."""
        times = [us for (name, _), us in self.times.items() if name == algorithm]
        if not self.times or not _is_own(self.collective, algorithm):
            return True
        return min(times, default=np.inf) <= NEAR * self.least

    def is_near_in(self, algorithm: str, chunk_bytes: int) -> bool:
        """Return whether these chunks may be its fastest; those that the model has no time for cut no block."""
        if not self.times or not _is_own(self.collective, algorithm):
            return True
        least = min((us for (name, _), us in self.times.items() if name == algorithm), default=0.0)
        return self.times.get((algorithm, chunk_bytes), np.inf) <= NEAR_IN_CHUNKS * least


def distinct(collective: str, p: int, nodes: Partition, choices: Sequence[SomeChoice]) -> list[SomeChoice]:
    """Return the choices without those that send the same messages in the same chunks as one before."""
    if p > COMPARED_UP_TO:
        return list(choices)
    kept: dict[object, SomeChoice] = {}
    for choice in choices:
        programs = _programs(base_collective(collective), choice.algorithm, p, nodes)
        kept.setdefault((programs, choice.chunk_bytes, choice.window), choice)
    return list(kept.values())


@lru_cache(maxsize=64)
def _programs(collective: str, algorithm: str, p: int, nodes: Partition) -> tuple[Strands, ...]:
    own = schedule(collective, algorithm, p, nodes=nodes)
    return tuple(own.program(rank) for rank in range(p))


def _is_own(collective: str, algorithm: str) -> bool:
    return parse_spec(base_collective(collective), algorithm)[0].body.__module__.startswith(OWN)
