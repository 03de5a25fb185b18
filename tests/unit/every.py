"""Every registered algorithm, as the parameter of a test; and one more, as a program may register it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mpicoll.schedules.collectives import from_all_ranks
from mpicoll.schedules.registry import Algorithm, algorithm, find, registered


def cases(*algorithms: Algorithm) -> list:
    """Return algorithms as parameters of a test, named by their usual names."""
    return [pytest.param(a, id=f"{a.collective.name}-{a.name}") for a in algorithms]


EVERY = cases(*registered())
VECTORS = cases(*(a for a in registered() if a.collective.naming == "vector"))
SIZED = cases(*(a for a in registered() if a.collective.naming != "none"))
MOVING = cases(*(a for a in registered() if not a.collective.reduces))
REDUCING = cases(*(a for a in registered() if a.collective.reduces))
ALONE = cases(*(a for a in registered() if a.serves(1)))
ROOTED = cases(*(a for a in registered() if a.collective.rooted))
AVERAGED = cases(*(a for a in registered() if a.collective.reduces and a.collective.covers is from_all_ranks))


def served(entry: Algorithm, p: int) -> int:
    """Return p, or the next number of ranks that this algorithm serves."""
    return next(more for more in range(p, 3 * p + 2) if entry.serves(more))


def barrier(name: str, body: Callable[..., Any] | None = None, excess: str = "", **declared: Any) -> Algorithm:
    """Register a barrier that does as `dissemination` does; a test that wants one takes the fixture `registry`."""

    def default(p, rank):
        return find("barrier", "dissemination")(p, rank)

    body = body or default
    words = "A barrier.", "", "Steps: lg(p)", "Bytes per rank: 0", "Scratch: 0", "Cost: none", "Source: none"
    body.__doc__ = "\n".join([*words, *[f"Excess: {excess}"] * bool(excess)])
    return algorithm("barrier", name=name, **declared)(body)
