"""Append the records of a communicator's calls to every trace of it, and to the ring of timelines."""

from __future__ import annotations

import numpy as np

from .counters import RING_SHIFT, TRACES
from .record import Record, Sink
from .ring import RingSink


class Sinks:
    """The sinks of one communicator. Its counters say which of them the fast path serves itself."""

    def __init__(self, counters: np.ndarray) -> None:
        self.counters, self.sinks, self.ring_sink = counters, list[Sink](), RingSink()

    def __bool__(self) -> bool:
        return bool(self.sinks)

    def add(self, sink: Sink) -> None:
        """Append the records of all calls to this sink, until remove()."""
        self._set([*self.sinks, sink])

    def remove(self, sink: Sink) -> None:
        """Stop appending records to this sink."""
        self._set([other for other in self.sinks if other is not sink])  # two sinks may be equal lists

    def add_ring(self) -> int:
        """Write all calls into the ring until the matching remove_ring(); return the number that its rows have."""
        self.ring_sink.users += 1
        if self.ring_sink.users == 1:
            self.add(self.ring_sink)
        return self.ring_sink.number

    def remove_ring(self) -> None:
        """Undo one add_ring()."""
        self.ring_sink.users -= 1
        if not self.ring_sink.users:
            self.remove(self.ring_sink)

    def _set(self, sinks: list[Sink]) -> None:
        """Set the sinks. The fast path writes into the ring itself, and lets Python make records for the others."""
        self.sinks = sinks
        in_ring = self.ring_sink.users > 0
        self.counters[TRACES] = len(sinks) - in_ring + (self.ring_sink.number * in_ring << RING_SHIFT)

    def append(self, record: Record) -> None:
        """Append a record to every sink."""
        for sink in self.sinks:
            sink.append(record)
