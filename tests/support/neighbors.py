"""Calls of neighbourhood collectives on any topology."""

from __future__ import annotations

import numpy as np
from mpi4py import MPI

from mpicoll.dispatch.methods import NEIGHBOR_METHODS
from support.prepared import PreparedCall

FILLER = -7  # in places that no neighbour writes
NAMES = sorted(NEIGHBOR_METHODS)


def edges(comm):
    """Return (the sender of each block that this rank receives, and its place there), and the blocks that it sends.

    The first is a list with None for an absent neighbour. For grids it is computed by Shift, for other graphs from the
    lists of all ranks.
    """
    if comm.Get_topology() == MPI.CART:
        senders = []
        for d in range(comm.Get_dim()):
            before, after = comm.Shift(d, 1)
            senders += [None if before == MPI.PROC_NULL else (before, 2 * d + 1),
                        None if after == MPI.PROC_NULL else (after, 2 * d)]
        return senders, 2 * comm.Get_dim()
    sent = comm.allgather(list(comm.outedges))
    places = {source: [i for i, to in enumerate(sent[source]) if to == comm.rank] for source in comm.inedges}
    return [(source, places[source].pop(0)) for source in comm.inedges], len(comm.outedges)


def lists(rank, p):
    """Return (sources, destinations) of a graph with self-loops, repeated neighbours, and a rank that sends to none."""
    to = [[] if r == p - 1 else [(r + 1) % p, r, (r + 1) % p, (r * r + 2) % p, r][: 2 + r % 4] for r in range(p)]
    return [r for r in reversed(range(p)) for other in to[r] if other == rank], to[rank]


def length(name, n, sender, place):
    """Return the elements of a block: n in all blocks, or a number for each rank, or for each block."""
    if name.endswith(("alltoallv", "alltoallw")):
        return n * ((sender + 2 * place) % 3)
    return n * (sender % 3) if name.endswith("allgatherv") else n


def block(name, n, sender, place):
    to_all = "allgather" in name
    return np.arange(length(name, n, sender, place)) + 1000 * sender + (0 if to_all else 100 * place) + 0.5


def prepare(comm, name, n):
    """Return a call with new buffers on this rank."""
    senders, leaving = edges(comm)
    blocks = [block(name, n, comm.rank, i) for i in range(1 if "allgather" in name else leaving)]
    arriving = [np.full(n, FILLER) if edge is None else block(name, n, *edge) for edge in senders]
    sent, expected = (np.concatenate([np.empty(0), *some]) for some in (blocks, arriving))
    received = np.full_like(expected, FILLER)
    send, receive = sent, received
    counts = [len(values) for values in blocks], [len(values) for values in arriving]
    if name[-1] == "v":
        send, receive = [sent, counts[0]] if "alltoall" in name else sent, [received, counts[1]]
    if name[-1] == "w":
        send, receive = (
            [memory, (some, [8 * sum(some[:i]) for i in range(len(some))]), [MPI.DOUBLE] * len(some)]
            for memory, some in zip((sent, received), counts)
        )
    return PreparedCall(NEIGHBOR_METHODS[name], (send, receive), sent, received, expected)
