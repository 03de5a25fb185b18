"""Every algorithm as plain facts: what its docstring claims and what is declared about it, in words and numbers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from ..errors import ParameterError, PreconditionError, spans
from ..proofs.check_schedule import measured_bytes
from ..proofs.determinism import ALWAYS, agreement
from ..proofs.symbolic import execute
from ..schedules.collectives import base_collective
from ..schedules.grids import Grid, Values
from ..schedules.registry import Algorithm, list_algorithms, registered
from ..schedules.schedule import Schedule

USUAL = 8  # ranks of an example
SHOWN = 6  # names in a row before they are only counted


def catalogue(only: str | None = None, algorithm: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """Return every algorithm's facts by collective, gather's again as gatherv's, and so on; fit for JSON.

    only, algorithm: the collective whose algorithms are wanted, and one of them by name; all others are left out then.
    """
    by_collective: dict[str, list[dict[str, Any]]] = {collective: [] for collective in list_algorithms()}
    for entry in registered():
        wanted = only is None or entry.collective.name == base_collective(only)
        if wanted and algorithm in (None, entry.name):
            by_collective[entry.collective.name].append(facts(entry))
    return {collective: by_collective[base_collective(collective)] for collective in by_collective}


def facts(entry: Algorithm) -> dict[str, Any]:
    """Return what is claimed and declared of one algorithm."""
    claims, p = entry.claims, served(entry, USUAL)
    return {
        "name": entry.name,
        "idea": claims.idea,
        "steps": claims.steps,
        "bytes_per_rank": claims.bytes_per_rank,
        "scratch": claims.scratch,
        "cost": claims.cost,
        "excess": claims.excess or None,
        "source": claims.source,
        "keeps_operand_order": entry.keeps_order(p) if entry.collective.reduces else None,
        "order_depends_on_parameters": entry.collective.reduces and callable(entry.ordered),
        "same_bits": same_bits(entry),
        "parameters": {name: {"default": x.default, "range": x.kind.range} for name, x in entry.parameters.items()},
        "requires": entry.requires.words if entry.requires else None,
        "direct": entry.direct,
        "strands": strands(entry, p),
        "proved_with": list(map(grid_words, entry.grid)),
    }


def same_bits(entry: Algorithm) -> dict[str, Any] | None:
    """Return what a result's bits do not depend on; None for collectives that reduce nothing, and only move bits.

    on_all_ranks is None if no two ranks have the same result, or if the answer is unknown. unless says why it is
    unknown, or for which parameters and ranks the bits differ.
    """
    if not entry.collective.reduces:
        return None
    result = agreement(entry)
    always = {words.replace(" ", "_"): True for words in ALWAYS}
    return {"on_all_ranks": result.same, "unless": result.unless or None, **always}


def same_bits_words(entry_facts: dict[str, Any]) -> str:
    """Return the same in words, for an algorithm that reduces.

    >>> same_bits_words({"same_bits": {"on_all_ranks": False, "unless": "p = 3"}})
    'from run to run, for any chunk size, on either engine; on all ranks unless p = 3'
    """
    same, unless = entry_facts["same_bits"]["on_all_ranks"], entry_facts["same_bits"]["unless"]
    if same is None:
        return ", ".join(ALWAYS) + (f"; on all ranks: {unless}" if unless else "")
    return f"{', '.join(ALWAYS)}; on all ranks unless {unless}" if unless else ", ".join(("on all ranks", *ALWAYS))


def suits(entry: Algorithm, p: int, **parameters: Any) -> bool:
    """Return whether there is a schedule for p ranks."""
    try:
        Schedule(entry, p, **parameters)
    except (PreconditionError, ParameterError):
        return False
    return True


def served(entry: Algorithm, least: int) -> int:
    """Return the smallest number of ranks from `least` on that will do, with the algorithm's defaults."""
    return next(p for p in range(least, 1024) if suits(entry, p))


def strands(entry: Algorithm, p: int) -> int:
    """Return how many strands move blocks side by side."""
    schedule = Schedule(entry, p)
    return len({schedule.strand(block) for block in schedule.blocks}) or 1


class Measured(NamedTuple):
    """The measured cost of a schedule: steps, and the most that a rank sent or received, as a share of n."""

    steps: int
    bytes: Fraction


def measured(entry: Algorithm, p: int, **parameters: Any) -> Measured | None:
    """Return the measured cost of an algorithm at p ranks; None if it does not support p."""
    if not suits(entry, p, **parameters):
        return None
    schedule = Schedule(entry, p, **parameters)
    trace = execute(schedule)
    return Measured(trace.steps, measured_bytes(schedule, trace))


# -- a grid in words ------------------------------------------------------------------------------------------


def grid_words(grid: Grid) -> str:
    """Return what a grid holds, functions of p by their name or at 8 ranks.

    >>> from mpicoll.schedules.grids import over
    >>> from mpicoll.schedules.grouping import uneven
    >>> grid_words(over(range(1, 14), k=(2, 3), groups=(4, uneven)))
    'k = 2, 3 and groups = 4, uneven for p = 1-13'
    """
    joined = " beside " if grid.paired else " and "
    return f"{joined.join(f'{name} = {_row(row)}' for name, row in grid.values.items())} for p = {spans(grid.ranks)}"


def _row(values: Values) -> str:
    row = values(USUAL) if callable(values) else values
    return ", ".join(map(_word, row)) if len(row) <= SHOWN else f"each of {len(row)}"


def _word(value: Any) -> str:
    if callable(value):
        return value.__name__ if value.__name__.isidentifier() else f"{_word(value(USUAL))} at p = {USUAL}"
    if isinstance(value, tuple) and isinstance(value[0], tuple):
        return f"groups of {', '.join(str(len(group)) for group in value)}"
    return str(value)
