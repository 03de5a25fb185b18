"""Errors of contenders that move codes: how far an answer is off, and how far it may be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mpicoll.errors import MpicollError

from .case import Case
from .contenders import AUTO, NATIVE, Contender
from .contents import contributed


class Error(NamedTuple):
    """The largest error of an answer and the bound of it, both as parts of the largest element."""

    worst: float
    bound: float


def is_lossy(collective: str, algorithm: str, p: int) -> bool:
    """Return whether an algorithm moves codes."""
    from mpicoll.schedules.schedule import schedule

    if algorithm in (NATIVE, AUTO):
        return False
    try:
        return schedule(collective, algorithm, p).codec is not None
    except MpicollError:  # it does not run here, or is not ours
        return False


def error_of(case: Case, contender: Contender) -> Error | None:
    """Return how far a lossy contender's answer is off on this rank; None for what must be exact.

    The bound is that of a schedule which encodes each contribution once and a sum once more (see docs/COMPRESSION.md),
    taken over whole vectors: that of a group is no larger.
    """
    from mpicoll.schedules.collectives import base_collective
    from mpicoll.schedules.schedule import schedule

    collective = case.shape.collective
    if not is_lossy(collective, contender.algorithm, case.p):
        return None
    codec = schedule(base_collective(collective), contender.algorithm, case.p).codec
    answer = case.expected()
    assert codec is not None
    if answer is None or case.recv is None or not len(answer):
        return Error(0.0, 0.0)
    parts = [answer]
    if case.meaning.reduces:
        parts += [contributed(rank, case.p, case.shape.op, case.dtype) for rank in range(case.p)]
    bound = sum(codec.error_bound(np.full(codec.group, abs(part).max(), np.float32)).max() for part in parts)
    if codec.name == "topk":  # whatever is not sent
        bound = float(sum(abs(part).max() for part in parts))
    largest = float(abs(answer).max()) or 1.0
    worst = float(abs(case.recv[: len(answer)].astype(np.float64) - answer).max())
    return Error(worst / largest, 1.05 * float(bound) / largest)
