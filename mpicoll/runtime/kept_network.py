"""Keep what a run measured of the network, so that a program chooses alike in every run on one machine.

Two measurements of one network differ, and where a choice depends on the difference sums may differ in their last bits.
So what was measured first stands while a new measurement agrees with it.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..cost.network import Level, Network, content, network
from ..errors import ArgumentError
from ..kernels.digest import digest
from ..schedules.grouping import Partition
from ..selection.tables import layout

FACTOR = 1.5  # by which the times of messages may differ
SIZES = np.array([8.0, 16384.0, 1048576.0])  # bytes of the messages that are compared
NAME = "the network as measured in an earlier run"


def kept_network(measured: Network, library: str, nodes: Partition) -> Network:
    """Return what is kept for this MPI and these nodes if it agrees with what was measured; else keep that, for later.

    A directory that cannot be written and a damaged file change nothing else.
    """
    path = _path(library, nodes)
    if path is None:
        return measured
    with suppress(ArgumentError):
        kept = replace(network(path), name=NAME, rough=True)
        if agree(kept, measured, max(map(len, nodes))):
            return kept
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        try:
            source = f"measured by a program, {library}, {sum(map(len, nodes))} ranks on {len(nodes)} nodes"
            part.write_text(json.dumps({"source": source, **content(measured)}, indent=1) + "\n", encoding="utf-8")
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    return measured


def agree(kept: Network, measured: Network, ranks: int) -> bool:
    """Return whether messages take alike in both, with so many ranks on a node."""
    if kept.cores != measured.cores:
        return False
    times = np.array(
        [np.concatenate([_times(net, level, ranks) for level in (net.node, net.links)]) for net in (kept, measured)]
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
    name = digest(" ".join((library, *layout(nodes))).encode(), 8).hex()
    try:
        return (
            Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mpicoll" / "networks" / f"{name}.json"
        )
    except RuntimeError:
        return None
