"""A study: which steps run on how many nodes, in which jobs, and its directory.

DIRECTORY/study.json            what is to be run, written once
DIRECTORY/NAME.sbatch           a job each
DIRECTORY/submitted.jsonl       what Slurm took, a line each
DIRECTORY/results/STEP.jsonl    what a complete step measured; STEP.JOB-START.part.jsonl, one that was stopped
DIRECTORY/results/JOB-START.env what it ran on
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import JobsError

SCHEMA = "mpicoll-study-1"
FILE, SUBMITTED, RESULTS = "study.json", "submitted.jsonl", "results"
START = 20.0  # seconds that starting a step takes beside its own; more where imports are slow
BEGIN, STAGE = 20.0, 120.0  # before the first: the look at the launch, the copy of the environment
LEEWAY = 180.0  # for shared filesystems that are slow today
SLACK = 1.5  # checking and warming up are in none of these
NOTICE = 90  # seconds before its end at which Slurm sends a job USR1
TOGETHER, EACH = "one", "each"
ALLOCATIONS = (TOGETHER, EACH)


@dataclass(frozen=True)
class Step:
    """One launch: `command` is what follows the interpreter, and ends with the option that takes the results' file."""

    name: str
    nodes: int
    ranks: int
    seconds: float
    command: tuple[str, ...]
    ending: str = "jsonl"


@dataclass(frozen=True)
class Job:
    """One allocation, and the steps in it, in order."""

    name: str
    nodes: int
    steps: tuple[Step, ...]
    staged: bool = False

    @property
    def script(self) -> str:
        return f"{self.name}.sbatch"

    @property
    def seconds(self) -> float:
        """Return the seconds that the job is likely to take."""
        return BEGIN + STAGE * self.staged + sum(SLACK * step.seconds + START for step in self.steps)

    @property
    def node_hours(self) -> float:
        return self.nodes * self.seconds / 3600

    @property
    def minutes(self) -> int:
        """Return the limit to ask for: more than twice the likely time, since a tight limit gains nothing."""
        return math.ceil((2 * self.seconds + LEEWAY + NOTICE) / 60)


@dataclass(frozen=True)
class Study:
    """The jobs to run, of one kind on one site. origin: by which mpicoll, from which commit, when."""

    kind: str
    jobs: tuple[Job, ...]
    site: Mapping[str, Any]
    origin: Mapping[str, Any]

    @property
    def steps(self) -> list[Step]:
        return [step for job in self.jobs for step in job.steps]

    @property
    def node_hours(self) -> float:
        return sum(job.node_hours for job in self.jobs)

    def write(self, directory: Path) -> None:
        content = {"schema": SCHEMA, **asdict(self)}
        content["made"] = content.pop("origin")  # the key in files
        (directory / FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read(directory: Path) -> Study:
    """Return the study of a directory. Raises JobsError."""
    path = directory / FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise JobsError(f"{path} has schema {content['schema']!r}, and this mpicoll reads {SCHEMA}")
        jobs = tuple(
            Job(**{**job, "steps": tuple(Step(**{**step, "command": tuple(step["command"])}) for step in job["steps"])})
            for job in content["jobs"]
        )
        return Study(content["kind"], jobs, content["site"], content["made"])
    except JobsError:
        raise
    except OSError:
        raise JobsError(f"{directory} holds no {FILE}: `mpicoll jobs render` makes such a directory") from None
    except (ValueError, KeyError, TypeError) as error:
        raise JobsError(f"{path} is no study: {type(error).__name__}: {error}") from None


def numbers(text: str) -> list[int]:
    """Return numbers of nodes: a list of numbers and ranges FIRST:LAST that double, ascending. Raises JobsError.

    >>> numbers("1,2,4"), numbers("1:8"), numbers("2:6,1")
    ([1, 2, 4], [1, 2, 4, 8], [1, 2, 4, 6])
    """
    counts: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition(":")
        if not first.isdecimal() or not (last or first).isdecimal() or not 0 < int(first) <= int(last or first):
            raise JobsError(f"{part!r} is no number of nodes; write 4, or 1:8 for 1, 2, 4, 8")
        at, end = int(first), int(last or first)
        while at < end:
            counts.add(at)
            at *= 2
        counts.add(end)
    return sorted(counts)


def jobs(
    kind: str, steps: Callable[[int], Sequence[Step]], nodes: Sequence[int], allocation: str, staged: bool = False
) -> tuple[Job, ...]:
    """Return the steps of every number of nodes: in one allocation as large as the largest, or in one each."""
    if allocation == TOGETHER:
        return (Job(kind, max(nodes), tuple(step for n in nodes for step in steps(n)), staged),)
    return tuple(Job(f"{kind}-n{n}", n, tuple(steps(n)), staged) for n in nodes)
