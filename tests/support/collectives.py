"""Facts of collectives and their algorithms, derived from the registry.

A name is that of a method or of a collective: "Reduce_scatter_block" or "reduce_scatter".
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from operator import attrgetter
from typing import Any

from mpi4py import MPI

import mpicoll
from mpicoll.dispatch.methods import METHODS, Method
from mpicoll.errors import PreconditionError
from mpicoll.schedules.collectives import COLLECTIVES, Collective, base_collective, from_all_ranks
from mpicoll.schedules.grouping import uneven
from mpicoll.schedules.nested import Of
from mpicoll.schedules.parameters import Groups
from mpicoll.schedules.registry import Algorithm, every, exact_algorithms, find, registered

ENGINES = ("mpi4py", "compiled")
# The methods of a collective without those that take counts beside the buffers, by the collective's name.
METHOD_NAMES = {m.collective: m.name for m in METHODS.values() if "counts" not in m.takes.split()}
EQUAL_BLOCKS = tuple(name for name in METHOD_NAMES if name in COLLECTIVES)
VECTOR = tuple(name for name in METHOD_NAMES if name not in COLLECTIVES)      # a count for each block


def meaning(name: str) -> Collective:
    """Return what a method or a collective does."""
    return COLLECTIVES[base_collective(name.lower())]


def method_of(name: str) -> Method:
    """Return a method by its own name or by that of its collective."""
    return METHODS[METHOD_NAMES.get(name, name)]


def has_in_place(name: str) -> bool:
    """Return whether MPI.IN_PLACE may stand for a buffer."""
    return {"send", "recv"} <= set(method_of(name).takes.split())


def has_whole_vector(name: str) -> bool:
    """Return whether a rank has one vector, and no block for each rank."""
    return meaning(name).naming == "vector"


def roots(name: str, *ranks: int) -> tuple[int, ...]:
    """Return ranks as roots of a collective, once each; 0 if it has no root."""
    return tuple(sorted(set(ranks))) if meaning(name).rooted else (0,)


EQUAL_METHODS = tuple(name for name, m in METHODS.items() if m.takes and m.collective in COLLECTIVES)   # with buffers
REDUCING = tuple(name for name in EQUAL_BLOCKS if meaning(name).reduces)
REDUCING_METHODS = tuple(name for name in EQUAL_METHODS if meaning(name).reduces)
AVERAGED = tuple(name for name in REDUCING if meaning(name).covers is from_all_ranks)        # take mpicoll.AVG
AVERAGED_METHODS = tuple(name for name in REDUCING_METHODS if meaning(name).covers is from_all_ranks)


# -- algorithms


def algorithms(collective: str) -> list[str]:
    """Return the algorithms of a collective that run on this number of ranks."""
    return [name for name in exact_algorithms(collective) if find(collective, name).serves(MPI.COMM_WORLD.size)]


def specs(collectives: tuple[str, ...] = EQUAL_BLOCKS) -> list[tuple[str, str]]:
    """Return each (collective, algorithm) that runs on this number of ranks."""
    return [(collective, name) for collective in collectives for name in algorithms(collective)]


def variants(collectives: tuple[str, ...] = EQUAL_BLOCKS) -> Iterator[tuple[str, str]]:
    """Yield (collective, algorithm with parameters): a few rows of its proof grid, and algorithms as parameters."""
    p = MPI.COMM_WORLD.size
    for entry in filter(attrgetter("is_exact"), registered()):
        rows = [row for grid in entry.grid for row in grid.rows(p)]
        rows = rows[:: max(1, len(rows) // 3)][:3] + list(nested(entry, p))
        for spec in dict.fromkeys(spec_of(entry.name, row) for row in rows):
            for collective in collectives:
                if base_collective(collective) == entry.collective.name:
                    with suppress(PreconditionError):
                        mpicoll.schedule(entry.collective.name, spec, p)
                        yield collective, spec


def nested(entry: Algorithm, p: int, number: int = 3) -> Iterator[dict[str, Any]]:
    """Yield random choices of parameters that are algorithms, on groups of unequal size."""
    kinds = {name: parameter.kind for name, parameter in entry.parameters.items()}
    draw = random.Random(f"{entry.title} {p}")
    for _ in range(number if any(isinstance(kind, Of) for kind in kinds.values()) else 0):
        yield {name: draw.choice(every(kind.collective)(p)) if isinstance(kind, Of) else uneven(p)
               for name, kind in kinds.items() if isinstance(kind, Of | Groups)}


def spec_of(name: str, row: dict[str, Any]) -> str:
    """Return an algorithm and its parameters as using() takes them."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in row.items())})"
