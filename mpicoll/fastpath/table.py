"""The kinds of calls that a fast path serves: what it caches of each, and the row by which the function finds it."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from ..buffers.operators import Operator
from ..diagnostics.record import Record
from ..dispatch.call import Prepared
from ..dispatch.methods import Method
from ..engines import compiled
from ..selection.select import Choice
from . import entry, signature
from .any_counts import AnyCounts
from .packs import Packs

SEEN = 4 * signature.ROWS  # kinds that were served once and whose plans are recorded


@dataclass(frozen=True)
class Key:
    """The key of a kind of call: the words that its row in the function's table begins with, or would begin with.

    any_row: where its row would be if it were served whatever its counts.
    """

    row: int
    any_row: int
    words: np.ndarray
    details: np.ndarray

    @property
    def digest(self) -> int:
        """Return a hash, which two kinds share only by a rare chance."""
        return hash((self.words.tobytes(), self.details.tobytes()))

    @property
    def any_words(self) -> np.ndarray:
        """Return the words without counts."""
        words: np.ndarray = self.words.copy()
        words[COUNTS] = np.minimum(words[COUNTS], 0)
        return words


COUNTS = [signature.SEND_COUNT, signature.RECV_COUNT]
Seen = tuple["weakref.ref[Prepared]", tuple[tuple[int, int], ...]]  # the plan of a call, and the sides of its buffers


Counts = tuple[bytes, bytes]
NEVER: Counts = b"", b""


@dataclass(frozen=True)
class Kind:
    """A cached kind of call: an execution that lacks only buffers and a tag; keep has the objects of its key.

    any_counts binds the execution to the counts of each call; it is None where they are part of the kind. packs says
    what is packed and unpacked, None for nothing. operator is a user's, which keeps the errors of its function.
    """

    execution: compiled.Execution
    choice: Choice
    record: Record
    method: Method
    nbytes: int
    details: np.ndarray
    keep: Any
    any_counts: AnyCounts | None = None
    packs: Packs | None = None
    operator: Operator | None = None

    def error(self) -> BaseException | None:
        """Return the error that the function of a user's operator raised in the last call, once."""
        errors = self.operator.errors if self.operator is not None else None
        if not errors:
            return None
        first = errors[0]
        errors.clear()
        return first

    def settle(self) -> None:
        """Have the execution's plan say what the last call was bound to."""
        if self.any_counts is not None:
            self.any_counts.settle()

    def record_of_call(self, **did: Any) -> Record:
        """Return the record of the last call, once settled; did: its fields that say what the call did."""
        if self.any_counts is not None:
            plan = self.execution.plan
            did |= {"nbytes": self.any_counts.call_bytes, "lanes": plan.lanes, "received": plan.received_bytes}
        return replace(self.record, fast_path=True, **did)


class Stats(NamedTuple):
    """The contents of a fast path: kinds under the overrides in force, under all, how many overrides, bytes."""

    kinds: int
    all_kinds: int
    overrides: int
    nbytes: int


class Table:
    """Kinds of calls by their row, as Python has them and as the function does."""

    def __init__(self) -> None:
        self.rows = np.zeros((2 * signature.ROWS, entry.COLUMNS), np.int64)
        self.kinds: dict[int, tuple[Kind, np.ndarray]] = {}
        self.seen: OrderedDict[int, Seen] = OrderedDict()  # by a hash of the key and the details
        self.served: OrderedDict[Hashable, Counts] = OrderedDict()  # by what is alike in calls of any counts

    def was_seen(self, key: Key, served: Seen) -> bool:
        """Return whether the same plan served the last call of that kind; record this one for the next."""
        before, self.seen[key.digest] = self.seen.get(key.digest), served
        self.seen.move_to_end(key.digest)
        if len(self.seen) > SEEN:
            self.seen.popitem(last=False)
        return before == served

    def varies(self, alike: Hashable, key: Key) -> bool:
        """Return whether the last call that was alike had other counts; record those of this one for the next."""
        counts = self.served.get(alike)
        if counts is NEVER:
            return False
        self.served[alike] = now = (key.words.tobytes(), key.details.tobytes())
        self.served.move_to_end(alike)
        if len(self.served) > SEEN:
            self.served.popitem(last=False)
        return counts is not None and counts != now

    def give_up(self, alike: Hashable) -> None:
        """Have varies() return False for calls that are alike."""
        self.served[alike] = NEVER

    def put(self, at: int, kind: Kind, row: np.ndarray) -> None:
        """Store a kind in a row, replacing the previous one."""
        self.kinds[at] = kind, row
        self.rows[at] = row

    def clear(self) -> None:
        """Remove every kind."""
        self.rows[:] = 0
        self.kinds.clear()
        self.seen.clear()
        self.served.clear()

    def take(self, at: int) -> tuple[Kind, np.ndarray] | None:
        """Remove the kind in a row and return it, None if there is none."""
        self.rows[at] = 0
        return self.kinds.pop(at, None)
