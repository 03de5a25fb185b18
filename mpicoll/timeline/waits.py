"""Find where the time in collectives went: to ranks that came late, to data, or behind computing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from .read import Part, TimelineFile

_TIMES = slice(3, 5)  # of a Part: when it began and ended


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


class _Parts:
    """The parts of calls as arrays, call by call, and what follows for each call."""

    def __init__(self, calls: Sequence[Sequence[Part]]) -> None:
        parts = list(chain.from_iterable(calls))
        self.size = np.fromiter(map(len, calls), np.int64, len(calls))
        self.call = np.repeat(np.arange(len(calls)), self.size)
        self.starts = np.cumsum(self.size) - self.size
        self.began, self.ended = np.array([part[_TIMES] for part in parts]).reshape(-1, 2).T
        self.last = np.maximum.reduceat(self.began, self.starts)  # when the last rank began
        self.end = np.maximum.reduceat(self.ended, self.starts)
        self.late = self.sum(np.minimum(self.last[self.call], self.ended) - self.began)

    def sum(self, times: np.ndarray) -> np.ndarray:
        """Return the sum over the ranks of each call."""
        return np.bincount(self.call, times, len(self.size))


def sums(timeline: TimelineFile) -> list[Sum]:
    """Return the sums of all collectives and sizes, the most time first."""
    calls = list(timeline.calls.values())
    parts = _Parts(calls)
    totals = dict[tuple[str, int], Sum]()
    numbers = list[int]()  # of the sum to which each call belongs
    places = dict[tuple[str, int], int]()
    for of_call in calls:
        key = of_call[0].name, of_call[0].facts["bytes"]
        if key not in totals:
            places[key], totals[key] = len(places), Sum(*key)
        numbers.append(places[key])
        totals[key].algorithms.update([part.facts["algorithm"] for part in of_call])
    exposed = np.array([part.facts["exposed_us"] for part in chain.from_iterable(calls)])
    inside = parts.sum(parts.ended - parts.began) / parts.size
    hidden = np.maximum(0.0, inside - parts.sum(exposed) / parts.size)
    fastest = np.full(len(totals), np.inf)
    np.minimum.at(fastest, numbers, parts.end - parts.last)
    columns = (np.bincount(numbers, times).tolist() for times in (inside, parts.late / parts.size, hidden))
    rows = zip(totals.values(), np.bincount(numbers).tolist(), *columns, fastest.tolist())
    for total, *values in rows:
        total.calls, total.inside, total.late, total.hidden, total.fastest = values
    return sorted(totals.values(), key=lambda total: -total.inside)


def stragglers(timeline: TimelineFile) -> list[Straggler]:
    """Return the ranks for which others waited, the longest first."""
    calls = list(timeline.calls.values())
    parts = _Parts(calls)
    waited = parts.late / np.maximum(1, parts.size - 1)
    began_last = np.flatnonzero(parts.began == parts.last[parts.call])
    of_calls = began_last[np.unique(parts.call[began_last], return_index=True)[1]] - parts.starts
    ranks: dict[int, Straggler] = {}
    for of_call, index, us in zip(calls, of_calls.tolist(), waited.tolist()):
        if us > 0:
            last = of_call[index]
            straggler = ranks.setdefault(last.rank, Straggler(last.rank))
            straggler.times += 1
            straggler.waited += us
            if us > straggler.worst:
                straggler.worst, straggler.where = us, f"{last.name}, call {last.facts['call']}"
    return sorted(ranks.values(), key=lambda straggler: -straggler.waited)


def slowest(timeline: TimelineFile, number: int | None = None) -> list[Part]:
    """Return the call that took longest once its first rank had begun, as its ranks saw it.

    Of all calls, or of those with this number. Raises ValueError if there is none.
    """
    calls = [parts for key, parts in timeline.calls.items() if number in (None, key[1])]
    if not calls:
        numbers = [number for _, number, _ in timeline.calls]
        raise ValueError(f"{timeline.path} has no call {number}; its calls are {min(numbers)} to {max(numbers)}")
    parts = _Parts(calls)
    return calls[int(np.argmax(parts.end - np.minimum.reduceat(parts.began, parts.starts)))]
