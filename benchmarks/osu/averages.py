"""Average the seconds that every rank measured in every iteration. All ranks get the same numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

MICRO = 1e6  # microseconds in a second


class Spread(NamedTuple):
    """Over ranks."""

    mean: float
    least: float
    most: float


def over_ranks(comm: Any, mpi: Any, mine: float) -> Spread:
    """Return the statistics of one number per rank."""
    total, least, most = (_reduced(comm, np.array([mine]), op)[0] for op in (mpi.SUM, mpi.MIN, mpi.MAX))
    return Spread(float(total) / comm.size, float(least), float(most))


def mean_iterations(comm: Any, mpi: Any, mine: np.ndarray) -> np.ndarray:
    """Return each iteration's mean over ranks."""
    mean: np.ndarray = _reduced(comm, mine, mpi.SUM) / comm.size
    return mean


def _reduced(comm: Any, mine: np.ndarray, op: Any) -> np.ndarray:
    mine = np.ascontiguousarray(mine)
    reduced = np.empty_like(mine)
    comm.Allreduce(mine, reduced, op)
    return reduced


def percentiles(values: np.ndarray, wanted: Sequence[int]) -> dict[int, float]:
    """Return percentiles: percentile q of n ascending values is number max(1, n * q // 100), counted from 1.

    >>> percentiles(np.array([4.0, 2.0, 1.0, 3.0]), [0, 50, 99])
    {0: 1.0, 50: 2.0, 99: 3.0}
    """
    ascending = np.sort(values)
    return {q: float(ascending[max(len(ascending) * q // 100, 1) - 1]) for q in wanted}


def overlap(overall: float, compute: float, pure: float) -> float:
    """Return the percentage of the communication's own time that is hidden behind the computation."""
    return max(0.0, 100 - (overall - compute) / pure * 100)
