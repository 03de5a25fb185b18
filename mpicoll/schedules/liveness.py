"""When a strand reads and writes each place, and what follows for an average: when its results are divided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .ir import Loc, Recv, Reduce, Send, Step, Strand


def last(strand: Strand, of: Callable[[Step], list[Loc]]) -> dict[Loc, int]:
    """Return the last step in which each place is read, or written."""
    return {loc: index for index, step in enumerate(strand) for loc in of(step)}


def read(step: Step) -> list[Loc]:
    """Return the places a step reads."""
    found: list[Loc] = []
    for op in step:
        if isinstance(op, Reduce):
            found += [op.src, op.dst]
        elif not isinstance(op, Recv):
            found += [Loc(op.buffer, b) for b in op.blocks]
    return found


def written(step: Step) -> list[Loc]:
    """Return the places a step writes."""
    found: list[Loc] = []
    for op in step:
        if isinstance(op, Reduce):
            found.append(op.dst)
        elif not isinstance(op, Send):
            found += [Loc(op.buffer, b) for b in op.blocks]
    return found


def due(
    kept: Sequence[Loc], last_read: Mapping[Loc, int], last_write: Mapping[Loc, int], early: bool
) -> dict[int, list[Loc]]:
    """Return the steps that end with a rank dividing results that it keeps.

    Late: the last step that uses a result. Sums travel, and every rank divides what it keeps, which is right for
    any algorithm. Early, for algorithms that declare it (see Algorithm.finishes): the step that writes a result
    last, if that is a fold. A fold that nothing follows has put in the last contribution, and what was divided
    travels: one rank divides a block, not all of them. What is received last has then been divided before.
    """
    found: dict[int, list[Loc]] = {}
    for loc in kept:
        at = last_write[loc] if early else max(last_write[loc], last_read.get(loc, -1))
        found.setdefault(at, []).append(loc)
    return found
