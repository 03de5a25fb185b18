"""Read the output of Intel's IMB-MPI1 and IMB-NBC: a block per benchmark and number of processes.

# Benchmarking Allreduce
# #processes = 2
# ( 2 additional processes waiting in MPI_Barrier)
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from mpicoll.schedules.collectives import COLLECTIVES, PLAIN

from .model import MEAN_OF_ALL, MEAN_OF_SLOWEST, Overlap, Row, Run, Setting
from .osu import MEGABYTE, TYPES

SHARED = "reduce_scatter"  # IMB's bytes are one rank's share of it, as the traffic shows; ours are the whole vector
KIND = "IMB"
NAME = "IMB"
FACTS = {
    "version": re.compile(r"#\s+Intel\(R\) MPI Benchmarks ([^,\s]+)"),
    "time": re.compile(r"# Date\s+: (.+)"),
    "system": re.compile(r"# System\s+: (.+)"),
    "kernel": re.compile(r"# Release\s+: (.+)"),
    "mpi_standard": re.compile(r"# MPI Version\s+: (.+)"),
}
_NAME = re.compile(r"# Benchmarking (\S+)")
_PROCESSES = re.compile(r"# #processes = (\d+)")
_REDUCED = re.compile(r"# MPI_Datatype for reductions\s+:\s+MPI_(\w+)")
_OP = re.compile(r"# MPI_Op\s+:\s+MPI_(\w+)")


class Number(NamedTuple):
    """A line of numbers, and the block that contains it."""

    benchmark: str
    ranks: int | None
    headings: tuple[str, ...]
    words: list[str]


@dataclass(frozen=True)
class Reductions:
    """The dtype and operator of all reductions, which IMB prints once at the top."""

    dtype: str | None
    op: str | None


def is_imb(text: str) -> bool:
    """Return whether the text has a block of IMB's."""
    return bool(_NAME.search(text)) and "#repetitions" in text


def parse(name: str, text: str) -> Run:
    """Return the run in the text of a file."""
    facts = {key: match[1].strip() for key, pattern in FACTS.items() if (match := pattern.search(text))}
    dtype, op = _REDUCED.search(text), _OP.search(text)
    reductions = Reductions(dtype and TYPES.get(dtype[1], dtype[1].lower()), op and op[1].lower())
    every = [_row(number, reductions) for number in _numbers(text)]
    rows = tuple(row for row in every if row)
    version = facts.pop("version", "")
    return Run(name, f"{KIND} {version}".strip(), rows, dict(facts), left_out=len(every) - len(rows))


def _numbers(text: str) -> Iterator[Number]:
    benchmark, ranks, headings = "", None, tuple[str, ...]()
    for line in text.splitlines():
        if match := _NAME.match(line):
            benchmark, ranks, headings = match[1], None, ()
        elif match := _PROCESSES.match(line):
            ranks = int(match[1])
        elif line.lstrip().startswith(("#bytes", "#repetitions")):
            headings = tuple(line.replace("#", "").split())
        elif headings and re.match(r"\s*\d", line):
            yield Number(benchmark, ranks, headings, line.split())


def setting(benchmark: str, reductions: Reductions) -> Setting:
    """Return what was called. Of a benchmark that reduces nothing, the type does not matter.

    >>> setting("Iallreduce_pure", Reductions("float32", "sum"))[:4]
    ('allreduce', 'nonblocking', 'float32', 'sum')
    >>> setting("PingPong", Reductions("float32", "sum"))[:4]
    ('pingpong', 'blocking', None, None)
    """
    name = benchmark.lower().removesuffix("_pure")
    blocking = name.removeprefix("i")
    collective, form = (blocking, "nonblocking") if name != blocking in {*COLLECTIVES, *PLAIN} else (name, "blocking")
    called = Setting(collective, form)
    return called._replace(dtype=reductions.dtype, op=reductions.op) if called.reduces else called


def _row(number: Number, reductions: Reductions) -> Row | None:
    if len(number.words) != len(number.headings) or "repetitions" not in number.headings:
        return None
    try:
        values = dict(zip(number.headings, map(float, number.words)))
    except ValueError:
        return None
    slowest = values.get("t_max[usec]")
    rate = values.get("Mbytes/sec")
    called = setting(number.benchmark, reductions)
    return Row(
        called,
        int(values.get("bytes", 0)) * (number.ranks or 1 if called.collective == SHARED else 1),
        NAME,
        ranks=number.ranks,
        median_us=slowest if slowest is not None else values.get("t[usec]", values.get("t_pure[usec]")),
        statistic=MEAN_OF_ALL if slowest is None else MEAN_OF_SLOWEST,
        rounds=int(values["repetitions"]),
        algbw=rate * MEGABYTE if rate else None,
        overlap=_overlap(values),
    )


def _overlap(values: dict[str, float]) -> Overlap | None:
    if "overlap[%]" not in values:
        return None
    return Overlap(values["overlap[%]"], None, values.get("t_ovrl[usec]"), values.get("t_CPU[usec]"))
