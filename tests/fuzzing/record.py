"""Logs of programs: a line of JSON for each program that begins, ends or fails, and their sums."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from .program import Program

Key = tuple[str, str, str]          # collective, algorithm, form


def begin(log: IO[str], program: Program) -> None:
    """Log a program before it runs."""
    log.write(json.dumps({"begin": repr(program)}) + "\n")


def over(log: IO[str], program: Program) -> None:
    """Log that a program ended, with the counts of its calls."""
    counts = [[*key, n * program.times] for key, n in program.tally().items()]
    log.write(json.dumps({"over": counts, "threads": program.threads}) + "\n")


def failed(log: IO[str], program: Program, wrong: list[str]) -> None:
    """Log the least program that gave wrong results."""
    log.write(json.dumps({"failed": repr(program), "wrong": wrong}) + "\n")


@dataclass
class Account:
    """Programs that were played to their end by number of threads; their calls by collective, algorithm and form."""

    threads: Counter[int] = field(default_factory=Counter)
    calls: Counter[Key] = field(default_factory=Counter)

    @property
    def programs(self) -> int:
        """Return the number of programs."""
        return sum(self.threads.values())

    def by(self, *which: int) -> Counter[tuple[str, ...]]:
        """Return the number of calls by some of collective (0), algorithm (1) and form (2)."""
        counts: Counter[tuple[str, ...]] = Counter()
        for key, n in self.calls.items():
            counts[tuple(key[i] for i in which)] += n
        return counts


@dataclass
class Log:
    """The log of a launch: the program that it was in when it ended, and those that failed, with their errors."""

    running: str = ""
    failed: str = ""
    wrong: list[str] = field(default_factory=list)


def read(path: Path, account: Account) -> Log:
    """Add a launch's log to an account. Its last line may be cut short."""
    log = Log()
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if "begin" in entry:
            log.running = entry["begin"]
        elif "over" in entry:
            log.running = ""
            account.threads[entry["threads"]] += 1
            account.calls.update({(collective, algorithm, form): n for collective, algorithm, form, n in entry["over"]})
        else:
            log.failed, log.wrong = entry["failed"], entry["wrong"]
    return log
