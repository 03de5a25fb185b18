"""Share the links between switches fairly among the messages on them: a fluid model.

At any time the messages on their way have the rates of max-min fairness: no message can have more without one of less
or equal rate having less (Bertsekas, Gallager, Data Networks, 1992). Rates are solved once per batch of messages that
start and end at the same time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np

from .network import Level
from .topology import Topology

NO_LINK = 0  # fills up the rows of short routes; its capacity is infinite
SAME = 1e-12  # relative difference up to which a solved rate is the former one, rounded otherwise
FEW = 16  # rows to begin with


@dataclass(slots=True, eq=False)
class Flow:
    """A message between nodes with its route; times in µs, rates in bytes per µs.

    sending: when it began and ended to leave its sender; infinite as long as it has not.
    receiving: when it goes through its receiver's port; None until its first byte is there.
    """

    message: Any
    links: tuple[int, ...]
    limit: float  # the rate that it has alone
    left: float  # bytes that have not left their sender at `since`
    latency: float
    sending: list[float] = field(default_factory=lambda: [inf, inf])
    receiving: tuple[float, float] | None = None
    rate: float = 0.0
    since: float = 0.0
    end: float = inf  # when its last byte leaves, at its present rate
    row: int = -1


class Fabric:
    """The links between switches, and the messages on them. Raises ArgumentError if the nodes have no places."""

    def __init__(self, topology: Topology, links: Level, nodes: int) -> None:
        topology.check(nodes)
        self.topology = topology
        self._capacity = topology.capacity(max(links.rate, links.short_rate), links.ports)
        self._numbers: dict[Any, int] = {}
        self._routes: dict[tuple[int, int], tuple[int, ...]] = {}
        self._flows: list[Flow | None] = []
        self._idle: list[int] = []  # rows without a flow
        self._table = np.full((0, 1), NO_LINK)  # links by row
        self._limits = self._rates = np.zeros(0)

    def route(self, sender: int, receiver: int) -> tuple[int, ...]:
        """Return the numbers of the links between switches on the way from node to node."""
        if (route := self._routes.get((sender, receiver))) is None:
            links = self.topology.route(sender, receiver)
            route = tuple(self._numbers.setdefault(link, len(self._numbers) + 1) for link in links)
            self._routes[sender, receiver] = route
        return route

    def start(self, flow: Flow, at: float) -> None:
        """Put a message on its links; settle() then gives it a rate."""
        if not self._idle:
            self._grow()
        row = flow.row = self._idle.pop()
        if len(flow.links) > self._table.shape[1]:
            more = len(flow.links) - self._table.shape[1]
            self._table = np.pad(self._table, ((0, 0), (0, more)), constant_values=NO_LINK)
        self._table[row] = NO_LINK
        self._table[row, : len(flow.links)] = flow.links
        self._limits[row], self._rates[row] = flow.limit, 0.0
        self._flows[row], flow.since = flow, at

    def stop(self, flow: Flow) -> None:
        """Take a message off its links."""
        self._flows[flow.row] = None
        self._limits[flow.row] = 0.0
        self._idle.append(flow.row)

    def settle(self, at: float) -> Iterator[Flow]:
        """Give all messages their rates from a time on, and yield those whose rate changed, with a new end."""
        rows = np.flatnonzero(self._limits)
        capacities = np.full(len(self._numbers) + 1, self._capacity)
        capacities[NO_LINK] = inf
        rates = fair_rates(self._table[rows], self._limits[rows], capacities)
        changed = np.abs(rates - self._rates[rows]) > SAME * rates
        self._rates[rows[changed]] = rates[changed]
        for row, rate in zip(rows[changed].tolist(), rates[changed].tolist()):
            flow = self._flows[row]
            assert flow is not None
            flow.left = max(0.0, flow.left - flow.rate * (at - flow.since))
            flow.rate, flow.since = rate, at
            flow.end = at + flow.left / rate
            yield flow

    def _grow(self) -> None:
        """Double the rows."""
        before = len(self._flows)
        more = max(FEW, before)
        self._table = np.pad(self._table, ((0, more), (0, 0)), constant_values=NO_LINK)
        self._limits, self._rates = np.pad(self._limits, (0, more)), np.pad(self._rates, (0, more))
        self._flows += [None] * more
        self._idle += range(before + more - 1, before - 1, -1)


def fair_rates(routes: np.ndarray, limits: np.ndarray, capacities: np.ndarray) -> np.ndarray:
    """Return the max-min fair rates of messages, shape (messages,).

    routes: the numbers of each message's links, shape (messages, hops); limits: the most that each can have, shape
    (messages,); capacities: what each link carries, shape (links,).
    A link divides what it has left among its messages without a rate. A message gets its rate if that is its limit, or
    the part of a link that gives all its messages as little as any of their links does.
    """
    rates, room, waiting = np.zeros(len(limits)), capacities.copy(), np.arange(len(limits))
    while len(waiting):
        on, most = routes[waiting], limits[waiting]
        numbers = np.bincount(on.ravel(), minlength=len(room))
        parts = room / np.maximum(numbers, 1)
        part = parts[on].min(axis=1)
        rate = np.minimum(part, most)
        least = np.full(len(room), inf)
        np.minimum.at(least, on, rate[:, None])
        settled = (most <= part) | (least >= parts)[on].any(axis=1)
        rates[waiting[settled]] = rate[settled]
        taken = np.broadcast_to(rate[settled, None], on[settled].shape)
        room -= np.bincount(on[settled].ravel(), taken.ravel(), minlength=len(room))
        waiting = waiting[~settled]
    return rates
