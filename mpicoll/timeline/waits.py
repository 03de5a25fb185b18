"""Find where the time in collectives went: to ranks that came late, to data, or behind computing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .read import Part, TimelineFile


@dataclass
class Sum:
    """The calls of one collective and size. Times are microseconds, sums over calls of means over ranks."""

    name: str
    nbytes: int
    algorithms: set[str] = field(default_factory=set)
    calls: int = 0
    inside: float = 0.0  # from beginning to end
    late: float = 0.0  # of that, until the last rank had begun
    hidden: float = 0.0  # of that, while the program did not wait
    fastest: float = float("inf")  # of a call, from the last rank's beginning to the last rank's end

    def add(self, parts: Sequence[Part]) -> None:
        """Add a call, as its ranks saw it."""
        p, last = len(parts), max(part.began for part in parts)
        inside = sum(part.ended - part.began for part in parts) / p
        self.calls += 1
        self.algorithms.update(part.facts["algorithm"] for part in parts)
        self.inside += inside
        self.late += sum(waits(parts).values()) / p
        self.hidden += max(0.0, inside - sum(part.facts["exposed_us"] for part in parts) / p)
        self.fastest = min(self.fastest, max(part.ended for part in parts) - last)

    @property
    def beyond(self) -> float:
        """Return the microseconds that were neither waiting for late ranks nor needed at the pace of the fastest."""
        return max(0.0, self.inside - self.late - self.calls * self.fastest)


@dataclass
class Straggler:
    """A rank that began calls last: how often, how long others waited (sum of means, µs), and in which call most."""

    rank: int
    times: int = 0
    waited: float = 0.0
    worst: float = 0.0
    where: str = ""


def waits(parts: Iterable[Part]) -> dict[int, float]:
    """Return the microseconds that each rank spent in a call before the last rank had begun it."""
    parts = list(parts)
    last = max(part.began for part in parts)
    return {part.rank: min(last, part.ended) - part.began for part in parts}


def sums(timeline: TimelineFile) -> list[Sum]:
    """Return the sums of all collectives and sizes, the most time first."""
    totals: dict[tuple[str, int], Sum] = {}
    for parts in timeline.calls.values():
        name, nbytes = parts[0].name, parts[0].facts["bytes"]
        totals.setdefault((name, nbytes), Sum(name, nbytes)).add(parts)
    return sorted(totals.values(), key=lambda total: -total.inside)


def stragglers(timeline: TimelineFile) -> list[Straggler]:
    """Return the ranks for which others waited, the longest first."""
    ranks: dict[int, Straggler] = defaultdict(lambda: Straggler(-1))
    for parts in timeline.calls.values():
        last = max(parts, key=lambda part: part.began)
        waited = sum(waits(parts).values()) / max(1, len(parts) - 1)
        if waited > 0:
            straggler = ranks[last.rank]
            straggler.rank = last.rank
            straggler.times += 1
            straggler.waited += waited
            if waited > straggler.worst:
                straggler.worst, straggler.where = waited, f"{last.name}, call {last.facts['call']}"
    return sorted(ranks.values(), key=lambda straggler: -straggler.waited)


def slowest(timeline: TimelineFile, number: int | None = None) -> list[Part]:
    """Return the call that took longest once its first rank had begun, as its ranks saw it.

    Of all calls, or of those with this number. Raises ValueError if there is none.
    """
    calls = [parts for key, parts in timeline.calls.items() if number in (None, key[1])]
    if not calls:
        numbers = [number for _, number, _ in timeline.calls]
        raise ValueError(f"{timeline.path} has no call {number}; its calls are {min(numbers)} to {max(numbers)}")
    return max(calls, key=lambda parts: max(p.ended for p in parts) - min(p.began for p in parts))
