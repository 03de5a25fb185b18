"""Find where the time in collectives went, in traces that other programs wrote: torch.profiler, tools for MPI and NCCL.

Such a trace has collectives on the clock of its rank, and nothing of their messages. A collective is hidden while other
threads of its rank compute (for a GPU's: other kernels), and exposed otherwise.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ..errors import TimelineError
from ..errors import spans as ranges
from .intervals import covered
from .other_events import COMPUTING, COPIES, ON_DEVICE, Level, OtherCall, Slice, Track, is_count, printable, read_slices
from .read import Trace

_RANK = re.compile(r"(?:MPI )?rank (\d+)\b.*", re.IGNORECASE | re.DOTALL)


class OtherRun(NamedTuple):
    """A run that another program recorded. size is its number of ranks, if a trace says it."""

    paths: list[str]
    tool: str
    ranks: list[int]
    size: int | None
    calls: list[OtherCall]
    unknown: list[str]  # sentences on what the traces do not tell


@dataclass
class OtherSum:
    """The calls of one collective and size, or of one rank. Times are microseconds, means over ranks of sums.

    calls has their number by rank. hidden is None if the trace does not show it.
    """

    name: str
    nbytes: int | None = None
    calls: Counter[int | None] = field(default_factory=Counter)
    inside: float = 0.0
    hidden: float | None = 0.0
    longest: float = 0.0  # of a call on a rank

    def add(self, call: OtherCall, share: float) -> None:
        """Add a call, of which the times count by a share."""
        took = call.ended - call.began
        self.calls[call.rank] += 1
        self.inside += took * share
        self.longest = max(self.longest, took)
        self.hidden = None if call.hidden is None or self.hidden is None else self.hidden + call.hidden * share

    @property
    def exposed(self) -> float | None:
        """Return the microseconds in which no other thread of the rank computed."""
        return None if self.hidden is None else self.inside - self.hidden


def sums(run: OtherRun) -> list[OtherSum]:
    """Return the sums of all collectives and sizes, the most time first."""
    totals: dict[tuple[str, int | None], OtherSum] = {}
    for call in run.calls:
        totals.setdefault((call.name, call.nbytes), OtherSum(call.name, call.nbytes)).add(call, 1 / len(run.ranks))
    return sorted(totals.values(), key=lambda total: -total.inside)


def by_rank(run: OtherRun) -> list[OtherSum]:
    """Return the sums of all ranks, in order."""
    totals: dict[int | None, OtherSum] = {rank: OtherSum(f"rank {rank}") for rank in run.ranks}
    for call in run.calls:
        totals[call.rank].add(call, 1.0)
    return list(totals.values())


def collect(traces: Sequence[Trace]) -> OtherRun:
    """Return the run that traces are of, with one or more ranks in each.

    Raises TimelineError for a trace without collectives, or with damaged ones, and for traces of several runs.
    """
    for path, count in Counter(trace.path for trace in traces).items():
        if count > 1:
            raise TimelineError(f"{path} is given {count} times; give the trace of each rank once")
    processes = [process for trace in traces for process in _processes(trace)]
    size = _size(traces)
    _refuse_apart(processes)
    unknown, ranks = list[str](), [process.rank for process in processes if process.rank is not None]
    if len(ranks) < len(processes):
        ranks = list(range(len(processes)))
        unknown.append("The traces do not name their ranks; they are numbered in the order of files and processes.")
    for rank, count in Counter(ranks).items():
        if count > 1:
            first, second, *_ = (process.path for process, of in zip(processes, ranks) if of == rank)
            words = f"{first} and {second} are" if first != second else f"two processes of {first} are"
            raise TimelineError(f"{words} both of rank {rank}; give the traces of one run, each rank once")
    calls = [call for process, rank in zip(processes, ranks) for call in process.of_rank(rank)]
    endless = {process.path: process.endless for process in processes}
    unknown += _unknown(calls, ranks, size, sum(endless.values()), all(process.has_computing for process in processes))
    tools = sorted({_tool(trace) for trace in traces})
    return OtherRun([trace.path for trace in traces], ", ".join(tools), sorted(ranks), size, calls, unknown)


def _unknown(
    calls: Sequence[OtherCall], ranks: Sequence[int], size: int | None, endless: int, has_computing: bool
) -> Iterator[str]:
    """Yield what the traces do not tell, a sentence each."""
    if missing := set(range(size or 0)) - set(ranks):
        yield f"There is no trace of {'ranks' if len(missing) > 1 else 'rank'} {ranges(missing)}."
    counts = Counter(call.rank for call in calls)
    if len({counts[rank] for rank in ranks}) > 1:
        yield "The ranks recorded different numbers of calls."
    if endless:
        yield f"{endless:,} calls have no end in the traces, and are left out."
    launches = sorted({call.name for call in calls if call.level == Level.LAUNCH})
    if launches:
        yield f"Of {', '.join(launches)} only the call that starts it was recorded, not when it completed."
    if without := sum(call.nbytes is None and call.kind != "barrier" for call in calls):
        yield f"The sizes of {without:,} calls were not recorded; torch.profiler does with record_shapes=True."
    if not has_computing and any(call.hidden is not None for call in calls):
        yield "No event is marked as computing: hidden is the time of the innermost events of other threads."
    yield (
        "Which rank the others waited for is not known, since the clocks of the ranks are not compared; nor are "
        "messages, algorithms and critical paths. `mpicoll run --timeline FILE program.py` records all of them."
    )


def _tool(trace: Trace) -> str:
    if not _is_of_torch(trace):
        return "another program"
    backend = _facts(trace).get("backend")
    return f"torch.profiler, {printable(backend)}" if backend else "torch.profiler"


def _is_of_torch(trace: Trace) -> bool:
    return bool(trace.content.keys() & {"schemaVersion", "distributedInfo"})


def _facts(trace: Trace) -> Mapping[str, Any]:
    facts = trace.content.get("distributedInfo")
    return facts if isinstance(facts, dict) else {}


def _size(traces: Sequence[Trace]) -> int | None:
    """Return the number of ranks, if a trace says it. Raises TimelineError if traces say different ones."""
    sizes = {trace.path: size for trace in traces if is_count(size := _facts(trace).get("world_size"))}
    if len(set(sizes.values())) > 1:
        words = ", ".join(f"{path} has {size} ranks" for path, size in sizes.items())
        raise TimelineError(f"the traces are of several runs: {words}")
    return next(iter(sizes.values()), None)


def _refuse_apart(processes: Sequence[_Process]) -> None:
    """Raise TimelineError if a trace ends before another begins, by the time of day."""
    dated = [process for process in processes if process.base is not None]
    if dated:
        first, last = min(dated, key=lambda process: process.ended), max(dated, key=lambda process: process.began)
        if first.ended < last.began:
            raise TimelineError(
                f"the traces are of several runs: the last collective of {first.path} ended before the first of "
                f"{last.path} began"
            )


class _Process:
    """The collectives and the computing of one rank."""

    def __init__(self, trace: Trace, slices: Sequence[Slice], title: str, endless: int) -> None:
        self.path, self.slices, self.endless = trace.path, slices, endless
        all_calls = [item.call for item in slices if item.call is not None]
        _refuse_repeats(self.path, all_calls)
        self.rank = _rank(trace, all_calls, title)
        self.of_tracks = _by_track((call.track, call.began, call.ended) for call in all_calls)
        self.has_computing = any(item.category == COMPUTING for item in slices)
        levels: dict[str, Level] = {}  # the most exact events that a collective has
        for call in all_calls:
            levels[call.kind] = max(call.level, levels.get(call.kind, call.level))
        self.calls = list(_outermost(call for call in all_calls if call.level == levels[call.kind]))
        base = trace.content.get("baseTimeNanoseconds")
        self.base = base / 1e3 if is_count(base) else None  # microseconds of the time of day
        self.began = (self.base or 0.0) + min(call.began for call in self.calls)
        self.ended = (self.base or 0.0) + max(call.ended for call in self.calls)

    def of_rank(self, rank: int) -> list[OtherCall]:
        """Return the collectives as those of a rank, each with how long computing hid it."""
        for on_device in (False, True):
            until = covered(self._computing(on_device))
            for call in self.calls:
                if call.level != Level.LAUNCH and (call.level == Level.DEVICE) == on_device:
                    began, ended = until(np.array([call.began, call.ended])).tolist()
                    call.hidden = ended - began
        for call in self.calls:
            call.rank = rank
        return self.calls

    def _computing(self, on_device: bool) -> np.ndarray:
        """Return the intervals of computing: operations that no collective of their track overlaps."""
        if on_device:
            chosen = [item for item in self.slices if item.category in ON_DEVICE]
        elif self.has_computing:
            chosen = [item for item in self.slices if item.category == COMPUTING and "::wait" not in item.name]
        else:
            chosen = list(_innermost(item for item in self.slices if item.category not in (*COPIES, *ON_DEVICE)))
        computing = [np.empty((0, 2))]
        for track, intervals in _by_track((item.track, item.began, item.ended) for item in chosen).items():
            until = covered(self.of_tracks.get(track, np.empty((0, 2))))
            computing.append(intervals[until(intervals[:, 1]) <= until(intervals[:, 0])])
        return np.concatenate(computing)


def _processes(trace: Trace) -> list[_Process]:
    """Return the processes with collectives: one if torch.profiler wrote the trace, which is then of one rank."""
    slices, titles, endless = read_slices(trace)
    is_of_one_rank = _is_of_torch(trace)
    groups: dict[str, list[Slice]] = defaultdict(list)
    for item in slices:
        groups["" if is_of_one_rank else item.track[0]].append(item)
    calling = {process: items for process, items in groups.items() if any(item.call is not None for item in items)}
    if not calling:
        raise TimelineError(
            f"{trace.path} has no collectives of mpicoll's among its {len(trace.events)} events, nor any under the "
            "names of torch.profiler, MPI or NCCL"
        )
    hosts = {item.track[0] for item in slices if item.category in (COMPUTING, "user_annotation")}
    if is_of_one_rank and len(hosts) > 1:
        raise TimelineError(f"{trace.path} has {len(hosts)} processes of one rank: it is made of several runs")
    return [_Process(trace, items, titles.get(process, ""), endless) for process, items in calling.items()]


def _rank(trace: Trace, calls: Sequence[OtherCall], title: str) -> int | None:
    """Return the rank of a process, if the file, a call or the name of the process says it."""
    if is_count(rank := _facts(trace).get("rank")):
        return rank
    match = _RANK.match(title)
    return next((call.rank for call in calls if call.rank is not None), int(match[1]) if match else None)


def _refuse_repeats(path: str, calls: Sequence[OtherCall]) -> None:
    """Raise TimelineError if a collective is there twice."""
    for (name, _, began, ended), count in Counter((c.name, c.track, c.began, c.ended) for c in calls).items():
        if count > 1 and ended > began:
            raise TimelineError(f"{path} has {name} twice at one time on a thread: it is made of several runs")


def _by_track(intervals: Iterable[tuple[Track, float, float]]) -> dict[Track, np.ndarray]:
    tracks: dict[Track, list[tuple[float, float]]] = defaultdict(list)
    for track, *times in intervals:
        tracks[track].append((times[0], times[1]))
    return {track: np.array(times) for track, times in tracks.items()}


def _outermost(calls: Iterable[OtherCall]) -> Iterator[OtherCall]:
    """Yield the collectives inside no other of their kind and track; those without a size get an inner one's."""
    last: dict[tuple[Track, str], OtherCall] = {}
    for call in sorted(calls, key=lambda call: (call.began, -call.ended)):
        outer = last.get((call.track, call.kind))
        if outer is None or call.ended > outer.ended:
            last[call.track, call.kind] = call
            yield call
        elif outer.nbytes is None:
            outer.nbytes = call.nbytes


def _innermost(slices: Iterable[Slice]) -> Iterator[Slice]:
    """Yield the events that contain no other event of their track."""
    later: dict[Track, Slice] = {}
    for item in sorted(slices, key=lambda item: (-item.began, item.ended)):
        inner = later.get(item.track)
        if inner is None or item.ended <= inner.began:
            yield item
        later[item.track] = item
