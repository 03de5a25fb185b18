"""The kinds of calls that a fast path serves: what it caches of each, and the row by which the function finds it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..dispatch.methods import Method
from ..dispatch.prepare import Prepared
from ..engines import compiled
from ..runtime.operation import Record
from ..selection.select import Choice
from . import entry, signature

SEEN = 4 * signature.ROWS  # kinds that were served once and whose plans are recorded


@dataclass(frozen=True)
class Key:
    """The key of a kind of call: the words that its row in the function's table begins with, or would begin with."""

    row: int
    words: np.ndarray
    details: np.ndarray

    @property
    def digest(self) -> int:
        """Return a hash, which two kinds share only by a rare chance."""
        return hash((self.words.tobytes(), self.details.tobytes()))


Seen = tuple["weakref.ref[Prepared]", tuple[tuple[int, int], ...]]  # the plan of a call, and the sides of its buffers


@dataclass(frozen=True)
class Kind:
    """A cached kind of call: an execution that lacks only buffers and a tag; keep has the objects of its key."""

    execution: compiled.Execution
    choice: Choice
    record: Record
    method: Method
    nbytes: int
    details: np.ndarray
    keep: Any

    def is_of(self, key: Key, row: np.ndarray) -> bool:
        """Return whether this kind has that key; row is this kind's own."""
        return np.array_equal(row[: signature.KEYS], key.words) and np.array_equal(self.details, key.details)


class Stats(NamedTuple):
    """The contents of a fast path: kinds under the overrides in force, under all, how many overrides, bytes."""

    kinds: int
    all_kinds: int
    overrides: int
    nbytes: int


class Table:
    """Kinds of calls by their row, as Python has them and as the function does."""

    def __init__(self) -> None:
        self.rows = np.zeros((signature.ROWS, entry.COLUMNS), np.int64)
        self.kinds: dict[int, tuple[Kind, np.ndarray]] = {}
        self.seen: OrderedDict[int, Seen] = OrderedDict()  # by a hash of the key and the details

    def was_seen(self, key: Key, served: Seen) -> bool:
        """Return whether the same plan served the last call of that kind; record this one for the next."""
        before, self.seen[key.digest] = self.seen.get(key.digest), served
        self.seen.move_to_end(key.digest)
        if len(self.seen) > SEEN:
            self.seen.popitem(last=False)
        return before == served

    def put(self, at: int, kind: Kind, row: np.ndarray) -> None:
        """Store a kind in a row, replacing the previous one."""
        self.kinds[at] = kind, row
        self.rows[at] = row

    def clear(self) -> None:
        """Remove every kind."""
        self.rows[:] = 0
        self.kinds.clear()
        self.seen.clear()

    def take(self, at: int) -> tuple[Kind, np.ndarray] | None:
        """Remove the kind in a row and return it, None if there is none."""
        self.rows[at] = 0
        return self.kinds.pop(at, None)
