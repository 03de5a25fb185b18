"""Lay timelines of one run together: blocks of a program, or parts of its ranks, that are in several files."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import TimelineError
from .match import UNMATCHED
from .read import MOST, NUMBER, Key, Part, TimelineFile

ROUNDING = 0.01  # microseconds by which times in files are rounded at most, and more
_TEXTS = "run", "clock", "host"
_Cell = tuple[int, str, int, int]  # of a grid: rank, name, and in widths when a span began and ended


class _Place(NamedTuple):
    """Names the run of a timeline, its clock, the host of that, the first time on it, and the processes by rank."""

    run: str
    clock: str
    host: str
    origin_us: float
    processes: dict[str, str]


def merge(files: Sequence[TimelineFile]) -> TimelineFile:
    """Return the timeline that has the calls and spans of all files, on one clock, those in several files once.

    Raises TimelineError for the same file twice, for files of different runs, and for files on clocks of different
    hosts, which nothing compared.
    """
    if len(files) == 1:
        return files[0]
    for path, count in Counter(file.path for file in files).items():
        if count > 1:
            raise TimelineError(f"{path} is given {count} times; name it once")
    places = [_place(file) for file in files]
    for file, place in zip(files[1:], places[1:]):
        _refuse_apart(files[0], places[0], file, place)
    first = min(place.origin_us for place in places)
    shifted = list(_shifted(files, [place.origin_us - first for place in places]))
    owners: dict[Key, TimelineFile] = {}
    for file in shifted:
        for key, parts in file.calls.items():
            if key not in owners or len(parts) > len(owners[key].calls[key]):
                owners[key] = file
    calls = {key: file.calls[key] for key, file in owners.items()}
    steps = {key: file.steps[key] for key, file in owners.items() if key in file.steps}
    facts = _facts([file.facts for file in files], {part.rank for parts in calls.values() for part in parts})
    path = ", ".join(file.path for file in files)
    program = list(_program(shifted, owners, 2 * facts["clock_error_us"]))
    turns = [turn for file in shifted for turn in file.turns if owners.get(turn.key) is file]
    return TimelineFile(path, calls, steps, program, facts, turns)


def _place(file: TimelineFile) -> _Place:
    """Return the place that a file names. Raises TimelineError if it names none."""
    facts = file.facts
    processes = facts.get("processes")
    has_texts = all(type(facts.get(name)) is str for name in _TEXTS)
    origin: Any = facts.get("origin_us")
    has_origin = type(origin) in NUMBER and abs(origin) < MOST
    if not (has_texts and has_origin) or type(processes) is not dict or {*map(type, processes.values())} != {str}:
        raise TimelineError(f"{file.path} does not name its run and its clock; pass it alone, or record it again")
    if not all(facts[name].isprintable() for name in _TEXTS):
        raise TimelineError(f"{file.path}: the name of its run has characters that control a terminal")
    return _Place(facts["run"], facts["clock"], facts["host"], origin, processes)


def _refuse_apart(first: TimelineFile, place: _Place, other: TimelineFile, there: _Place) -> None:
    """Raise TimelineError if two files are of different runs, or on clocks that nothing compared."""
    common = place.processes.keys() & there.processes.keys()
    if place.run != there.run or any(place.processes[rank] != there.processes[rank] for rank in common):
        raise TimelineError(f"{first.path} and {other.path} are of different runs; pass each of them alone")
    if place.clock != there.clock:
        raise TimelineError(
            f"{first.path} is on the clock of {place.host}, and {other.path} on that of {there.host}, which were not "
            "compared; pass each of them alone, or record with comm.timeline() of a communicator of all these ranks"
        )


def _shifted(files: Iterable[TimelineFile], shifts: Iterable[float]) -> Iterator[TimelineFile]:
    """Yield files with times later by so many microseconds, and with numbers of messages that differ between files."""
    next_number = 0
    for file, shift in zip(files, shifts):
        offset, numbers = next_number, [UNMATCHED]

        def move(part: Part, shift: float = shift, offset: int = offset, numbers: list[int] = numbers) -> Part:
            facts = part.facts
            if "sends" in facts:
                ends = {key: [_renumbered(message, offset) for message in facts[key]] for key in ("sends", "receives")}
                numbers += [message[2] for messages in ends.values() for message in messages]
                facts = facts | ends
            return part._replace(began=part.began + shift, ended=part.ended + shift, facts=facts)

        calls, steps = ({key: list(map(move, parts)) for key, parts in of.items()} for of in (file.calls, file.steps))
        program, turns = (list(map(move, parts)) for parts in (file.program, file.turns))
        yield file._replace(calls=calls, steps=steps, program=program, turns=turns)
        next_number = max(next_number, max(numbers) + 1)


def _renumbered(message: Sequence[int], offset: int) -> list[int]:
    peer, nbytes, number = message
    return [peer, nbytes, number if number == UNMATCHED else number + offset]


def _program(files: Iterable[TimelineFile], owners: dict[Key, TimelineFile], tolerance: float) -> Iterator[Part]:
    """Yield the waits for calls of the files that have these calls, and spans: those that several files have once."""
    width = tolerance + ROUNDING
    recorded: dict[_Cell, list[Part]] = defaultdict(list)  # the spans of earlier files
    for file in files:
        new = list[Part]()
        for part in file.program:
            if "communicator" in part.facts:
                if owners.get(part.key) is file:
                    yield part
            elif not _has_close(_nearby(recorded, part, width), part, width):
                new.append(part)
                yield part
        for part in new:
            recorded[_cell(part, width)].append(part)


def _cell(part: Part, width: float) -> _Cell:
    """Return the cell of a span in a grid over its two times, so that close spans are in cells beside each other."""
    return part.rank, part.name, int(part.began // width), int(part.ended // width)


def _nearby(recorded: Mapping[_Cell, list[Part]], part: Part, width: float) -> list[Part]:
    """Return the recorded spans in the cell of a span and in those beside it."""
    if not recorded:
        return []
    rank, name, row, column = _cell(part, width)
    cells = ((rank, name, row + i, column + j) for i in (0, -1, 1) for j in (0, -1, 1))
    return [span for cell in cells for span in recorded.get(cell, ())]


def _has_close(spans: Sequence[Part], part: Part, width: float) -> bool:
    """Return whether one of the spans begins and ends within so many microseconds of this one."""
    return any(abs(span.began - part.began) <= width and abs(span.ended - part.ended) <= width for span in spans)


def _facts(all_facts: Sequence[dict[str, Any]], ranks: set[int]) -> dict[str, Any]:
    """Return facts of all files together."""
    sums = ("dropped_calls", "dropped_turns", "lost_messages", "messages", "unmatched_messages")
    facts = {name: sum(facts.get(name, 0) for facts in all_facts) for name in sums}
    return facts | {"ranks": len(ranks), "clock_error_us": max(facts.get("clock_error_us", 0.0) for facts in all_facts)}
