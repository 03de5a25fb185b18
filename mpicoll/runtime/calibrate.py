"""Measure the network of a run's ranks, for the cost model.

Ranks exchange messages in pairs, in both directions and all pairs at once, as in most algorithms: first pairs inside
nodes, then one rank of each node with one of another. Ranks without a partner sleep meanwhile. Times are medians, over
exchanges and then over pairs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..cost.network import Level, Network, network
from ..schedules.grouping import Partition
from .peer_status import CALIBRATION

SHORT, LONG = (8, 4096, 16384), (65536, 262144, 1 << 20)  # bytes of short messages, and of long ones
TOGETHER = 8  # messages at once, for the gap
LEAST, MOST = 3, 5000  # exchanges of a size
UNKNOWN = "infiniband"  # the preset whose numbers stand where there is nothing to measure
LOCAL_BYTES = 1 << 20  # of a fold and a copy: out of the nearest caches, as a large vector is


class Times(NamedTuple):
    """The µs of an exchange by the bytes of its messages, and of one of TOGETHER short messages each way."""

    by_size: dict[int, float]
    together: float


def measure(comm: MPI.Intracomm, nodes: Partition, seconds: float, name: str) -> Network | None:
    """Return the network of these ranks, which lie on these nodes, on rank 0; None elsewhere. Collective."""
    by_level = inside(nodes), across(nodes)
    share = seconds / (1 + sum(map(bool, by_level)))
    local = _local(share) if comm.rank == 0 else (0.0, 0.0)
    levels = [_exchanges(comm, pairs, share) for pairs in by_level]
    if comm.rank:
        return None
    preset, (node, links) = network(UNKNOWN), map(level_of, levels)
    return Network(name, node or preset.node, links or node or preset.links, float(SHORT[-1]), *local)


def inside(nodes: Partition) -> list[tuple[int, int]]:
    """Return pairs of ranks of one node."""
    return [pair for ranks in nodes for pair in zip(ranks[::2], ranks[1::2])]


def across(nodes: Partition) -> list[tuple[int, int]]:
    """Return pairs of ranks of different nodes, one rank of a node, half of the nodes apart."""
    half = len(nodes) // 2
    return [(near[0], far[0]) for near, far in zip(nodes[:half], nodes[half:])]


def _exchanges(comm: MPI.Intracomm, pairs: Sequence[tuple[int, int]], seconds: float) -> list[Times]:
    """Return what the pairs measure at once, on rank 0. Collective."""
    pair = next((pair for pair in pairs if comm.rank in pair), None)
    times = None
    if pair is not None:
        times = _pair(comm, pair[1 - pair.index(comm.rank)], comm.rank == pair[0], seconds)
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(1e-3)
    return [line for line in comm.gather(times) or () if line is not None]


def _pair(comm: MPI.Intracomm, peer: int, leads: bool, seconds: float) -> Times:
    share = seconds / (len(SHORT) + len(LONG) + 1)
    by_size: dict[int, float] = {}
    us, last = 0.0, 1
    for nbytes in (*SHORT, *LONG):
        goes_on = np.array([nbytes <= LONG[0] or us * nbytes / last * LEAST < 3e6 * share])
        _tell(comm, goes_on, peer, leads)
        if not goes_on[0]:
            break
        us, last = _median(comm, peer, leads, nbytes, 1, share), nbytes
        by_size[nbytes] = us
    return Times(by_size, _median(comm, peer, leads, SHORT[0], TOGETHER, share))


def _tell(comm: MPI.Intracomm, value: np.ndarray, peer: int, leads: bool) -> None:
    """Give the partner the value of the rank that leads."""
    if leads:
        comm.Send(value, peer, CALIBRATION)
    else:
        comm.Recv(value, peer, CALIBRATION)


def _median(comm: MPI.Intracomm, peer: int, leads: bool, nbytes: int, number: int, seconds: float) -> float:
    """Return the median µs of an exchange of so many messages at once. The leading rank says how often."""
    out, into = np.zeros(nbytes * number, np.uint8), np.zeros(nbytes * number, np.uint8)
    parts = [slice(i * nbytes, (i + 1) * nbytes) for i in range(number)]

    def exchange() -> float:
        began = MPI.Wtime()
        receives = [comm.Irecv(into[part], peer, CALIBRATION) for part in parts]
        sends = [comm.Isend(out[part], peer, CALIBRATION) for part in parts]
        MPI.Request.Waitall(receives + sends)
        return MPI.Wtime() - began

    rounds = np.array([max(LEAST, min(MOST, int(seconds / max(exchange(), 1e-9))))])
    _tell(comm, rounds, peer, leads)
    return 1e6 * float(np.median([exchange() for _ in range(rounds[0])]))


def level_of(pairs: Sequence[Times]) -> Level | None:
    """Return the level that the medians over pairs make, None if there are none."""
    if not pairs:
        return None
    sizes = sorted(set.intersection(*(set(times.by_size) for times in pairs)))
    us = {nbytes: float(np.median([times.by_size[nbytes] for times in pairs])) for nbytes in sizes}
    small, short, long, longest = SHORT[0], SHORT[-1], LONG[0], sizes[-1]
    short_rate = _rate(short - small, us[short] - us[small])
    rate = _rate(longest - long, us[longest] - us[long]) if longest > long else short_rate
    rendezvous = max(0.0, us[long] - us[small] - long / rate)
    together = float(np.median([times.together for times in pairs]))
    gap = max(0.0, (together - us[small]) / (TOGETHER - 1))
    return Level(*(_rounded(x) for x in (us[small], rendezvous, gap, short_rate, rate)))


def _rate(nbytes: float, us: float) -> float:
    """Return bytes per µs, at most a hundred GB/s, where more bytes took no longer."""
    return nbytes / max(us, nbytes / 1e5)


def _local(seconds: float) -> tuple[float, float]:
    """Return the bytes per µs of a fold of float64 and of a copy."""
    x, y = np.ones(LOCAL_BYTES // 8), np.ones(LOCAL_BYTES // 8)
    rates = []
    for work in (lambda: np.add(x, y, out=y), lambda: np.copyto(y, x)):
        until, times = MPI.Wtime() + seconds / 2, list[float]()
        while len(times) < LEAST or (MPI.Wtime() < until and len(times) < 1000):
            began = MPI.Wtime()
            work()
            times.append(MPI.Wtime() - began)
        rates.append(_rounded(_rate(LOCAL_BYTES, 1e6 * float(np.median(times)))))
    return rates[0], rates[1]


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
