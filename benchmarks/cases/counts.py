"""Counts of elements for p shares, n on average, for collectives that have counts for every rank."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

from ...selection.uneven import COLLECTIVES as UNEVEN


def even(n: int, p: int) -> list[int]:
    """Return equal counts, as in the OSU benchmarks.

    >>> even(6, 3)
    [6, 6, 6]
    """
    return [n] * p


def uneven(n: int, p: int) -> list[int]:
    """Return counts that rise evenly with the rank, from nothing to twice the average.

    >>> uneven(6, 1), uneven(6, 2), uneven(6, 3), uneven(6, 4)
    ([6], [0, 12], [0, 6, 12], [0, 4, 8, 12])
    """
    low = [2 * n * i // (p - 1) for i in range(p // 2)]
    return [*low, *[n] * (p % 2), *(2 * n - x for x in reversed(low))]


def spike(n: int, p: int) -> list[int]:
    """Return counts of which one rank in the middle has half: a hot spot, as an adaptive mesh has.

    >>> spike(6, 1), spike(6, 2), spike(6, 4)
    ([6], [6, 6], [4, 4, 12, 4])
    """
    rest = n * p - (n * p + 1) // 2 if p > 1 else 0
    shares = [rest * (i + 1) // (p - 1) - rest * i // (p - 1) for i in range(p - 1)]
    return [*shares[: p // 2], n * p - rest, *shares[p // 2 :]]


def skewed(n: int, p: int) -> list[int]:
    """Return counts from a long-tailed distribution, as of tokens by expert or keys by owner; the same each time.

    >>> skewed(100, 4), sum(skewed(7, 5))
    ([102, 42, 192, 64], 35)
    """
    draw = random.Random(p)
    weights = [draw.expovariate(1.0) for _ in range(p)]
    ends, so_far = [0], 0.0
    for weight in weights:
        so_far += weight
        ends.append(round(n * p * so_far / sum(weights)))
    return [high - low for low, high in pairwise(ends)]


def shares_of(kind: str, collective: str, p: int) -> list[int] | None:
    """Return the ranks' shares of a vector by the name in SHARES; None for equal ones.

    Raises ValueError for a collective whose ranks do not all know unequal counts.
    """
    if kind == EVEN:
        return None
    if collective not in UNEVEN:
        raise ValueError(f"--counts is {kind}, and {collective} has equal shares; give {' or '.join(UNEVEN)}")
    return SHARES[kind](1 << 20, p)


EVEN = "even"
SHARES: dict[str, Callable[[int, int], list[int]]] = {EVEN: even, "uneven": uneven, "spike": spike, "skewed": skewed}
