"""How many elements each of p shares has, where collectives have counts for every rank: n on average."""

from __future__ import annotations

from collections.abc import Callable


def even(n: int, p: int) -> list[int]:
    """All the same, as in the OSU benchmarks.

    >>> even(6, 3)
    [6, 6, 6]
    """
    return [n] * p


def uneven(n: int, p: int) -> list[int]:
    """From nothing to twice the average, rising evenly with the rank.

    >>> uneven(6, 1), uneven(6, 2), uneven(6, 3), uneven(6, 4)
    ([6], [0, 12], [0, 6, 12], [0, 4, 8, 12])
    """
    low = [2 * n * i // (p - 1) for i in range(p // 2)]
    return [*low, *[n] * (p % 2), *(2 * n - x for x in reversed(low))]


EVEN = "even"
SHARES: dict[str, Callable[[int, int], list[int]]] = {EVEN: even, "uneven": uneven}
