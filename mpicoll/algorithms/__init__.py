"""One module per collective; importing this package registers every algorithm."""

from . import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    butterfly,
    gather,
    reduce,
    reduce_scatter,
    scan,
    scatter,
)

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "butterfly",
    "gather",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
]
