"""Store the cached calls of a fast path, and the rows by which the compiled function finds them."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..buffers.operators import Operator
from ..diagnostics.record import Record
from ..diagnostics.ring import CallKind
from ..dispatch.call import Prepared
from ..dispatch.methods import Method
from ..engines import compiled
from ..selection.select import Choice
from . import rows, signature
from .any_counts import AnyCounts
from .packed_buffers import PackedBuffers

MAX_SEEN = 4 * signature.ROWS  # keys of calls whose last plan, or last counts, are recorded


@dataclass(frozen=True)
class Key:
    """The key of a kind of call.

    - words: the first columns of its row.
    - row: its row for fixed counts; any_row: its row for any counts.
    - details: see signature.py.
    """

    row: int
    any_row: int
    words: np.ndarray
    details: np.ndarray

    @property
    def digest(self) -> int:
        """Return a hash of the key, by which it is recorded."""
        return hash((self.words.tobytes(), self.details.tobytes()))

    @property
    def any_words(self) -> np.ndarray:
        """Return the words with counts replaced, for a row for any counts."""
        words: np.ndarray = self.words.copy()
        words[COUNTS] = np.minimum(words[COUNTS], 0)
        return words


COUNTS = [signature.SEND_COUNT, signature.RECV_COUNT]
Seen = tuple["weakref.ref[Prepared]", tuple[tuple[int, int], ...]]  # the plan of a call, and the sides of its buffers


Counts = tuple[bytes, bytes]
NEVER_VARY: Counts = b"", b""


@dataclass(frozen=True)
class CachedCall:
    """A cached call: an execution that lacks only buffers and a tag.

    - keep: the objects whose addresses the key has.
    - any_counts: binds the execution to the counts of a call; None for fixed counts.
    - packed: packs and unpacks buffers with holes; None if there are none.
    - operator: an operator whose kernel is in Python, which stores its errors; else None.
    - kinds: those of its calls in timelines, blocking and nonblocking ones.
    """

    execution: compiled.Execution
    choice: Choice
    record: Record
    method: Method
    nbytes: int
    details: np.ndarray
    keep: Any
    any_counts: AnyCounts | None = None
    packed: PackedBuffers | None = None
    operator: Operator | None = None
    kinds: tuple[CallKind, ...] = ()

    def error(self) -> BaseException | None:
        """Return the error of an operator's kernel in the last call, and clear it; None if there is none."""
        errors = self.operator.errors if self.operator is not None else None
        if not errors:
            return None
        first = errors[0]
        errors.clear()
        return first

    def update_plan(self) -> None:
        """Update the execution's plan to the counts of the last call."""
        if self.any_counts is not None:
            self.any_counts.update_plan()

    def record_of_call(self, **fields: Any) -> Record:
        """Return the record of the last call, after update_plan(), with `fields` for this call."""
        if self.any_counts is not None:
            plan = self.execution.plan
            fields |= {"nbytes": self.any_counts.call_bytes, "lanes": plan.lanes, "received": plan.received_bytes}
        return self.record.with_values(fast_path=True, **fields)


class Stats(NamedTuple):
    """The contents of a fast path: cached calls under the overrides in force and under all, overrides, bytes."""

    kinds: int
    all_kinds: int
    overrides: int
    nbytes: int


class Table:
    """Cached calls by row, as Python objects and as the rows that the compiled function reads."""

    def __init__(self) -> None:
        self.rows = np.zeros((2 * signature.ROWS, rows.COLUMNS), np.int64)
        self.kinds: dict[int, tuple[CachedCall, np.ndarray]] = {}
        self.seen: OrderedDict[int, Seen] = OrderedDict()  # by a hash of the key and the details
        self.served: OrderedDict[Hashable, Counts] = OrderedDict()  # last counts, by a key without counts

    def was_served_alike(self, key: Key, served: Seen) -> bool:
        """Return whether the last call with this key had the same plan; record this one for the next."""
        before, self.seen[key.digest] = self.seen.get(key.digest), served
        self.seen.move_to_end(key.digest)
        if len(self.seen) > MAX_SEEN:
            self.seen.popitem(last=False)
        return before == served

    def counts_vary(self, family: Hashable, key: Key) -> bool:
        """Return whether the last call of a family (all but its counts) had other counts; record the new counts."""
        counts = self.served.get(family)
        if counts is NEVER_VARY:
            return False
        self.served[family] = now = (key.words.tobytes(), key.details.tobytes())
        self.served.move_to_end(family)
        if len(self.served) > MAX_SEEN:
            self.served.popitem(last=False)
        return counts is not None and counts != now

    def never_vary(self, family: Hashable) -> None:
        """Make counts_vary() return False for a family of calls."""
        self.served[family] = NEVER_VARY

    def put(self, index: int, cached: CachedCall, row: np.ndarray) -> None:
        """Store a cached call in a row, replacing the previous one."""
        self.kinds[index] = cached, row
        self.rows[index] = row

    def clear(self) -> None:
        """Remove all cached calls, and all records of earlier ones."""
        self.rows[:] = 0
        self.kinds.clear()
        self.seen.clear()
        self.served.clear()

    def take(self, index: int) -> tuple[CachedCall, np.ndarray] | None:
        """Remove the cached call in a row and return it with its row; None if there is none."""
        self.rows[index] = 0
        return self.kinds.pop(index, None)
