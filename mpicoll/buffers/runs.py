"""The bytes of a datatype as runs of memory, in the order in which they are packed.

A few runs (offset, length) are the pattern; loops around them repeat it, so that a column of a million rows and a
box of a cube are one run and a loop or two. Offsets are in bytes from the address an element is said to be at, and
may be negative, or absolute addresses.
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

LIMIT = 1 << 18  # runs of one pattern, 16 bytes each


@dataclass(frozen=True, eq=False)
class Runs:
    """`lengths[i]` bytes at `offsets[i]`, for i in order, and this for each turn of the loops (count, stride in bytes).

    The outermost loop is the first. Runs that touch are one run, and empty ones left out.
    """

    offsets: np.ndarray
    lengths: np.ndarray
    loops: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, offsets: Any, lengths: Any) -> Runs:
        """Any list of runs. Those of one length at one distance become one run and a loop."""
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
    def number(self) -> int:
        """Of runs, loops unrolled."""
        return self.offsets.size * prod(count for count, _ in self.loops)

    @property
    def nbytes(self) -> int:
        return int(self.lengths.sum()) * prod(count for count, _ in self.loops)

    @property
    def solid(self) -> bool:
        """Return whether this is a single run without loops."""
        return self.offsets.size == 1 and not self.loops

    @cached_property
    def layout(self) -> Layout:
        """Return the arrays that the kernels take."""
        counts, strides = np.array(self.loops, np.int64).reshape(-1, 2).T
        return Layout(*map(np.ascontiguousarray, (counts, strides, self.offsets, self.lengths)))

    def flat(self) -> tuple[np.ndarray, np.ndarray]:
        """Return offsets and lengths with the loops unrolled."""
        offsets = self.offsets
        for count, stride in reversed(self.loops):
            offsets = (stride * np.arange(count)[:, None] + offsets).ravel()
        return offsets, np.tile(self.lengths, offsets.size // max(self.lengths.size, 1))

    def shifted(self, by: int) -> Runs:
        return Runs(self.offsets + by, self.lengths, self.loops) if by else self

    def repeated(self, count: int, stride: int) -> Runs:
        """Return the runs repeated `count` times, `stride` bytes apart."""
        if count == 0 or not self.offsets.size:
            return Runs.of([], [])
        if count == 1:
            return self
        if self.solid and stride == self.lengths[0]:
            return Runs(self.offsets, self.lengths * count)
        if self.loops and stride == prod(self.loops[0]):
            return Runs(self.offsets, self.lengths, ((count * self.loops[0][0], self.loops[0][1]), *self.loops[1:]))
        return Runs(self.offsets, self.lengths, ((count, stride), *self.loops))

    def placed(self, starts: np.ndarray) -> Runs | None:
        """Once from each start. None where that makes too many runs."""
        if not starts.size or not self.offsets.size:
            return Runs.of([], [])
        if (stride := _step(starts)) is not None:
            return self.shifted(int(starts[0])).repeated(starts.size, stride)
        if self.number * starts.size > LIMIT:
            return None
        offsets, lengths = self.flat()
        return Runs.of((starts[:, None] + offsets).ravel(), np.tile(lengths, starts.size))

    def blocks(self, extent: int, lengths: Sequence[int], displacements: Sequence[int]) -> Runs | None:
        """`lengths[i]` times, `extent` bytes apart, from displacements[i] bytes on. None where it is too many runs."""
        times, starts = np.asarray(lengths, np.int64), np.asarray(displacements, np.int64)
        times, starts = times[times > 0], starts[times > 0]
        if times.size and (times == times[0]).all():
            return self.repeated(int(times[0]), extent).placed(starts)
        if self.solid and extent == self.lengths[0]:
            return Runs.of(starts + self.offsets[0], times * extent) if times.size <= LIMIT else None
        if (total := int(times.sum())) * self.number > LIMIT:
            return None
        within = np.arange(total) - np.repeat(np.cumsum(times) - times, times)
        return self.placed(np.repeat(starts, times) + within * extent)


def join(parts: Iterable[Runs | None]) -> Runs | None:
    """Return one behind the other in what is packed. None where one is None, or they are too many runs."""
    nonempty_parts: list[Runs] = []
    for part in parts:
        if part is None:
            return None
        if part.offsets.size:
            nonempty_parts.append(part)
    if len(nonempty_parts) == 1:
        return nonempty_parts[0]
    if sum(part.number for part in nonempty_parts) > LIMIT:
        return None
    flat = [part.flat() for part in nonempty_parts]
    empty = np.empty(0, np.int64)
    return Runs.of(*(np.concatenate([empty, *column]) for column in (zip(*flat) if flat else ((), ()))))


def _step(values: np.ndarray) -> int | None:
    """Return the distance of each to the next, where it is the same for all."""
    if values.size == 1:
        return 0
    steps = np.diff(values)
    return int(steps[0]) if (steps == steps[0]).all() else None
