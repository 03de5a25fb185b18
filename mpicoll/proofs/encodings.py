"""Count how often each contribution was encoded on its way to a result: every encoding adds to the result's error.

A schedule is executed on counts: for each rank, how often its contribution was encoded.
"""

from __future__ import annotations

from functools import lru_cache

from ..schedules.ir import CODED, VALUE, Copy
from ..schedules.schedule import Schedule
from .symbolic import SymbolicExecution
from .values import Value

Counts = tuple[tuple[int, int], ...]  # (rank, how often its contribution was encoded), by rank


class Encodings(SymbolicExecution):
    """A symbolic execution that counts encodings in every block."""

    def __init__(self, schedule: Schedule) -> None:
        self.known: dict[Counts, int] = {}
        self.counts: list[Counts] = []
        super().__init__(schedule)
        self.execute()

    def _number(self, counts: Counts) -> int:
        """Return a number for the counts: equal counts have equal numbers."""
        if counts not in self.known:
            self.known[counts] = len(self.counts)
            self.counts.append(counts)
        return self.known[counts]

    def _contribution(self, rank: int) -> Value:
        return self._number(((rank, 0),))

    def _combine(self, left: Value, right: Value) -> Value:
        assert isinstance(left, int) and isinstance(right, int)
        return self._number(tuple(sorted((*self.counts[left], *self.counts[right]))))

    def _copied(self, value: Value, op: Copy) -> Value:
        assert isinstance(value, int)
        if op.dst.buffer not in CODED:
            return value
        return self._number(tuple((rank, times + 1) for rank, times in self.counts[value]))

    def of(self, rank: int, block: object) -> Counts:
        """Return the contributions to one rank's result: (rank, how often it was encoded)."""
        number = self.trace.memory[rank][VALUE][block]
        assert isinstance(number, int)
        return self.counts[number]

    def most(self) -> int:
        """Return the largest count of any contribution to any result."""
        schedule = self.schedule
        ends = ((rank, block) for rank in range(schedule.p) for block in schedule.ends(rank))
        return max((times for rank, block in ends for _, times in self.of(rank, block)), default=0)


@lru_cache(maxsize=1)
def encodings_of(schedule: Schedule) -> Encodings:
    """Return the encodings of a schedule, counted once for all proofs that follow each other."""
    return Encodings(schedule)
