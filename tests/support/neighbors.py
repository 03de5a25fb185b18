"""Neighbourhood collectives on any topology, and what each must leave in the receive buffer."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpicoll.dispatch.methods import NEIGHBOR_METHODS

NOTHING = -7  # in places that no neighbour writes
NAMES = sorted(NEIGHBOR_METHODS)


def edges(comm):
    """Return the source of each block that this rank receives: (sender, place in its send buffer), or None.

    For grids it is computed by Shift, for other graphs from the lists of all ranks.
    """
    if comm.Get_topology() == MPI.CART:
        found = []
        for d in range(comm.Get_dim()):
            before, after = comm.Shift(d, 1)
            found += [None if before == MPI.PROC_NULL else (before, 2 * d + 1),
                      None if after == MPI.PROC_NULL else (after, 2 * d)]
        return found, 2 * comm.Get_dim()
    sent = comm.allgather(list(comm.outedges))
    taken = {source: [i for i, to in enumerate(sent[source]) if to == comm.rank] for source in comm.inedges}
    return [(source, taken[source].pop(0)) for source in comm.inedges], len(comm.outedges)


def lists(rank, p):
    """(sources, destinations) of a graph with self-loops, repeated neighbours, and a rank that sends to none."""
    to = [[] if r == p - 1 else [(r + 1) % p, r, (r + 1) % p, (r * r + 2) % p, r][: 2 + r % 4] for r in range(p)]
    return [r for r in reversed(range(p)) for other in to[r] if other == rank], to[rank]


def length(name, n, sender, place):
    """Elements of a block: of every rank as many, or of each rank, or of each block its own."""
    if name.endswith(("alltoallv", "alltoallw")):
        return n * ((sender + 2 * place) % 3)
    return n * (sender % 3) if name.endswith("allgatherv") else n


def block(name, n, sender, place):
    to_all = "allgather" in name
    return np.arange(length(name, n, sender, place)) + 1000 * sender + (0 if to_all else 100 * place) + 0.5


class Exchange:
    """A call that is ready to be made on this rank, and what it must leave."""

    def __init__(self, comm, name, n):
        arriving, leaving = edges(comm)
        blocks = [block(name, n, comm.rank, i) for i in range(1 if "allgather" in name else leaving)]
        expected = [np.full(n, NOTHING) if edge is None else block(name, n, *edge) for edge in arriving]
        self.send, self.recv = (np.concatenate([np.empty(0), *some]) for some in (blocks, expected))
        self.want = self.recv.copy()
        self.recv[:] = NOTHING
        self.arguments = self.send, self.recv
        counts = [len(some) for some in blocks], [len(some) for some in expected]
        if name[-1] == "v":
            self.arguments = self.send, [self.recv, counts[1]]
            if "alltoall" in name:
                self.arguments = [self.send, counts[0]], self.arguments[1]
        if name[-1] == "w":
            self.arguments = tuple(
                [memory, (some, [8 * sum(some[:i]) for i in range(len(some))]), [MPI.DOUBLE] * len(some)]
                for memory, some in zip((self.send, self.recv), counts)
            )

    def run(self, comm, name, form, times=1):
        """Make the call, several times; the last one counts."""
        method = NEIGHBOR_METHODS[name].spelled(form)
        if form == "persistent":
            request = getattr(comm, method)(*self.arguments)
            for _ in range(times):
                self.recv[:] = NOTHING
                request.Start()
                request.Wait()
            request.Free()
            return
        for _ in range(times):
            self.recv[:] = NOTHING
            request = getattr(comm, method)(*self.arguments)
            if request is not None:
                request.Wait()
