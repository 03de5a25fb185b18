"""`mpicoll bench --json`: JSON lines of schema 2, one on the run, then one per collective, size and contender.

    {"kind": "run", "schema": 2, "environment": {…}, "settings": {…}}
    {"kind": "result", "schema": 2, …}

environment, all of it optional here: time (UTC), mpi ("MPICH 5.0.2"), mpi_standard, ranks, hosts, ranks_per_host
(counts, in order of first rank), placement ("block", "cyclic", "irregular" or "one host"), host_of (each rank's
host), binding, cores, caches, memory, cpu, system, kernel, python, mpicoll, mpi4py, numpy, numba, commit,
mpi_settings ({variable: value}), rate (bits per second of each host's link, in each direction; or null).

A result:

    collective, form             form: "blocking", "nonblocking" or "persistent"
    size                         bytes: the vector of bcast, scan and reductions; one rank's share in scatter, gather
                                 and allgather; what one rank sends another in alltoall; averages where ranks differ
    dtype, op, root, in_place, counts, fresh
    ranks, hosts
    algorithm, engine            as requested; "native" is MPI's own, other programs have their names
    ran                          {"algorithm", "engine", "chunk_bytes", "lanes"}; empty for native and other programs
    paired                       false: a program in launches of its own, not in the same rounds
    valid, note                  whether the answer was right; why it was not timed
    median_us, interval_us       median over rounds of the longest time over ranks, [low, high] with 95 %; or null
    rounds, late                 late: calls left out because a rank started late
    algbw, busbw                 bytes per second as nccl-tests defines them, or null
    limit_us, of_limit           the least time the links allow, and that over the median
    ratio, ratio_interval, verdict   native's time over this one's, or null; "faster", "slower", "no difference",
                                 "too few"
    overlap                      null or {"percent", "interval", "overall_us", "compute_us", "init_us", "wait_us"}
    samples_us                   one value a round; or sketch_us, their 0th to 100th percentile

A line that is not JSON is of a file that was cut short: it is left out and counted. Any other schema is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from mpicoll.cli.sizes import format_size
from mpicoll.schedules.collectives import COLLECTIVES, base_collective

from ..cases.scaling import WORDS, scaled
from .errors import ReadError
from .model import Overlap, Row, Run, Setting

SCHEMA = 2
KIND = "mpicoll bench"
Value = TypeVar("Value")


def is_ours(text: str) -> bool:
    """Return whether this is JSON lines, as far as the first character tells."""
    return text.lstrip().startswith("{")


def parse(name: str, text: str) -> Run:
    """Return the run in the text of a file. Raises ReadError for another schema, or lines that are not results."""
    rows: list[Row] = []
    head: Mapping[str, Any] = {}
    left_out = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            left_out += 1
            continue
        where = f"{name}, line {number}"
        if _kind(entry, where) == "run":
            head = head or _head(entry, where)
        else:
            rows.append(_row(entry, where))
    if not rows and not head:
        raise ReadError(f"{name} has no whole line; expected the JSON lines of `mpicoll bench --json`")
    settings = head.get("settings") or {}
    return Run(name, KIND, tuple(_bases(rows, settings)), head.get("environment") or {}, settings, left_out)


def _bases(rows: Sequence[Row], settings: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows, and with strong or weak scaling the size that each derives from."""
    scaling, sizes = settings.get("scaling"), settings.get("sizes") or ()
    for row in rows:
        if scaling in WORDS and row.ranks and base_collective(row.setting.collective) in COLLECTIVES:
            of = next((n for n in sizes if scaled(n, row.setting.collective, row.ranks, scaling) == row.size), 0)
            row = replace(row, base=f"{format_size(of)} {WORDS[scaling]}" if of else "")
        yield row


def _kind(entry: Any, where: str) -> str:
    """Return which kind of line it is. Raises ReadError."""
    kind: str | None = entry.get("kind") if isinstance(entry, dict) else None
    if kind not in ("run", "result"):
        raise ReadError(f"{where} is no result of `mpicoll bench --json`: its kind is {kind!r}, not run or result")
    if entry.get("schema") != SCHEMA:
        raise ReadError(
            f"{where} has schema {entry.get('schema')!r}, and this mpicoll reads schema {SCHEMA}; "
            "measure again, or read it with the mpicoll that wrote it"
        )
    return kind


def _head(entry: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return the line on the run. Raises ReadError."""
    for key in ("environment", "settings"):
        if not isinstance(entry.get(key) or {}, dict):
            raise ReadError(f"{where} is no run of schema {SCHEMA}: its {key} is {entry[key]!r}, and no object")
    return entry


def _row(entry: Mapping[str, Any], where: str) -> Row:
    """Return a result. Raises ReadError where it lacks what every result has, or holds another type of it."""
    try:
        numbers: dict[str, Any] = {key: _maybe(float, entry.get(key)) for key in NUMBERS}
        numbers |= {key: _maybe(_interval, entry.get(key)) for key in INTERVALS}
        return Row(
            Setting(
                str(entry["collective"]),
                _word(entry, "form") or "blocking",
                *(_word(entry, key) for key in ("dtype", "op", "root", "in_place", "counts", "fresh")),
            ),
            int(entry["size"]),
            str(entry["algorithm"]),
            _word(entry, "engine"),
            _maybe(int, entry.get("ranks")),
            _maybe(int, entry.get("hosts")),
            dict(entry.get("ran") or {}),
            bool(entry.get("paired", True)),
            _word(entry, "valid"),
            _word(entry, "note") or "",
            rounds=_maybe(int, entry.get("rounds")),
            late=int(entry.get("late") or 0),
            verdict=_word(entry, "verdict"),
            overlap=_maybe(_overlap, entry.get("overlap")),
            samples_us=tuple(map(float, entry.get("samples_us") or entry.get("sketch_us") or ())),
            sketched=not entry.get("samples_us") and bool(entry.get("sketch_us")),
            **numbers,
        )
    except KeyError as error:
        raise ReadError(f"{where} is a result without {error.args[0]!r}") from None
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ReadError(f"{where} is no result of schema {SCHEMA}: {error}") from None


INTERVALS = ("interval_us", "ratio_interval")
NUMBERS = ("median_us", "algbw", "busbw", "limit_us", "of_limit", "ratio")


def _word(entry: Mapping[str, Any], key: str) -> Any:
    """Return the value of a key, None if it is missing. Raises TypeError for a list or an object."""
    if isinstance(value := entry.get(key), (list, dict)):
        raise TypeError(f"its {key} is {value!r}, and no word or number")
    return value


def _maybe(make: Callable[[Any], Value], value: Any) -> Value | None:
    return None if value is None else make(value)


def _interval(value: Any) -> tuple[float, float]:
    low, high = value
    return float(low), float(high)


def _overlap(value: Mapping[str, Any]) -> Overlap:
    parts = (_maybe(float, value.get(key)) for key in ("overall_us", "compute_us", "init_us", "wait_us"))
    return Overlap(float(value["percent"]), _maybe(_interval, value.get("interval")), *parts)
