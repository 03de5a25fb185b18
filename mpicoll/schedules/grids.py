"""Declare the parameters, numbers of ranks and roots that an algorithm is proved on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

Values = Sequence[Any] | Callable[[int], Sequence[Any]]


def every_root(p: int) -> Sequence[int]:
    """Return all roots up to 8 ranks; beyond, where moving the root is but a renaming, the first and the last."""
    return range(p) if p <= 8 else two_roots(p)


def two_roots(p: int) -> Sequence[int]:
    """Return the first and the last rank."""
    return (0,) if p == 1 else (0, p - 1)


@dataclass(frozen=True)
class Grid:
    """Choices of parameters that are proved on every p in `ranks`: all combinations of the values given for each.

    In a `paired` grid every value is proved beside one value of each other parameter only; which one changes with p.
    """

    values: dict[str, Values]
    ranks: Sequence[int] = range(1, 65)
    roots: Callable[[int], Sequence[int]] = two_roots
    paired: bool = False

    def rows(self, p: int) -> Iterator[dict[str, Any]]:
        """Yield the choices at p ranks; values, or one of them, may be functions of p."""
        if p in self.ranks:
            columns = [values(p) if callable(values) else values for values in self.values.values()]
            for row in _pairs(columns, p) if self.paired else product(*columns):
                yield {name: x(p) if callable(x) else x for name, x in zip(self.values, row, strict=True)}


def _pairs(columns: Sequence[Sequence[Any]], p: int) -> Iterator[tuple[Any, ...]]:
    for i in range(max(map(len, columns)) if all(columns) else 0):
        yield tuple(column[(i + j * p) % len(column)] for j, column in enumerate(columns))


def over(
    ranks: Sequence[int] = range(1, 65),
    roots: Callable[[int], Sequence[int]] = two_roots,
    *,
    paired: bool = False,
    **values: Values,
) -> Grid:
    """Return a grid, such as that of k=(2, 3, 8) and groups=(4, uneven).

    All values of a parameter, or one, may be a function of p.

    >>> list(over(paired=True, k=(2, 3, 8), groups=(4, 5)).rows(6))
    [{'k': 2, 'groups': 4}, {'k': 3, 'groups': 5}, {'k': 8, 'groups': 4}]
    """
    return Grid(values, ranks, roots, paired)
