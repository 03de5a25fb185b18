"""Measure the network of a run's ranks, for the cost model.

Ranks exchange messages in pairs, in both directions and all pairs at once, as in most algorithms: first pairs inside
nodes, then one rank of each node with one of another. Ranks without a partner sleep meanwhile. Times are medians, over
exchanges and then over pairs. If a node has more ranks than processors, only as many ranks as processors exchange
messages. The time of a barrier of all ranks then shows what sharing the processors costs.
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
TOGETHER = 8  # messages in flight at once, to measure the gap between two
MAX_CORES = 1024  # processor numbers that are counted
MIN_SHARE = 0.012  # seconds for one size of long messages: with fewer, slow links would show no rate
MIN_ROUNDS, MAX_ROUNDS = 3, 5000  # of barriers, reductions and copies; exchanges have at least 1
FALLBACK_PRESET = "infiniband"  # the preset for levels without pairs of ranks
LOCAL_BYTES = 1 << 20  # of a reduction and a copy: larger than the nearest caches


class Times(NamedTuple):
    """The µs of an exchange by message bytes, and of an exchange of TOGETHER short messages in both directions."""

    by_size: dict[int, float]
    together: float


def measure(comm: MPI.Intracomm, nodes: Partition, seconds: float, name: str) -> Network | None:
    """Return the network of these ranks on rank 0, None elsewhere. Collective; it takes about so many seconds."""
    cores, max_ranks = _cores(comm), max(map(len, nodes))
    is_crowded = max_ranks > cores
    by_level = inside(nodes, cores), across(nodes)
    share = seconds / (1 + sum(map(bool, by_level)) + is_crowded)
    local = _measure_local(share) if comm.rank == 0 else (0.0, 0.0)
    levels = [_measure_pairs(comm, pairs, share) for pairs in by_level]
    step = _step_time(comm, share) if is_crowded else 0.0
    if comm.rank:
        return None
    preset, (node, links) = network(FALLBACK_PRESET), map(level_of, levels)
    node, links = node or preset.node, links or node or preset.links
    turn = _rounded(max(0.0, step - node.latency) * cores / max_ranks)
    return Network(name, node, links, float(SHORT[-1]), *local, cores, turn)


def _cores(comm: MPI.Intracomm) -> int:
    """Return the number of processors that the ranks of a node may use, on every rank. Collective."""
    usable = np.zeros(MAX_CORES, np.uint8)
    if hasattr(os, "sched_getaffinity"):
        usable[[core for core in os.sched_getaffinity(0) if core < MAX_CORES]] = 1
    else:
        usable[: os.cpu_count() or 1] = 1
    of_all_ranks = np.empty_like(usable)
    comm.Allreduce(usable, of_all_ranks, MPI.MAX)
    return max(1, int(of_all_ranks.sum()))


def _step_time(comm: MPI.Intracomm, seconds: float) -> float:
    """Return the µs of one step of a barrier: its time by the number of its steps. Collective."""
    rounds, times = max(1, (comm.size - 1).bit_length()), list[float]()
    until = MPI.Wtime() + seconds
    continues = True
    while continues:
        began = MPI.Wtime()
        comm.Barrier()
        times.append(1e6 * (MPI.Wtime() - began) / rounds)
        continues = comm.bcast(len(times) < MIN_ROUNDS or (MPI.Wtime() < until and len(times) < MAX_ROUNDS))
    return float(np.median(times))


def inside(nodes: Partition, cores: int) -> list[tuple[int, int]]:
    """Return pairs of ranks of the same node: at most as many ranks as processors, and at least one pair."""
    max_ranks = max(2, cores // 2 * 2)
    return [pair for ranks in nodes for pair in zip(ranks[:max_ranks:2], ranks[1:max_ranks:2])]


def across(nodes: Partition) -> list[tuple[int, int]]:
    """Return pairs of the first ranks of two nodes, half of the nodes apart."""
    half = len(nodes) // 2
    return [(near[0], far[0]) for near, far in zip(nodes[:half], nodes[half:])]


def _measure_pairs(comm: MPI.Intracomm, pairs: Sequence[tuple[int, int]], seconds: float) -> list[Times]:
    """Have all pairs measure at once, and return their times on rank 0, an empty list elsewhere. Collective."""
    pair = next((pair for pair in pairs if comm.rank in pair), None)
    times = None
    if pair is not None:
        times = _measure_pair(comm, pair[1 - pair.index(comm.rank)], comm.rank == pair[0], seconds)
    done = comm.Ibarrier()
    while not done.Test():
        time.sleep(1e-3)
    return [pair_times for pair_times in comm.gather(times) or () if pair_times is not None]


def _measure_pair(comm: MPI.Intracomm, peer: int, leads: bool, seconds: float) -> Times:
    """Time exchanges with a partner. Long messages come first: a rate-limited link may pass a burst of short ones."""
    share = seconds / (len(SHORT) + len(LONG) + 1)
    by_size: dict[int, float] = {}
    us, last = 0.0, LONG[0]
    for nbytes in (*LONG, *reversed(SHORT)):
        if nbytes in LONG[1:]:
            continues = np.array([us * nbytes / last < 1e6 * max(share, MIN_SHARE)])
            _send_decision(comm, continues, peer, leads)
            if not continues[0]:
                continue
        us, last = _median(comm, peer, leads, nbytes, 1, share), nbytes
        by_size[nbytes] = us
    return Times(by_size, _median(comm, peer, leads, SHORT[0], TOGETHER, share))


def _send_decision(comm: MPI.Intracomm, value: np.ndarray, peer: int, leads: bool) -> None:
    """Send the leading rank's value to its partner."""
    if leads:
        comm.Send(value, peer, CALIBRATION)
    else:
        comm.Recv(value, peer, CALIBRATION)


