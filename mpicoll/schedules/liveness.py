"""When a strand reads and writes each place, and what follows for an average: when its results are divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from .collectives import Block
from .ir import Copy, Local, Recv, Reduce, Send, Step, Strand

Place = tuple[str, Block]  # a Loc, or an equal tuple, which takes less time to make


def last(strand: Strand, of: Callable[[Step], Iterable[Place]]) -> dict[Place, int]:
    """Return the last step in which each place is read, or written."""
    last_steps: dict[Place, int] = {}
    for index, step in enumerate(strand):
        for place in of(step):
            last_steps[place] = index
    return last_steps


def read(step: Step) -> list[Place]:
    """Return the places a step reads."""
    places: list[Place] = []
    for op in step:
        if isinstance(op, Reduce):
            places += op.src, op.dst
        elif isinstance(op, Copy):
            places.append(op.src)
        elif not isinstance(op, Recv):
            buffer = op.buffer
            places += [(buffer, block) for block in op.blocks]
    return places


def written(step: Step) -> list[Place]:
    """Return the places a step writes."""
    places: list[Place] = []
    for op in step:
        if isinstance(op, Local):
            places.append(op.dst)
        elif not isinstance(op, Send):
            buffer = op.buffer
            places += [(buffer, block) for block in op.blocks]
    return places


def due(
    kept: Sequence[Place], last_read: Mapping[Place, int], last_write: Mapping[Place, int], early: bool
) -> dict[int, list[Place]]:
    """Return the steps that end with a rank dividing results that it keeps.

    Late: the last step that uses a result. Sums travel, and every rank divides what it keeps, which is right for
    any algorithm. Early, for algorithms that declare it (see Algorithm.divides_at_owner): the step that writes a result
    last, if that step reduces. A final reduction has added the last contribution, so one rank divides a block and sends
    the quotient. A result that is received last was divided by its sender.
    """
    places_by_step: dict[int, list[Place]] = {}
    for loc in kept:
        at = last_write[loc] if early else max(last_write[loc], last_read.get(loc, -1))
        places_by_step.setdefault(at, []).append(loc)
    return places_by_step
