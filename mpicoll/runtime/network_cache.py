"""Cache the measured network in a file, so that a program makes the same choices in every run on a machine.

Two measurements of the same network differ a little, and with them auto's choices and the last bits of sums. So the
first measurement is used as long as a new one agrees with it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from .. import user_cache
from ..cost.network import Level, Network, content, network
from ..errors import ArgumentError
from ..kernels.digest import digest
from ..schedules.grouping import Partition
from ..selection.tables import layout

FACTOR = 1.5  # by which message times may differ if two measurements agree
SIZES = np.array([8.0, 16384.0, 1048576.0])  # bytes of the messages that are compared
NAME = "the network as measured in an earlier run"


def cached_network(measured: Network, library: str, nodes: Partition) -> Network:
    """Return the cached network for this MPI and these nodes if it agrees with a measurement; else cache the latter.

    A damaged file is replaced. If the directory cannot be written, nothing is cached.
    """
    path = _path(library, nodes)
    if path is None:
        return measured
    with suppress(ArgumentError):
        cached = replace(network(path), name=NAME, rough=True)
        if agree(cached, measured, max(map(len, nodes))):
            return cached
    source = f"measured by a program, {library}, {sum(map(len, nodes))} ranks on {len(nodes)} nodes"
    user_cache.write(path, json.dumps({"source": source, **content(measured)}, indent=1) + "\n")
    return measured


def agree(cached: Network, measured: Network, ranks: int) -> bool:
    """Return whether the message times of two networks differ by FACTOR at most, with so many ranks on a node."""
    if cached.cores != measured.cores:
        return False
    times = np.array(
        [np.concatenate([_times(net, level, ranks) for level in (net.node, net.links)]) for net in (cached, measured)]
    )
    return bool((times.max(axis=0) <= FACTOR * times.min(axis=0)).all())


def _times(net: Network, level: Level, ranks: int) -> np.ndarray:
    """Return the µs of messages of SIZES."""
    turns = net.turn * ranks / net.cores if net.cores and ranks > net.cores else 0.0
    long = net.short_bytes < SIZES
    times: np.ndarray = (
        level.latency + turns + long * level.rendezvous + SIZES / np.where(long, level.rate, level.short_rate)
    )
    return times


def _path(library: str, nodes: Partition) -> Path | None:
    """Return the file for an MPI and a placement of ranks; None where there is no home directory."""
    directory, name = user_cache.directory("networks"), digest(" ".join((library, *layout(nodes))).encode(), 8).hex()
    return directory and directory / f"{name}.json"
