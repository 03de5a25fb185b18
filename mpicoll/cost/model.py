"""The time that a call takes by the model, in microseconds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from .network import Level, Network
from .profile import (
    COPIED,
    FAR_RECEIVED,
    FAR_RECEIVES,
    FAR_SENDS,
    FAR_SENT,
    RECEIVED,
    RECEIVES,
    REDUCED,
    SENDS,
    SENT,
    Profile,
)

WHOLE = np.inf  # bytes of a chunk where blocks are sent whole


def cost(
    profile: Profile, network: Network, nbytes: ArrayLike, chunk_bytes: ArrayLike = WHOLE, window: ArrayLike = 1
) -> np.ndarray:
    """Return the µs of calls of nbytes, a line of numbers; blocks are cut into chunks, `window` of them in flight.

    chunk_bytes and window: one for all calls, or one for each.
    The first chunk takes the steps of the slowest rank, and those that other ranks take before or after it. Each of
    these takes as long as the longest step of a rank that is not the root, but at most twice as long as the mean of
    its steps. Every other chunk takes the time for which the busiest rank sends or receives, or a window-th of the time
    for which a rank is occupied with a chunk, if that is more.
    """
    n, in_flight = np.asarray(nbytes, float), np.asarray(window)
    lanes = _chunks(profile, n, np.asarray(chunk_bytes))
    slowest, busiest, hop = np.zeros_like(n), np.zeros_like(n), np.zeros_like(n)
    longest = 0.0
    for i, ((table, times), sharing) in enumerate(zip(profile.ranks, profile.sharing, strict=True)):
        if not len(table):
            continue
        steps, sending, receiving = _step_times(table, sharing, network, n / lanes)
        own = _sum(times, steps)
        slowest = np.maximum(slowest, own)
        busiest = np.maximum(busiest, np.maximum(_sum(times, sending), _sum(times, receiving)))
        longest = max(longest, float(times[table[:, :SENT].any(axis=1)].sum()))
        if i or len(profile.ranks) == 1:
            hop = np.maximum(hop, np.minimum(steps.max(axis=0), 2 * own / times.sum()))
    first = slowest + max(0.0, profile.steps - longest) * hop
    total: np.ndarray = first + (lanes - 1) * np.maximum(busiest, (first if profile.waits else slowest) / in_flight)
    return total


def _chunks(profile: Profile, n: np.ndarray, chunk_bytes: np.ndarray) -> np.ndarray:
    """Return into how many chunks the largest block is cut."""
    number: np.ndarray = np.maximum(1.0, np.ceil(n * profile.block / chunk_bytes))
    return number


def crowded_cost(
    profile: Profile,
    load: np.ndarray,
    ranks: int,
    network: Network,
    nbytes: ArrayLike,
    chunk_bytes: ArrayLike = WHOLE,
    window: ArrayLike = 1,
) -> np.ndarray:
    """Return the same where a node has more ranks than processors; load: see profile.load.

    A message waits until its receiver has its turn. Processors have the load of all ranks of a node to carry: a rank
    that sends a message and receives one is occupied for as long as they take.
    """
    n = np.asarray(nbytes, float)
    wait = network.turn * ranks / network.cores
    node, links = (replace(level, latency=level.latency + wait) for level in (network.node, network.links))
    crowded = replace(network, node=node, links=links)
    free = replace(crowded, fold_rate=np.inf, copy_rate=np.inf, node=_instant(node), links=_instant(links))
    lanes = _chunks(profile, n, np.asarray(chunk_bytes))
    work = load[REDUCED] * n / network.fold_rate + load[COPIED] * n / network.copy_rate
    for (sends, sent), level in (((SENDS, SENT), network.node), ((FAR_SENDS, FAR_SENT), network.links)):
        messages, shares = load[[sends, sends + 1]].sum() / 2, load[[sent, sent + 1]].sum() / 2
        long = shares * n > network.short_bytes * messages * lanes
        work = work + lanes * messages * level.gap + shares * n / np.where(long, level.rate, level.short_rate)
    waits = cost(profile, free, n, chunk_bytes, window)
    total: np.ndarray = np.maximum(cost(profile, crowded, n, chunk_bytes, window), waits + work / network.cores)
    return total


def _instant(level: Level) -> Level:
    """Return a level whose messages take their latency alone."""
    return replace(level, rendezvous=0.0, gap=0.0, short_rate=np.inf, rate=np.inf)


def _sum(times: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Return times @ steps to the same bit on every processor, since ranks choose by it; a BLAS rounds as it likes."""
    total: np.ndarray = (times[:, None] * steps).sum(axis=0)
    return total


def _step_times(
    table: np.ndarray, sharing: float, network: Network, n: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the µs of every step and number of bytes, and the µs for which it sends, and for which it receives.

    A rank sends and receives at once. Reductions and copies count as receiving, since they need the received data.
    """
    columns = table.T[:, :, None]
    near, near_busy = _messages(columns[[SENDS, RECEIVES]], columns[[SENT, RECEIVED]], network.node, network, n, 1.0)
    far, far_busy = _messages(
        columns[[FAR_SENDS, FAR_RECEIVES]], columns[[FAR_SENT, FAR_RECEIVED]], network.links, network, n, sharing
    )
    local = columns[REDUCED] * n / network.fold_rate + columns[COPIED] * n / network.copy_rate
    sending, receiving = near_busy + far_busy
    transfer = near_busy.max(axis=0) + far_busy.max(axis=0)
    return np.maximum(near, far) + transfer + local, sending, receiving + local


def _messages(
    numbers: np.ndarray, shares: np.ndarray, level: Level, network: Network, n: np.ndarray, sharing: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the latency of every step, and the µs in which its messages keep both directions of a level busy."""
    nbytes = shares * n
    long = nbytes / np.maximum(numbers, 1) > network.short_bytes
    latency = np.where(numbers > 0, level.latency + long * level.rendezvous, 0.0).max(axis=0)
    at_once = np.clip(numbers * sharing, 1, level.ports)
    transfer = nbytes * sharing / (at_once * np.where(long, level.rate, level.short_rate))
    return latency, np.maximum(numbers - 1, 0) * level.gap + transfer
