"""Bound the time of any algorithm from below, where hosts are joined by links of a known rate.

Every host has one link, which carries both directions at once; ranks of a host talk for nothing. The limit
is the time the busiest link needs for the bytes that must cross it, whatever the algorithm; headers, latency
and arithmetic are not in it. For h hosts with as many ranks each and n bytes in all:

    bcast, reduce, scan, exscan              n
    scatter, gather, allgather, alltoall     n (h - 1)/h, n being what one rank has or gets from all
    reduce_scatter                           n (h - 1)/h
    allreduce                                2 n (h - 1)/h

(Patarasu and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.)
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from statistics import fmean
from typing import Any

import numpy as np

from mpicoll.schedules.collectives import from_all_ranks

from ..cases.patterns import Shape


def limit(shape: Shape, nbytes: int, host_of: Sequence[int], rate: float) -> float | None:
    """Return the seconds that a call takes at least; None where no byte must cross a link.

    host_of: every rank's host. rate: bits per second of a host's link, in each direction.
    """
    roots = shape.roots(len(host_of))
    crossing = fmean(busiest(shape, root, nbytes, host_of) for root in roots)
    return crossing * 8 / rate or None


def busiest(shape: Shape, root: int, nbytes: int, host_of: Sequence[int]) -> float:
    """Return the bytes that the busiest link must carry in one direction."""
    p, hosts = len(host_of), sorted(set(host_of))
    meaning, size = shape.pattern.meaning, np.dtype(shape.dtype).itemsize
    lengths = shape.pattern.lengths(shape.elements(nbytes), p, shape.counts)
    names = meaning.blocks(p, 1)
    starts, ends = _hosts_with(meaning.starts, names, host_of, root), _hosts_with(meaning.ends, names, host_of, root)
    load, total = {(host, way): 0 for host in hosts for way in ("in", "out")}, Fraction(0)
    for block in names:
        length = size * shape.pattern.length(block, lengths)
        begin, end = starts[block], ends[block]
        for host in begin | end:
            load[host, "in"] += length * (host in end and (meaning.reduces or host not in begin) and len(hosts) > 1)
            load[host, "out"] += length * (host in begin and end != {host})
        combined = (len(begin) - 1) * meaning.reduces
        handed_on = (len(end) - 1) * (meaning.covers is from_all_ranks)
        total += length * (combined + handed_on)
    return max(float(total / len(hosts)), float(max(load.values())))


def _hosts_with(where: Any, names: Sequence[Any], host_of: Sequence[int], root: int) -> dict[Any, set[int]]:
    """Return, by block, the hosts with a rank that has it."""
    hosts: dict[Any, set[int]] = {block: set() for block in names}
    for rank, host in enumerate(host_of):
        for block in where(names, len(host_of), rank, root):
            hosts[block].add(host)
    return hosts
