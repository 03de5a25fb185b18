"""Describe the bytes of a datatype as runs of memory, in packing order.

Loops repeat a pattern of runs (offset, length). So a column of a million rows is one run in one loop, and a box of a
cube is one run in two. Offsets are in bytes from an element's address; they may be negative, or absolute addresses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ..kernels.pack import Layout

__all__ = ["LIMIT", "Runs"]

LIMIT = 1 << 18  # runs in a pattern, 16 bytes each


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of `lengths[i]` bytes at `offsets[i]`, repeated by loops of (count, stride in bytes), outermost first.

    No run is empty.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    loops: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, offsets: Any, lengths: Any) -> Runs:
        """Return runs without empty ones, and with adjacent ones joined; equal runs at one stride become a loop."""
        offsets, lengths = np.asarray(offsets, np.int64), np.asarray(lengths, np.int64)
        offsets, lengths = offsets[lengths > 0], lengths[lengths > 0]
        if offsets.size > 1:
            apart = offsets[1:] != offsets[:-1] + lengths[:-1]
            first = np.flatnonzero(np.concatenate([[True], apart]))
            offsets, lengths = offsets[first], np.add.reduceat(lengths, first)
        if offsets.size > 1 and (lengths == lengths[0]).all() and (stride := _step(offsets)) is not None:
            return cls(offsets[:1].copy(), lengths[:1].copy(), ((offsets.size, stride),))
        return cls(offsets, lengths)

    @property
    def run_count(self) -> int:
        """Return the run_count of runs with the loops unrolled."""
        return self.offsets.size * prod(count for count, _ in self.loops)

    @property
    def nbytes(self) -> int:
        return int(self.lengths.sum()) * prod(count for count, _ in self.loops)

    @property
    def is_solid(self) -> bool:
        """Return whether this is one run without loops."""
        return self.offsets.size == 1 and not self.loops

    @cached_property
    def layout(self) -> Layout:
        """Return the arrays that kernels read."""
        counts, strides = np.array(self.loops, np.int64).reshape(-1, 2).T
        return Layout(*map(np.ascontiguousarray, (counts, strides, self.offsets, self.lengths)))

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets and lengths with the loops unrolled."""
        offsets = self.offsets
        for count, stride in reversed(self.loops):
            offsets = (stride * np.arange(count)[:, None] + offsets).ravel()
        return offsets, np.tile(self.lengths, offsets.size // max(self.lengths.size, 1))

    def shifted(self, offset: int) -> Runs:
        return Runs(self.offsets + offset, self.lengths, self.loops) if offset else self

    def repeated(self, count: int, stride: int) -> Runs:
        """Return the runs repeated `count` times, `stride` bytes apart."""
        if count == 0 or not self.offsets.size:
            return Runs.of([], [])
        if count == 1:
            return self
        if self.is_solid and stride == self.lengths[0]:
            return Runs(self.offsets, self.lengths * count)
        if self.loops and stride == prod(self.loops[0]):
            return Runs(self.offsets, self.lengths, ((count * self.loops[0][0], self.loops[0][1]), *self.loops[1:]))
        return Runs(self.offsets, self.lengths, ((count, stride), *self.loops))

    def placed(self, starts: np.ndarray) -> Runs | None:
        """Return the runs repeated at each start; None for more than LIMIT runs."""
        if not starts.size or not self.offsets.size:
            return Runs.of([], [])
        if (stride := _step(starts)) is not None:
            return self.shifted(int(starts[0])).repeated(starts.size, stride)
        if self.run_count * starts.size > LIMIT:
            return None
        offsets, lengths = self.flat()
        return Runs.of((starts[:, None] + offsets).ravel(), np.tile(lengths, starts.size))

    def blocks(self, extent: int, lengths: Sequence[int], displacements: Sequence[int]) -> Runs | None:
        """Return `lengths[i]` repetitions, `extent` bytes apart, at each `displacements[i]`; None above LIMIT runs."""
        times, starts = np.asarray(lengths, np.int64), np.asarray(displacements, np.int64)
        times, starts = times[times > 0], starts[times > 0]
        if times.size and (times == times[0]).all():
            return self.repeated(int(times[0]), extent).placed(starts)
        if self.is_solid and extent == self.lengths[0]:
            return Runs.of(starts + self.offsets[0], times * extent) if times.size <= LIMIT else None
        if (total := int(times.sum())) * self.run_count > LIMIT:
            return None
        within = np.arange(total) - np.repeat(np.cumsum(times) - times, times)
        return self.placed(np.repeat(starts, times) + within * extent)


def join(parts: Iterable[Runs | None]) -> Runs | None:
    """Return the runs of all parts, in packing order; None if any part is None, or above LIMIT runs."""
    nonempty_parts: list[Runs] = []
    for part in parts:
        if part is None:
            return None
        if part.offsets.size:
            nonempty_parts.append(part)
    if len(nonempty_parts) == 1:
        return nonempty_parts[0]
    if sum(part.run_count for part in nonempty_parts) > LIMIT:
        return None
    flat = [part.flat() for part in nonempty_parts]
    empty = np.empty(0, np.int64)
    return Runs.of(*(np.concatenate([empty, *column]) for column in (zip(*flat) if flat else ((), ()))))


def _step(values: np.ndarray) -> int | None:
    """Return the difference of neighbours if it is the same for all (0 for a single value), else None."""
    if values.size == 1:
        return 0
    steps = np.diff(values)
    return int(steps[0]) if (steps == steps[0]).all() else None
