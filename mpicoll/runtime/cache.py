"""Cache plans and templates for later calls, limited in number and in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any

MAX_ENTRIES = 2048  # of a communicator
MAX_BYTES = 64 << 20  # of their plans, idle executions, and the counts in their keys
MAX_OVERRIDES = 64  # values of Overrides with entries

Entries = dict[Hashable, Any]


class Cache:
    """Map overrides and the key of a call to its plan. Beyond a limit evict the oldest entries, never the last."""

    def __init__(self) -> None:
        self.tables: OrderedDict[Hashable, Entries] = OrderedDict()
        self.templates: Entries = {}  # plans are bound from these, under any overrides
        self.order: deque[tuple[Entries, Hashable, int]] = deque()
        self.nbytes = 0
        self.lock = threading.Lock()

    def activate(self, overrides: Hashable) -> Entries:
        """Return the entries for these overrides, which become the most recently used."""
        with self.lock:
            table = self.tables.setdefault(overrides, {})
            self.tables.move_to_end(overrides)
            if len(self.tables) > MAX_OVERRIDES:
                self.tables.popitem(last=False)[1].clear()
            return table

    def add(self, table: Entries, key: Hashable, value: Any, nbytes: int) -> None:
        """Add a value of nbytes to a table: the entries of activate(), or `templates`."""
        with self.lock:
            table[key] = value
            self.order.append((table, key, nbytes))
            self.nbytes += nbytes
            while len(self.order) > 1 and (len(self.order) > MAX_ENTRIES or self.nbytes > MAX_BYTES):
                table, key, nbytes = self.order.popleft()
                table.pop(key, None)
                self.nbytes -= nbytes

    def clear(self) -> None:
        """Remove everything."""
        with self.lock:
            for table in self.tables.values():
                table.clear()
            self.tables.clear()
            self.templates.clear()
            self.order.clear()
            self.nbytes = 0
