"""Prove an algorithm for a number of ranks: all schedules that it declares, and the plans lowered from them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from functools import cache
from typing import Any

from ..errors import PreconditionError
from ..schedules.grids import every_root
from ..schedules.registry import Algorithm, find, list_algorithms, registered
from ..schedules.schedule import Schedule
from .check_plan import Lowered, check_scratch, check_tables, wanted
from .check_schedule import verify
from .determinism import check_reduction_order

Given = dict[str, Any]
ORDERED = 8  # ranks up to which the order of reductions in plans is proved


class _Remembered(Schedule):
    """A schedule that caches each rank's program, starts and ends, which a proof reads many times."""

    def __init__(self, entry: Algorithm, p: int, root: int, commutative: bool, parameters: Given) -> None:
        super().__init__(entry, p, root, commutative=commutative, **parameters)
        self.program = cache(super().program)  # type: ignore[method-assign]
        self.starts = cache(super().starts)  # type: ignore[method-assign]
        self.ends = cache(super().ends)  # type: ignore[method-assign]


def schedules(entry: Algorithm, p: int, parameters: Given | None = None) -> Iterator[Schedule]:
    """Yield every schedule that an algorithm is proved on for p ranks.

    These are its defaults at every root, its grid, and rank order if the algorithm keeps it.

    parameters: the choice to prove instead of the declared ones. If commutative operators run the same program, the
    proof of rank order covers both. Choices of the grid that do not suit p are left out.
    """
    for choice, roots in entry.choices(p) if parameters is None else ((parameters, every_root(p)),):
        try:
            ordered = entry.collective.reduces and entry.keeps_order(p, **choice)
            Schedule(entry, p, **choice)
        except PreconditionError:
            if (choice and parameters is None) or not entry.serves(p):
                continue
            raise
        for root in roots if entry.collective.rooted else (0,):
            if ordered:
                yield _Remembered(entry, p, root, False, choice)
            if root or not ordered:
                yield _Remembered(entry, p, root, True, choice)


def prove(entry: Algorithm, p: int, parameters: Given | None = None) -> int:
    """Prove an algorithm for p ranks, and return the number of schedules proved.

    check_plan.wanted selects the schedules whose lowered tables and scratch are proved; tables once for all parameters
    with which ranks do the same. The reduction order is proved for up to ORDERED ranks.
    """
    count, proved = 0, set[Hashable]()
    for schedule in schedules(entry, p, parameters):
        verify(schedule)
        count += 1
        if not wanted(schedule):
            continue
        lowered = Lowered(schedule)
        if schedule.root == 0:  # the docstring's formulas are for root 0
            check_scratch(schedule, lowered)
        if (lowered_from := _lowered_from(schedule)) not in proved:
            proved.add(lowered_from)
            check_tables(schedule, lowered)
            if schedule.root == 0 and p <= ORDERED and schedule.collective.reduces:
                check_reduction_order(schedule, lowered)
    return count


def _lowered_from(schedule: Schedule) -> Hashable:
    """Return all that lowering knows of a schedule."""
    programs, s = tuple(map(schedule.program, range(schedule.p))), schedule
    divides = s.algorithm.divides_where_owned(s.p, s.resolved)
    return programs, tuple(s.blocks), s.root, s.commutative, s.codec, divides


def selected(collective: str | None = None, name: str | None = None) -> list[Algorithm]:
    """Return the registered algorithms: all, those of a collective, or a single one."""
    if collective is not None and name is not None:
        return [find(collective, name)]
    if collective is not None and collective not in list_algorithms():
        find(collective, "")
    return [a for a in registered() if collective in (None, a.collective.name)]
