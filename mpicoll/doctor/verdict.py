"""Judge the state of a run by its processes' records: say where its ranks are and which of them others wait for."""

from __future__ import annotations

import enum
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from ..diagnostics.flight_reader import FRESH, Process, Stream
from ..diagnostics.history_reader import UNKNOWN
from ..diagnostics.status import Answer, find
from ..errors import spans
from ..progress.operation import CallId
from . import history


class Verdict(enum.IntEnum):
    """The state of a run, and the exit status of `mpicoll status`."""

    MOVING = 0
    STALLED = 1
    MISMATCH = 2
    DEAD = 3


@dataclass
class Report:
    """The state of a run: a verdict, and lines that give reasons."""

    verdict: Verdict
    lines: list[str]
    processes: list[Process]


def judge(before: Sequence[Process], after: Sequence[Process]) -> Report:
    """Return the state of a run that was read twice, some seconds apart."""
    lines = [*_groups(after), *_absent(after)]
    dead = [process.rank for process in after if process.is_dead]
    streams = _streams(after)
    first = history.differences({process.rank: process.history for process in after})
    differences, mismatch = _differences(after, streams, first)
    if crossed := _crossed(streams):
        differences, mismatch = crossed, True
    differences, mismatch = [*first.values(), *differences], mismatch or bool(first)
    if dead:
        who = "all ranks are" if len(dead) == len(after) > 1 else _who(dead)
        return Report(Verdict.DEAD, [f"{who} gone", *differences, *lines], [*after])
    moved = {p.rank: (p.calls, p.object_calls) for p in before} != {p.rank: (p.calls, p.object_calls) for p in after}
    if moved:
        return Report(Verdict.MOVING, ["calls begin and end", *first.values(), *lines], [*after])
    if mismatch:
        return Report(Verdict.MISMATCH, ["the ranks made different calls", *differences, *lines], [*after])
    if any(answer.under_way for answers in streams.values() for answer in answers.values()):
        return Report(Verdict.STALLED, ["nothing moves, and calls are in flight", *differences, *lines], [*after])
    words = "no collective is in flight: the ranks are in the program's own code"
    return Report(Verdict.MOVING, [words, *lines], [*after])


def _streams(processes: Sequence[Process]) -> dict[Stream, dict[int, Answer]]:
    """Return the status of every rank in every stream of calls."""
    names = {name for process in processes for name in process.answers}
    names |= {row.communicator for process in processes if process.is_dead for row in process.history}
    names.discard(UNKNOWN)
    streams = [Stream(name, is_of_objects) for name in sorted(names) for is_of_objects in (False, True)]
    return {
        stream: {process.rank: answer for process in processes if (answer := process.answer(stream)) is not None}
        for stream in streams
    }


def _differences(
    processes: Sequence[Process], streams: Mapping[Stream, Mapping[int, Answer]], explained: Container[str]
) -> tuple[list[str], bool]:
    """Return why the calls in flight do not complete, and whether the ranks made calls that do not fit together.

    explained: the communicators on which histories say in which call ranks first differed. What they do later follows
    from that, and may blame the wrong ranks.
    """
    lines, mismatch = [], False
    ranks = {process.rank: process for process in processes}
    for stream, answers in streams.items():
        waiting = {rank: answer for rank, answer in answers.items() if answer.under_way}
        if not waiting:
            if not stream.is_of_objects:
                lines += _numbers(stream.name, {rank: answer.calls for rank, answer in answers.items()})
            continue
        rank = _reference(waiting)
        call, failures = waiting[rank].under_way[0], waiting[rank].failures
        others = [other for other in answers if other != rank]
        reasons: dict[str, list[int]] = defaultdict(list)
        waited_for = [] if stream.is_of_objects else ranks[rank].waited_for.get(stream.name, [])
        for other, finding in find(call, others, waited_for, answers, failures).items():
            is_another = "another call" in finding.what
            mismatch |= is_another
            if is_another and stream.name in explained and not stream.is_of_objects:
                continue
            reasons[finding.what].append(other)
        lines += [f"{_who(who, 'has', 'have')} {what} ({call} of {stream.name})" for what, who in reasons.items()]
    return lines, mismatch


def _reference(waiting: Mapping[int, Answer]) -> int:
    """Return a rank in the first call that ranks wait in; where these are in different ones, in that of most."""
    first = min(answer.under_way[0][:2] for answer in waiting.values())
    names = {rank: answer.under_way[0].name for rank, answer in waiting.items() if answer.under_way[0][:2] == first}
    (most, _), *_ = Counter(names.values()).most_common(1)
    return next(rank for rank, name in names.items() if name == most)


def _crossed(streams: Mapping[Stream, Mapping[int, Answer]]) -> list[str]:
    """Return a line if ranks wait in different streams for each other, so that none of their calls completes.

    A rank waits if its main thread is in a call, and calls of one stream alone are in flight.
    """
    waits: dict[int, list[tuple[Stream, CallId]]] = defaultdict(list)
    for stream, answers in streams.items():
        for rank, answer in answers.items():
            if answer.under_way and answer.inside and not answer.ended:
                waits[rank].append((stream, answer.under_way[0]))
    left = {rank: calls[0] for rank, calls in waits.items() if len(calls) == 1}
    while free := [rank for rank, wait in left.items() if not any(_waits_for(wait, streams, other) for other in left)]:
        for rank in free:
            del left[rank]
    groups: dict[tuple[Stream, CallId], list[int]] = defaultdict(list)
    for rank, wait in sorted(left.items()):
        groups[wait].append(rank)
    parts = [f"{_who(who, 'waits', 'wait')} in {call} of {stream.name}" for (stream, call), who in groups.items()]
    return [f"{', '.join(parts)}: these ranks make their calls in different order"] if parts else []


def _waits_for(
    wait: tuple[Stream, CallId], streams: Mapping[Stream, Mapping[int, Answer]], other: int
) -> bool:
    """Return whether a call needs another rank, which has not made it."""
    stream, call = wait
    return other in streams[stream] and not streams[stream][other].has_made(call)


def _numbers(name: str, calls: Mapping[int, int]) -> list[str]:
    """Return which ranks have begun fewer calls than others on a communicator, if any have."""
    ranks: dict[int, list[int]] = defaultdict(list)
    for rank, number in calls.items():
        ranks[number].append(rank)
    if len(ranks) == 1:
        return []
    (least, behind), *others = sorted(ranks.items())
    rest = ", ".join(f"{_named(members)} {number}" for number, members in others)
    return [f"{_who(behind, 'has', 'have')} begun {least} calls on {name}, and {rest}"]


def _groups(processes: Sequence[Process]) -> list[str]:
    """Return what the ranks do, a line for all that do the same."""
    groups: dict[str, list[int]] = defaultdict(list)
    for process in processes:
        is_old = process.age > FRESH and not process.ended and not process.silence
        old = f" (as of {process.age:.0f} s ago)" if is_old else ""
        groups[process.doing() + old].append(process.rank)
    return [f"{_named(who)}: {words}" for words, who in groups.items()]


def _absent(processes: Sequence[Process]) -> list[str]:
    size = max(process.size for process in processes)
    ranks = set(range(size)) - {process.rank for process in processes}
    return [f"{_named(sorted(ranks))}: no record here"] if ranks else []


def _who(ranks: Sequence[int], singular: str = "is", plural: str = "are") -> str:
    return f"{_named(ranks)} {singular if len(ranks) == 1 else plural}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {spans(ranks)}"
