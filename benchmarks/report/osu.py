"""Read OSU micro-benchmarks' output: collectives, blocking, nonblocking and persistent; point to point; one-sided.

A file may hold the output of several of them. None tells the number of ranks. The columns are known by their
headings, which `-f` (min, max, iterations), `-c` (validation) and nonblocking benchmarks (overlap) add to.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .model import MEAN_OF_ALL, MEAN_OF_SLOWEST, Overlap, Row, Run, Setting

KIND = "OSU micro-benchmarks"
NAME = "OSU"
_TITLE = re.compile(r"#\s*OSU MPI(?:-(?:CUDA MANAGED|\w+))?[ _](?P<name>.*?)\s*Test(?:\s+v(?P<version>\S+))?\s*$")
_DATATYPE = re.compile(r"#\s*Datatype:\s*MPI_(\w+)")
_HEADINGS = re.compile(r"#\s*(Size|Avg Latency|Latency|Overall|Bandwidth)")
_MARKS = {"nonblocking": re.compile(r"\bnon-?blocking\b", re.I), "persistent": re.compile(r"\bpersistent\b", re.I)}
_FILLING = re.compile(r"\b(latency|personalized exchange)\b", re.I)
_NAMES = {"broadcast": "bcast", "all_to_all": "alltoall", "all_to_allv": "alltoallv", "all_to_allw": "alltoallw"}
TYPES = {"CHAR": "int8", "BYTE": "uint8", "INT": "int32", "FLOAT": "float32", "DOUBLE": "float64"}  # NumPy's names
MEGABYTE = 1e6


def is_osu(text: str) -> bool:
    """Return whether any line is the title of an OSU benchmark."""
    return any(_TITLE.match(line) for line in text.splitlines())


def setting(title: str) -> Setting:
    """Return what was called, from the words between "OSU MPI" and "Test".

    >>> setting("Non-blocking All-to-All Latency")[:2]
    ('alltoall', 'nonblocking')
    >>> setting("Broadcast Persistent Latency")[:2], setting("Latency")[:2]
    (('bcast', 'persistent'), ('latency', 'blocking'))
    """
    form = next((form for form, mark in _MARKS.items() if mark.search(title)), "blocking")
    for mark in (*_MARKS.values(), _FILLING):
        title = mark.sub("", title)
    name = "_".join(re.findall(r"\w+", title.lower())) or "latency"
    return Setting(_NAMES.get(name, name), form)


@dataclass(frozen=True)
class Columns:
    """The numbers of one line by the headings above it; None where the line is not whole."""

    headings: tuple[str, ...]

    @classmethod
    def read(cls, line: str) -> Columns:
        """Read a line of headings, which are two or more blanks apart and contain single ones."""
        words = re.split(r"\s{2,}", line.lstrip("# ").strip())
        return cls(tuple(re.sub(r"\W", "", word.lower()) for word in words))

    def values(self, line: str) -> dict[str, str] | None:
        """Return the words of a line of numbers."""
        words = line.split()
        return dict(zip(self.headings, words)) if len(words) == len(self.headings) else None


def parse(name: str, text: str) -> Run:
    """Return the run in the text of a file."""
    rows: list[Row] = []
    versions: list[str] = []
    left_out = 0
    for title, dtype, columns, line in _numbers(text):
        row = _row(title["name"], dtype, columns.values(line))
        left_out += row is None
        rows += [row] if row else []
        versions += [title["version"]] * (title["version"] not in (None, *versions))
    kind = " ".join([KIND, *versions])
    return Run(name, kind, tuple(rows), left_out=left_out)


def _numbers(text: str) -> Iterator[tuple[re.Match[str], str | None, Columns, str]]:
    """Yield each line of numbers, with the title, type and headings above it."""
    title = columns = dtype = None
    for line in text.splitlines():
        if match := _TITLE.match(line):
            title, columns, dtype = match, None, None
        elif typed := _DATATYPE.match(line):
            dtype = TYPES.get(typed[1], typed[1].lower())
        elif _HEADINGS.match(line):
            columns = Columns.read(line)
        elif title and columns and re.match(r"\s*\d", line):
            yield title, dtype, columns, line


def _row(title: str, dtype: str | None, values: dict[str, str] | None) -> Row | None:
    if values is None:
        return None
    called = setting(title)
    if called.reduces:
        called = called._replace(dtype=dtype)
    try:
        return Row(
            called,
            int(values.get("size", 0)),
            NAME,
            median_us=_first(values, ("purecommus", "maxlatencyus", "avglatencyus", "latencyus")),
            statistic=MEAN_OF_SLOWEST if "maxlatencyus" in values else MEAN_OF_ALL,
            rounds=int(values["iterations"]) if "iterations" in values else None,
            valid={"pass": True, "fail": False}.get(values.get("validation", "").lower()),
            algbw=_rate(_first(values, ("bandwidthmbs", "mbs"))),
            overlap=_overlap(values),
        )
    except ValueError:
        return None


def _first(values: dict[str, str], headings: Sequence[str]) -> float | None:
    return next((float(values[heading]) for heading in headings if heading in values), None)


def _rate(megabytes: float | None) -> float | None:
    return None if megabytes is None else megabytes * MEGABYTE


def _overlap(values: dict[str, str]) -> Overlap | None:
    if "overlap" not in values:
        return None
    parts = ("overallus", "computeus", "collinitus", "mpi_waitus")
    return Overlap(float(values["overlap"]), None, *(_first(values, (part,)) for part in parts))
