"""Declare the parameters, numbers of ranks and roots that an algorithm is proved on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Values = Sequence[Any] | Callable[[int], Sequence[Any]]


def every_root(p: int) -> Sequence[int]:
    """Return all roots up to 16 ranks.

    Beyond, where moving the root is but a renaming, the first, the last and two more.
    """
    return range(p) if p <= 16 else (0, 1, p // 2, p - 1)


def two_roots(p: int) -> Sequence[int]:
    """Return the first and the last rank."""
    return (0,) if p == 1 else (0, p - 1)


@dataclass(frozen=True)
class Grid:
    """Choices of parameters that are proved on every p in `ranks`: all combinations of the values given for each."""

    values: dict[str, Values]
    ranks: Sequence[int] = range(1, 65)
    roots: Callable[[int], Sequence[int]] = two_roots

    def rows(self, p: int) -> Iterator[dict[str, Any]]:
        """Yield the choices at p ranks; values, or one of them, may be functions of p."""
        if p in self.ranks:
            columns = [values(p) if callable(values) else values for values in self.values.values()]
            for row in product(*columns):
                yield {name: x(p) if callable(x) else x for name, x in zip(self.values, row, strict=True)}


def over(
    ranks: Sequence[int] = range(1, 65), roots: Callable[[int], Sequence[int]] = two_roots, **values: Values
) -> Grid:
    """Return a grid, such as that of k=(2, 3, 8) and groups=(4, uneven).

    All values of a parameter, or one, may be a function of p.
    """
    return Grid(values, ranks, roots)
