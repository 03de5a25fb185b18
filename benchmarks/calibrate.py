"""`mpicoll calibrate`: measure the network of these ranks, for the cost model.

Ranks exchange messages in pairs, in both directions and all pairs at once, as in most algorithms: first pairs inside
nodes, then one rank of each node with one of another. Ranks without a partner sleep meanwhile. Times are medians, over
exchanges and then over pairs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from mpi4py import MPI

from ..cli.group import asking
from ..comm.comm import Comm
from ..cost.network import Level, Network, content, network
from ..schedules.grouping import Partition
from .command.checks import positive
from .command.console import console
from .command.spmd import SpmdCommand, world

SHORT, LONG = (8, 4096, 16384), (65536, 262144, 1 << 20)  # bytes of short messages, and of long ones
TOGETHER = 8  # messages at once, for the gap
TAG = 77
LEAST = 5  # exchanges of a size
UNKNOWN = "infiniband"  # the preset whose numbers stand where there is nothing to measure
LOCAL_BYTES = 1 << 20  # of a fold and a copy: out of the nearest caches, as a large vector is


class Times(NamedTuple):
    """The µs of an exchange by the bytes of its messages, and of one of TOGETHER short messages each way."""

    by_size: dict[int, float]
    together: float


@click.command(cls=SpmdCommand, context_settings={"show_default": True, "help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=10.0, help="Time to spend in all.")
@click.option("-o", "--output", "path", default="network.json", type=click.Path(path_type=Path), metavar="FILE")
def calibrate(seconds: float, path: Path) -> None:
    """Measure messages inside a node and between nodes, folds and copies: start it as the program will be.

    MPICOLL_NETWORK=FILE then makes auto go by the model of this network, and `mpicoll choose --network FILE` shows what
    it chooses there. The file is JSON, to be read and edited.
    """
    comm = world()
    with asking():
        positive("--seconds", seconds)
        if comm.size < 2:
            raise ValueError("one rank has no network; start two or more")
    ours = Comm(comm.Dup())
    nodes = ours._open().agreed.nodes
    described = measure(comm, nodes, seconds, path.stem)
    ours.Free()
    if comm.rank == 0:
        pairs = {"node": _inside(nodes), "links": _across(nodes)}
        measured = [level for level in pairs if pairs[level]]
        source = f"mpicoll calibrate, {comm.size} ranks on {len(nodes)} nodes; measured: {', '.join(measured)}"
        path.write_text(json.dumps({"source": source, **content(described)}, indent=1) + "\n")
        for name, level in (("inside a node", described.node), ("between nodes", described.links)):
            console().print(
                f"{name}: {level.latency:g} µs, long messages {level.rendezvous:g} more, others at once {level.gap:g}; "
                f"{level.short_rate:g} and {level.rate:g} MB/s"
            )
        console().print(
            f"folds {described.fold_rate:g} MB/s, copies {described.copy_rate:g} MB/s; written to {path}; auto goes by "
            f"it where MPICOLL_NETWORK={path} is in the environment"
        )


def measure(comm: MPI.Intracomm, nodes: Partition, seconds: float, name: str) -> Network:
    """Return the network of these ranks, which lie on these nodes. Collective; every rank returns the same."""
    inside, across = _inside(nodes), _across(nodes)
    share = seconds / (1 + bool(inside) + bool(across))
    local = _local(share) if comm.rank == 0 else (0.0, 0.0)
    levels = [_exchanges(comm, pairs, share) for pairs in (inside, across)]
    preset = network(UNKNOWN)
    result = None
    if comm.rank == 0:
        node, links = map(_level, levels)
        result = Network(name, node or preset.node, links or node or preset.links, float(SHORT[-1]), *local)
    agreed: Network = comm.bcast(result)
    return agreed


def _inside(nodes: Partition) -> list[tuple[int, int]]:
    """Return pairs of ranks of one node."""
    return [pair for ranks in nodes for pair in zip(ranks[::2], ranks[1::2])]


def _across(nodes: Partition) -> list[tuple[int, int]]:
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
    for nbytes in (*SHORT, *LONG):
        us = _median(comm, peer, leads, nbytes, 1, share)
        if us is None:
            break
        by_size[nbytes] = us
    together = _median(comm, peer, leads, SHORT[0], TOGETHER, share)
    return Times(by_size, together if together is not None else by_size[SHORT[0]])


def _median(comm: MPI.Intracomm, peer: int, leads: bool, nbytes: int, number: int, seconds: float) -> float | None:
    """Return the median µs of an exchange; None where a few of them would take too long. The leading rank counts."""
    out, into = np.zeros(nbytes * number, np.uint8), np.zeros(nbytes * number, np.uint8)
    parts = [slice(i * nbytes, (i + 1) * nbytes) for i in range(number)]

    def exchange() -> float:
        began = MPI.Wtime()
        receives = [comm.Irecv(into[part], peer, TAG) for part in parts]
        sends = [comm.Isend(out[part], peer, TAG) for part in parts]
        MPI.Request.Waitall(receives + sends)
        return MPI.Wtime() - began

    first = min(exchange() for _ in range(3))
    rounds = np.array([seconds / max(first, 1e-9)])
    if leads:
        comm.Send(rounds, peer, TAG)
    else:
        comm.Recv(rounds, peer, TAG)
    if nbytes in LONG[1:] and rounds[0] < LEAST:
        return None
    return 1e6 * float(np.median([exchange() for _ in range(max(LEAST, min(5000, int(rounds[0]))))]))


def _level(pairs: Sequence[Times]) -> Level | None:
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
