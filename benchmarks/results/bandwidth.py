"""Bandwidths as nccl-tests define them (its doc/PERFORMANCE.md), so that numbers can be compared.

The algorithm bandwidth is the bytes of the operation over its time. The bus bandwidth multiplies that by what
of them must cross a rank's link, so that it can be compared with the link's rate whatever p is:

    allreduce                                        2 (p - 1)/p
    reduce_scatter, allgather, alltoall, scatter, gather     (p - 1)/p
    bcast, reduce                                    1

The bytes of an operation are the whole vector: of scatter, gather and allgather all shares, of alltoall what
one rank sends. Barriers and scans have no such number.
"""

from __future__ import annotations

import numpy as np

from mpicoll.schedules.collectives import base_collective

from ..cases.patterns import Shape

_SPREAD = ("reduce_scatter", "allgather", "alltoall", "scatter", "gather")


def factor(collective: str, p: int) -> float | None:
    """Bus bandwidth over algorithm bandwidth; None where there is none.

    >>> factor("allreduce", 4), factor("gatherv", 4), factor("bcast", 4), factor("scan", 4)
    (1.5, 0.75, 1.0, None)
    """
    name = base_collective(collective)
    if name in ("bcast", "reduce"):
        return 1.0
    if name == "allreduce":
        return 2 * (p - 1) / p
    return (p - 1) / p if name in _SPREAD else None


def operation(shape: Shape, nbytes: int, p: int) -> int:
    """Return the bytes of the operation."""
    lengths = shape.pattern.lengths(shape.elements(nbytes), p, shape.counts)
    return sum(lengths) * np.dtype(shape.dtype).itemsize


def bandwidths(shape: Shape, nbytes: int, p: int, seconds: float) -> tuple[float | None, float | None]:
    """Return algorithm and bus bandwidth in bytes per second, None where there is none."""
    share = factor(shape.collective, p)
    if share is None:
        return None, None
    algorithm = operation(shape, nbytes, p) / seconds
    return algorithm, algorithm * share
