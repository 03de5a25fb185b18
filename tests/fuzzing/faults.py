"""Defects of the MPIs' own collectives: calls that programs do not give to them, so that each failure is ours."""

from __future__ import annotations

from functools import cache

from mpi4py import MPI

from mpicoll.schedules.collectives import PERSISTENT

from . import graphs
from .program import Call


@cache
def vendor() -> str:
    """Return the name of this MPI."""
    return MPI.get_vendor()[0]


def known(call: Call, p: int, threads: int) -> bool:
    """Return whether this MPI's own collective is wrong about such a call on p ranks, in so many threads."""
    derived = call.layout != "plain"
    if threads > 1 and asks_for_counts(call):
        return True
    if call.graph and _known_of_graphs(call, p):
        return True
    if vendor() in ("MPICH", "Intel MPI") and call.method == "Gather" and call.in_place and p & (p - 1):
        return True     # its tree counts what it passes on in the root's send type, which is null
    if vendor() == "MPICH" and call.method == "Gather" and p > 3 and _is_padded(call.type):
        return True     # "Invalid datatype" in its tree, from 8 KiB on
    if vendor() == "Open MPI":
        if call.method == "Alltoallw" and p == 1 and call.with_gaps:           # takes displacements in extents
            return True
        return derived and call.method in ("Gather", "Allgather")           # Gather: on 7 and 8 ranks
    return vendor() == "Intel MPI" and _known_of_intel(call, p, threads)


def _known_of_graphs(call: Call, p: int) -> bool:
    if vendor() == "Open MPI" and call.graph in ("lists", "stencil") and p > 1:
        return True         # ERR_TRUNCATE where ranks have different numbers of neighbours
    exchanges = vendor() in ("Intel MPI", "Open MPI")   # the latter in its nonblocking ones, which check mode calls too
    return exchanges and graphs.names_twice(call.graph, p)      # the blocks of both neighbours that are one rank


def _known_of_intel(call: Call, p: int, threads: int) -> bool:
    derived = call.layout != "plain"
    if threads > 1:
        return True         # its blocking ones hang or abort, though each thread has a communicator of its own
    if call.method == "Bcast" and p > 4:
        return True         # above 16 KiB, a small Allreduce or Reduce after it overwrites what was not read yet
    if call.method == "Reduce" and p > 2 and _is_padded(call.type):
        return True         # MAXLOC and MINLOC of 1,025 pairs: the last gets values of other elements
    if call.method == "Alltoallw" and call.in_place and derived:
        return True         # Ialltoallw, where ranks say one block by different types
    if call.form == PERSISTENT and call.method in ("Allgather", "Gather", "Scatter"):
        return True
    return derived and call.method in ("Allgather", "Gather")               # Allgather: on 4 ranks


def asks_for_counts(call: Call) -> bool:
    """Return whether mpi4py asks the other ranks for counts, which it does with Python's lock held.

    Where several threads do, each rank may wait in another one, for a thread that waits for that lock.
    """
    return call.method == "Reduce_scatter" and not call.has_recvcounts


def _is_padded(name: str) -> bool:
    """Return whether elements of a predefined datatype are further apart than they are long."""
    datatype = getattr(MPI, name)
    return bool(datatype.Get_size() != datatype.Get_extent()[1])


def of_testall() -> bool:
    """Return whether Testall fails on the MPI's own persistent collectives, whether they are complete or not."""
    return vendor() in ("MPICH", "Intel MPI")