def _median(comm: MPI.Intracomm, peer: int, leads: bool, nbytes: int, number: int, seconds: float) -> float:
    """Return the median µs of an exchange of `number` messages at once. The leading rank decides on the repetitions."""
    out, into = np.zeros(nbytes * number, np.uint8), np.zeros(nbytes * number, np.uint8)
    parts = [slice(i * nbytes, (i + 1) * nbytes) for i in range(number)]

    def exchange() -> float:
        began = MPI.Wtime()
        receives = [comm.Irecv(into[part], peer, CALIBRATION) for part in parts]
        sends = [comm.Isend(out[part], peer, CALIBRATION) for part in parts]
        MPI.Request.Waitall(receives + sends)
        return MPI.Wtime() - began

    rounds = np.array([max(1, min(MAX_ROUNDS, int(seconds / max(exchange(), 1e-9))))])  # the first exchange warms up
    _send_decision(comm, rounds, peer, leads)
    return 1e6 * float(np.median([exchange() for _ in range(rounds[0])]))


def level_of(pairs: Sequence[Times]) -> Level | None:
    """Return the parameters of a level from the medians over pairs; None without pairs."""
    if not pairs:
        return None
    sizes = sorted(set.intersection(*(set(times.by_size) for times in pairs)))
    us = {nbytes: float(np.median([times.by_size[nbytes] for times in pairs])) for nbytes in sizes}
    small, short, long, longest = SHORT[0], SHORT[-1], LONG[0], sizes[-1]
    rate = (
        _rate(longest - long, us[longest] - us[long]) if longest > long else _rate(long - small, us[long] - us[small])
    )
    short_rate = min(rate, _rate(short - small, us[short] - us[small]))  # a rate-limited link may pass a burst
    rendezvous = max(0.0, us[long] - us[small] - long / rate)
    together = float(np.median([times.together for times in pairs]))
    gap = max(0.0, (together - us[small]) / (TOGETHER - 1))
    latency, rendezvous, gap, short_rate, rate = map(_rounded, (us[small], rendezvous, gap, short_rate, rate))
    return Level(latency, rendezvous, gap, short_rate, rate)


def _rate(nbytes: float, us: float) -> float:
    """Return bytes per µs, at most 100 GB/s."""
    return nbytes / max(us, nbytes / 1e5)


def _measure_local(seconds: float) -> tuple[float, float]:
    """Return the bytes per µs of a float64 reduction and of a copy."""
    x, y = np.ones(LOCAL_BYTES // 8), np.ones(LOCAL_BYTES // 8)
    rates = []
    for work in (lambda: np.add(x, y, out=y), lambda: np.copyto(y, x)):
        until, times = MPI.Wtime() + seconds / 2, list[float]()
        while len(times) < MIN_ROUNDS or (MPI.Wtime() < until and len(times) < 1000):
            began = MPI.Wtime()
            work()
            times.append(MPI.Wtime() - began)
        rates.append(_rounded(_rate(LOCAL_BYTES, 1e6 * float(np.median(times)))))
    return rates[0], rates[1]


def _rounded(value: float) -> float:
    return float(f"{value:.3g}")
