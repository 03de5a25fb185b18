"""One module per collective; importing this package registers every algorithm."""

from . import allgather, allreduce, alltoall, barrier, bcast, gather, reduce, reduce_scatter, scatter

__all__ = ["allgather", "allreduce", "alltoall", "barrier", "bcast", "gather", "reduce", "reduce_scatter", "scatter"]
