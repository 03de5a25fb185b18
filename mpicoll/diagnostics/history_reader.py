"""Read the histories in the flight records of ranks.

The rows are those of history.py. A rank may write while its record is read, or may have been killed while
it wrote: a row whose checksum does not fit is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from ..schedules.collectives import PERSISTENT
from . import history
from .history import (
    COMM_SHIFT,
    FAILED,
    HANDED_OVER,
    HEADER,
    ID,
    LOCATION_SHIFT,
    NUMBER_SHIFT,
    ROOT_SHIFT,
    numbered,
)

UNKNOWN = "?"  # for words for which the record had no room
INEXACT = 1e-4  # seconds by which a time that was converted from ticks may be wrong; a thousand calls take longer


class Row(NamedTuple):
    """A call in a rank's history; times are seconds since 1970, and took is None where no end was seen.

    start is which start of a persistent request it is, 0 for another call and for the making of the request. root is -1
    for a collective without one.
    """

    serial: int
    communicator: str
    call: int
    start: int
    method: str
    form: str
    algorithm: str
    operator: str
    root: int
    nbytes: int
    state: str
    began: float
    took: float | None
    location: str

    @property
    def passed(self) -> tuple[object, ...]:
        """Return the arguments that MPI wants alike on all ranks: not bytes where each rank has its own counts."""
        method = self.method.lower().removeprefix("i")  # an Iallreduce sends what an Allreduce does
        base = method.removesuffix("_init")
        has_own_counts = base.startswith("neighbor_") or base.endswith(("v", "w"))
        return method, self.root, self.operator, self.algorithm, -1 if has_own_counts else self.nbytes

    def __str__(self) -> str:
        of = f" of {self.nbytes:,} bytes" if self.nbytes else ""
        root = f", root {self.root}" if self.root >= 0 else ""
        operator = f", {self.operator}" if self.operator else ""
        return f"{self.method}{of}{operator}{root}, by {self.algorithm}"

    @property
    def what(self) -> tuple[object, ...]:
        """Return all but the times and the number of the row in its record."""
        return self[1:11] + self[13:]


def rows(content: bytes) -> list[Row]:
    """Return the calls in the history of a record, the oldest first."""
    size = 8 * (HEADER + history.ROWS * history.COLUMNS)
    words = np.frombuffer(content[:size], np.int64)
    table = words[HEADER:].reshape(-1, history.COLUMNS)
    serial, ids, sequence, start, nbytes, began, _, check = table.T
    # int64 wraps, as in the code that wrote the sum
    is_whole = (serial > 0) & (history.checksum(serial, ids, sequence, start, nbytes, began) == check)
    lines = _lines(content[size : size + int(words[history.WORDS_END])])
    clock = _Clock(words)
    table = table[is_whole]
    return [_row(line, lines, clock) for line in table[np.argsort(table[:, history.SERIAL])].tolist()]


def _lines(content: bytes) -> list[object]:
    lines: list[object] = [None]
    for text in content.splitlines():
        lines.append(None)
        with suppress(ValueError):
            lines[-1] = json.loads(text)
    return lines


class _Clock:
    """Converts the times of rows to seconds since 1970, by the pairs of ticks and nanoseconds of the record."""

    def __init__(self, words: np.ndarray) -> None:
        self.ticks, self.ns, last_ticks, last_ns = words[history.FIRST_TICKS : history.LAST_NS + 1].tolist()
        apart = last_ticks - self.ticks
        self.ns_per_tick: float | None = (last_ns - self.ns) / apart if apart > 0 else None

    def seconds(self, word: int) -> float:
        """Return the time of a row."""
        if word >= 0:
            return word * 1e-9
        return float(self.ns + (-word - self.ticks) * (self.ns_per_tick or 0.0)) * 1e-9

    def between(self, began: int, ended: int) -> float | None:
        """Return the seconds from one to the other; None if the record does not say how long a tick is."""
        if began < 0 and ended < 0:
            return (began - ended) * 1e-9 * self.ns_per_tick if self.ns_per_tick is not None else None
        return self.seconds(ended) - self.seconds(began)


def _row(words: Sequence[int], lines: Sequence[object], clock: _Clock) -> Row:
    serial, ids, sequence, start, nbytes, began, ended, _ = words
    kind = _at(lines, ids & ID)
    name, form, algorithm, operator = map(str, kind) if isinstance(kind, list) and len(kind) == 4 else [UNKNOWN] * 4
    number, sequence = sequence >> NUMBER_SHIFT, sequence & ((1 << NUMBER_SHIFT) - 1)
    comm, location = _at(lines, ids >> COMM_SHIFT & ID), _at(lines, ids >> LOCATION_SHIFT & ID)
    root, start = (start >> ROOT_SHIFT) - 1, start & ((1 << ROOT_SHIFT) - 1)
    seconds = clock.between(began, ended) if ended not in (0, FAILED, HANDED_OVER) else None
    # an end that is older than the beginning was left by the call that had the row before
    is_over = ended not in (0, FAILED, HANDED_OVER) and (seconds is None or seconds > -INEXACT)
    handed_over = "done" if form == PERSISTENT else "left to MPI"  # a request that was made; one that MPI completes
    state = {FAILED: "failed", HANDED_OVER: handed_over}.get(ended, "done" if is_over else "in flight")
    took = max(0.0, seconds) if is_over and seconds is not None else None
    communicator = numbered(str(comm), number) if comm else UNKNOWN
    call = sequence, start, name, form, algorithm, operator, root, nbytes
    return Row(serial, communicator, *call, state, clock.seconds(began), took, str(location or UNKNOWN))


def _at(lines: Sequence[object], number: int) -> object:
    return lines[number] if number < len(lines) else None


def last_call(its_rows: Sequence[Row]) -> str:
    """Return the last call of a rank, in words; empty if it made none."""
    if not its_rows:
        return ""
    row = its_rows[-1]
    number = f"call {row.call}{f', start {row.start}' if row.start else ''} on {row.communicator}"
    return f"last in {row.method} ({number}, {row.state}), at {row.location}"
