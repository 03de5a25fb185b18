"""Find which results the jobs of a study left in its directory, and gather them into a report or a table."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import click

from .study import RESULTS, SUBMITTED, Step, Study

PART = re.compile(r"(?P<step>.+)\.(?P<job>\d+)-(?P<start>\d+)\.part\.\w+")


class Submitted(NamedTuple):
    """A job that Slurm took."""

    script: str
    job: int
    time: str


@dataclass(frozen=True)
class Found:
    """The results of a step: its file, whole or the longest of the parts, and how many results that file holds."""

    step: Step
    file: Path | None
    whole: bool
    rows: int
    parts: tuple[Path, ...] = ()

    def state(self, running: Collection[int] = ()) -> str:
        """Return the state in one word; `running` has the numbers of the jobs that run."""
        if self.whole:
            return "complete"
        jobs = [int(match["job"]) for path in self.parts if (match := PART.fullmatch(path.name))]
        return "waiting" if not jobs else "running" if set(jobs) & set(running) else "stopped"

    def describe(self, running: Collection[int] = ()) -> str:
        """Return the state and the number of results, for people."""
        rows = f", {self.rows} result{'s' * (self.rows != 1)}" if self.file else ""
        return f"{self.state(running)}{rows}"


def step_results(study: Study, directory: Path) -> list[Found]:
    """Return every step's, in the study's order."""
    parts: dict[str, list[Path]] = defaultdict(list)
    for path in sorted((directory / RESULTS).glob("*.part.*")):
        if match := PART.fullmatch(path.name):
            parts[match["step"]].append(path)
    whole = {step: directory / RESULTS / f"{step.name}.{step.ending}" for step in study.steps}
    return [_found(step, whole[step], tuple(parts[step.name])) for step in study.steps]


def _found(step: Step, whole: Path, parts: tuple[Path, ...]) -> Found:
    if whole.exists() and (count := rows(whole)):
        return Found(step, whole, True, count, parts)
    counts = {part: rows(part) for part in parts}
    longest = max(parts, key=counts.__getitem__, default=None)
    return Found(step, longest, False, counts[longest] if longest else 0, parts)


def content(path: Path) -> list[Any]:
    """Return what is whole in a file: the lines of results, or a tuning file as one."""
    text = path.read_text(encoding="utf-8", errors="replace")
    return [entry for entry in map(_parsed, text.splitlines() if path.suffix == ".jsonl" else [text]) if entry]


def _parsed(text: str) -> dict[str, Any]:
    try:
        entry = json.loads(text)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def rows(path: Path) -> int:
    """Return how many results a file holds; of tables each counts as one."""
    return sum(len(entry.get("tables", ())) or entry.get("kind") == "result" for entry in content(path))


def submitted(directory: Path) -> list[Submitted]:
    """Return the jobs of a directory, oldest first, each once."""
    path = directory / SUBMITTED
    entries = content(path) if path.exists() else []
    wanted = {entry["job"]: Submitted(**entry) for entry in entries if set(entry) == set(Submitted._fields)}
    return list(wanted.values())


def origins(files: Sequence[Path]) -> dict[str, list[str]]:
    """Return the files of results by the mpicoll and the commit that wrote them."""
    by: dict[str, list[str]] = defaultdict(list)
    for path in files:
        first, *_ = content(path)
        for facts in first.get("tables") or [first.get("environment") or {}]:
            commit = facts.get("commit")
            version, short = facts.get("mpicoll") or "unknown", commit[:12] if commit else "unknown"
            by[f"mpicoll {version}, commit {short}"].append(path.name)
    return dict(by)


# -- all of it together: one function for each kind of study


Gatherer = Callable[[Sequence[Path], Path, str], None]  # (files, where to, title); says what it wrote


def report(files: Sequence[Path], output: Path, title: str) -> None:
    """Write the page of `mpicoll report`."""
    from mpicoll.benchmarks.report.cli import write
    from mpicoll.benchmarks.report.read import read

    write([read(path) for path in files], str(output), title, {})


def tables(files: Sequence[Path], output: Path, title: str) -> None:
    """Write one file with the tables of all. Raises JobsError where two are for the same ranks."""
    from mpicoll.selection.tables import SCHEMA, parse

    entries = [table for path in files for entry in content(path) for table in entry["tables"]]
    text = json.dumps({"schema": SCHEMA, "tables": entries}, indent=1) + "\n"
    parse(text, str(output))
    output.write_text(text, encoding="utf-8")
    count = f"{len(entries)} table{'s' * (len(entries) != 1)}"
    click.echo(f"{output}: {count}; MPICOLL_TUNING={output} makes auto go by them")
