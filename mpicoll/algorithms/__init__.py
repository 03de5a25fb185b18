"""One module per collective, and one of those on codes; importing this package registers every algorithm."""

from . import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    bcast,
    butterfly,
    circulant,
    gather,
    quantized,
    reduce,
    reduce_scatter,
    scan,
    scatter,
    split,
    swing,
)

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "bcast",
    "butterfly",
    "circulant",
    "gather",
    "quantized",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
    "split",
    "swing",
]
