"""A cache for the next calls of the same kind, limited in number and in memory."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Any

LIMIT = 2048  # kinds of calls that are kept for a communicator
LIMIT_BYTES = 64 << 20  # and the memory of their plans, the counts they are found by and their idle executions
OVERRIDES = 64  # choices of overrides among them

Kinds = dict[Hashable, Any]


class Cache:
    """Cached plans, by overrides in force and kind of call. Beyond a limit the oldest are evicted, never the last."""

    def __init__(self) -> None:
        self.tables: OrderedDict[Hashable, Kinds] = OrderedDict()
        self.templates: Kinds = {}  # from which plans are bound, whatever overrides are in force
        self.order: deque[tuple[Kinds, Hashable, int]] = deque()
        self.nbytes = 0
        self.lock = threading.Lock()

    def activate(self, overrides: Hashable) -> Kinds:
        """Return the table of kinds that are cached under these overrides."""
        with self.lock:
            table = self.tables.setdefault(overrides, {})
            self.tables.move_to_end(overrides)
            if len(self.tables) > OVERRIDES:
                self.tables.popitem(last=False)[1].clear()
            return table

    def add(self, table: Kinds, key: Hashable, served: Any, nbytes: int) -> None:
        """Cache what serves a kind of call; nbytes is its memory."""
        with self.lock:
            table[key] = served
            self.order.append((table, key, nbytes))
            self.nbytes += nbytes
            while len(self.order) > 1 and (len(self.order) > LIMIT or self.nbytes > LIMIT_BYTES):
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
