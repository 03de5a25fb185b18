"""Measure the network of a run's ranks, for the cost model.

Ranks exchange messages in pairs, in both directions and all pairs at once, as in most algorithms: first pairs inside
nodes, then one rank of each node with one of another. Ranks without a partner sleep meanwhile. Times are medians, over
exchanges and then over pairs. Where nodes have more ranks than processors, as many ranks exchange messages as there are
processors, and a barrier of all ranks shows how long they take turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..cost.network import Level, Network, network
from ..diagnostics.peer_status import CALIBRATION
from ..schedules.grouping import Partition

SHORT, LONG = (8, 4096, 16384), (65536, 262144, 1 << 20)  # bytes of short messages, and of long ones
TOGETHER = 8  # messages at once, for the gap
MOST_CORES = 1024  # numbers of processors that can be counted
PATIENCE = 0.012  # seconds for a long message, without which nothing is known of the rate
LEAST, MOST = 3, 5000  # barriers, reductions or copies; one exchange of a size may be enough
UNKNOWN = "infiniband"  # the preset whose numbers stand where there is nothing to measure
LOCAL_BYTES = 1 << 20  # of a reduction and a copy: larger than the nearest caches, as large vectors are


class Times(NamedTuple):
    """The µs of an exchange by the bytes of its messages, and of one of TOGETHER short messages each way."""

    by_size: dict[int, float]
    together: float


def measure(comm: MPI.Intracomm, nodes: Partition, seconds: float, name: str) -> Network | None:
    """Return the network of these ranks, which lie on these nodes, on rank 0; None elsewhere. Collective."""
    cores, most = _cores(comm), max(map(len, nodes))
    is_crowded = most > cores
    by_level = inside(nodes, cores), across(nodes)
    share = seconds / (1 + sum(map(bool, by_level)) + is_crowded)
    local = _local(share) if comm.rank == 0 else (0.0, 0.0)
    levels = [_exchanges(comm, pairs, share) for pairs in by_level]
    step = _step_of_all(comm, share) if is_crowded else 0.0
    if comm.rank:
        return None
    preset, (node, links) = network(UNKNOWN), map(level_of, levels)
    node, links = node or preset.node, links or node or preset.links
    turn = _rounded(max(0.0, step - node.latency) * cores / most)
    return Network(name, node, links, float(SHORT[-1]), *local, cores, turn)


def _cores(comm: MPI.Intracomm) -> int:
    """Return how many processors the ranks of a node may use, on every rank. Collective."""
    usable = np.zeros(MOST_CORES, np.uint8)
    if hasattr(os, "sched_getaffinity"):
        usable[[core for core in os.sched_getaffinity(0) if core < MOST_CORES]] = 1
    else:
        usable[: os.cpu_count() or 1] = 1
    every = np.empty_like(usable)
    comm.Allreduce(usable, every, MPI.MAX)
    return max(1, int(every.sum()))


def _step_of_all(comm: MPI.Intracomm, seconds: float) -> float:
    """Return the µs in which every rank receives a message that another rank sent when it had one. Collective."""
    rounds, times = max(1, (comm.size - 1).bit_length()), list[float]()
    until = MPI.Wtime() + seconds
    goes_on = True
    while goes_on:
        began = MPI.Wtime()
        comm.Barrier()
        times.append(1e6 * (MPI.Wtime() - began) / rounds)
        goes_on = comm.bcast(len(times) < LEAST or (MPI.Wtime() < until and len(times) < MOST))
    return float(np.median(times))


def inside(nodes: Partition, cores: int) -> list[tuple[int, int]]:
    """Return pairs of ranks of one node, at most as many ranks as it has processors, but one pair."""
    most = max(2, cores // 2 * 2)
    return [pair for ranks in nodes for pair in zip(ranks[:most:2], ranks[1:most:2])]


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
    """Return what the exchanges with a partner take: long messages first, for a link may let a burst of bytes pass."""
    share = seconds / (len(SHORT) + len(LONG) + 1)
    by_size: dict[int, float] = {}
    us, last = 0.0, LONG[0]
    for nbytes in (*LONG, *reversed(SHORT)):
        if nbytes in LONG[1:]:
            goes_on = np.array([us * nbytes / last < 1e6 * max(share, PATIENCE)])
            _tell(comm, goes_on, peer, leads)
            if not goes_on[0]:
                continue
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

    rounds = np.array([max(1, min(MOST, int(seconds / max(exchange(), 1e-9))))])  # the first is not one of them
    _tell(comm, rounds, peer, leads)
    return 1e6 * float(np.median([exchange() for _ in range(rounds[0])]))


def level_of(pairs: Sequence[Times]) -> Level | None:
    """Return the level that the medians over pairs make, None if there are none."""
    if not pairs:
        return None
    sizes = sorted(set.intersection(*(set(times.by_size) for times in pairs)))
    us = {nbytes: float(np.median([times.by_size[nbytes] for times in pairs])) for nbytes in sizes}
    small, short, long, longest = SHORT[0], SHORT[-1], LONG[0], sizes[-1]
    rate = (
        _rate(longest - long, us[longest] - us[long]) if longest > long else _rate(long - small, us[long] - us[small])
    )
    short_rate = min(rate, _rate(short - small, us[short] - us[small]))  # a link may let a burst of bytes pass
    rendezvous = max(0.0, us[long] - us[small] - long / rate)
    together = float(np.median([times.together for times in pairs]))
    gap = max(0.0, (together - us[small]) / (TOGETHER - 1))
    latency, rendezvous, gap, short_rate, rate = map(_rounded, (us[small], rendezvous, gap, short_rate, rate))
    return Level(latency, rendezvous, gap, short_rate, rate)


def _rate(nbytes: float, us: float) -> float:
    """Return bytes per µs, at most a hundred GB/s, where more bytes took no longer."""
    return nbytes / max(us, nbytes / 1e5)


def _local(seconds: float) -> tuple[float, float]:
    """Return the bytes per µs of a float64 reduction and of a copy."""
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
