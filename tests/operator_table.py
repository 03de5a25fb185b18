"""Writes docs/OPERATORS.md: which operator each MPI takes on which datatype, and who serves it here.

    python tests/operator_table.py      asks MPICH, Open MPI and Intel MPI in their environments, on two ranks each

A survey that MPI's own collective ends is started again behind the pair that did it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from run import ENVIRONMENTS, ROOT

from mpicoll.benchmarks import launch

PAGE = ROOT / "docs" / "OPERATORS.md"
TITLES = {"mpich": "MPICH", "openmpi": "Open MPI", "intel": "Intel MPI"}
LIMIT = 120.0  # seconds for a survey
ENDED, NATIVE, REFUSED, ABSENT = "ended", "native", "refused", "no such type"
HEAD = """\
# Operators and datatypes

<!-- Written by `python tests/operator_table.py` from what the MPIs answered; do not edit. -->

Which predefined operator reduces which predefined datatype is for each MPI to say, and all take more than the standard
asks for. What the standard allows runs by mpicoll's algorithms: its kernels reduce, or `MPI_Reduce_local` where none is
compiled. What *this* MPI takes beyond that **runs native**, on MPI's own collective, in every form:
rank 0 logs it once, `trace` and `comm.explain("allreduce", nbytes, MPI.SUM, MPI.CHAR)` say so, and a forced algorithm
raises `PreconditionError`. What this MPI refuses raises `OperatorError`, which names the operators that it takes. A
local reduction of no elements (`MPI.Op.Reduce_local`) tells, once for each pair, and so without a message.

Datatypes in one row are served alike. An operator that is in no column is refused, here as by MPI's own collectives; so
are REPLACE, NO_OP, and every predefined operator on derived datatypes. Of several names of one datatype the first is
listed.

Measured on two ranks of {versions} by `python tests/operator_table.py`.

| datatypes | by mpicoll's algorithms | {heads} |
|---|---|{lines}|
"""
TAIL = """
No pair is refused here that MPI's own `Allreduce` or `Iallreduce` takes, nor taken that both refuse. Of {cells} pairs,
each asked of the MPIs that have the datatype, {own} run by mpicoll's algorithms, {native} native; {refused} are
refused.
"""
FATAL = """
{who}'s own blocking `Allreduce` ended the process with {pairs}.
Here they run: what runs native without having been forced to is MPI's nonblocking collective, waited for.
"""


@dataclass
class Survey:
    """The answers of one MPI: its version, its datatypes in order, and results by (datatype, operator, question)."""

    version: str
    names: list[str]
    answers: dict[tuple[str, str, str], object]

    def ours(self, name: str, op: str) -> str:
        """Return "ours", "native" or "refused": the code that serves a pair."""
        answer = self.answers[name, op, "ours"]
        return answer if answer in (NATIVE, REFUSED) else "ours"  # type: ignore[return-value]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Return all pairs."""
        return ((name, op) for name, op, asked in self.answers if asked == "ours")

    def served(self, name: str, by: str) -> tuple[str, ...]:
        """Return the operators on a datatype that `by` serves: "ours", "native" or "refused"."""
        return tuple(op for which, op in self.pairs() if which == name and self.ours(which, op) == by)

    def fatal(self) -> list[tuple[str, str]]:
        """Return the pairs with which MPI's own blocking collective ended the process."""
        return [(name, op) for name, op in self.pairs() if self.answers[name, op, "blocking"] == ENDED]


def ask(mpi: str) -> Survey:
    """Return the survey of one MPI, run in its environment."""
    python = ROOT / ENVIRONMENTS[mpi] / "bin" / "python"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    answers: dict[tuple[str, str, str], object] = {}
    with tempfile.NamedTemporaryFile("r") as file:
        behind = 0
        while True:
            program = [python, "-m", "support.operators", file.name, behind]
            line = [python, ROOT / "tests" / "launcher.py", "-n", 2, *program]
            launch.run_group([str(word) for word in line], LIMIT, environment, cwd=ROOT)
            records = [json.loads(line) for line in file]
            if not records:
                sys.exit(f"{mpi}: the survey did not begin")
            end = records.pop() if isinstance(records[-1], dict) else None
            for i, name, op, asked, *answer in records:
                answers[name, op, asked] = answer[0] if answer else ENDED
                behind = i + 1
            if end is not None:
                return Survey(end["version"], end["names"], answers)
            answers[name, op, asked] = ENDED  # on another rank, if not on rank 0


def page(surveys: dict[str, Survey]) -> str:
    """Return docs/OPERATORS.md. End the program if mpicoll refuses a pair that MPI's own collectives take."""
    for mpi, survey in surveys.items():
        for name, op in survey.pairs():
            taken = True in (survey.answers[name, op, "blocking"], survey.answers[name, op, "nonblocking"])
            if taken == (survey.ours(name, op) == REFUSED):
                sys.exit(f"{mpi}: {op} on {name}: MPI's own {'takes' if taken else 'refuses'} it, ours does not agree")
    rows: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name in dict.fromkeys(name for survey in surveys.values() for name in survey.names):
        there = {TITLES[mpi]: survey if name in survey.names else None for mpi, survey in surveys.items()}
        own = {title: words(survey.served(name, "ours")) for title, survey in there.items() if survey}
        by = own.values() if len(set(own.values())) == 1 else (f"{ops} on {title}" for title, ops in own.items())
        native = [words(survey.served(name, NATIVE)) if survey else ABSENT for survey in there.values()]
        rows[("; ".join(dict.fromkeys(by)), *native)].append(name)
    text = HEAD.format(
        versions=", ".join(survey.version for survey in surveys.values()),
        heads=" | ".join(f"native on {TITLES[mpi]}" for mpi in surveys),
        lines="|".join("---" for _ in surveys),
    )
    text += "".join(f"| {' '.join(names)} | {' | '.join(cells)} |\n" for cells, names in rows.items())
    served = [survey.ours(*pair) for survey in surveys.values() for pair in survey.pairs()]
    counted = {by: f"{served.count(by):,}" for by in ("ours", NATIVE, REFUSED)}
    text += TAIL.format(cells=f"{len(served):,}", own=counted["ours"], native=counted[NATIVE], refused=counted[REFUSED])
    for mpi, survey in surveys.items():
        if fatal := survey.fatal():
            text += FATAL.format(who=TITLES[mpi], pairs=listed(fatal))
    return text


def words(ops: tuple[str, ...]) -> str:
    """Return operators in a cell."""
    return " ".join(ops) or "–"


def listed(pairs: list[tuple[str, str]]) -> str:
    """Return pairs in a sentence, by datatype."""
    by: dict[str, list[str]] = defaultdict(list)
    for name, op in pairs:
        by[name].append(op)
    return "; ".join(f"{', '.join(ops)} on {name}" for name, ops in by.items())


if __name__ == "__main__":
    PAGE.write_text(page({mpi: ask(mpi) for mpi in ENVIRONMENTS}), encoding="utf-8")
