"""Every registered algorithm, as the parameter of a test."""

from __future__ import annotations

import pytest

from mpicoll.schedules.registry import Algorithm, registered


def cases(*algorithms: Algorithm) -> list:
    """Algorithms as parameters of a test, named as people name them."""
    return [pytest.param(a, id=f"{a.collective.name}-{a.name}") for a in algorithms]


EVERY = cases(*registered())
VECTORS = cases(*(a for a in registered() if a.collective.naming == "vector"))
SIZED = cases(*(a for a in registered() if a.collective.naming != "none"))
MOVING = cases(*(a for a in registered() if not a.collective.reduces))
REDUCING = cases(*(a for a in registered() if a.collective.reduces))
ALONE = cases(*(a for a in registered() if a.serves(1)))
ROOTED = cases(*(a for a in registered() if a.collective.rooted))


def served(entry: Algorithm, p: int) -> int:
    """p, or the next number of ranks that will do for this algorithm."""
    return next(more for more in range(p, 3 * p + 2) if entry.serves(more))
