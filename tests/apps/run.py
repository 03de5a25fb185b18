"""Runs the test suites of programs that others wrote for mpi4py: natively, and under `mpicoll run --summary`.

    make test-apps                                              # all, on 3 and 4 ranks, in .venv-apps
    .venv-apps/bin/python tests/apps/run.py heat --ranks 3 -k alltoall          # some
    .venv-apps/bin/python tests/apps/run.py --sources DIR       # DIR/heat, DIR/mpi4py-fft, DIR/pylops-mpi: no network
    .venv-apps/bin/python tests/apps/run.py --write             # and the table in docs/APPLICATIONS.md

Each file of tests, or all of them, is a launch of its own with a limit of time. A test has passed if it passed on some
rank and failed on none; it must pass with mpicoll if it passes natively. The exit status says whether all did. What was
printed is in build/apps/outcomes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK, PAGE = ROOT / "build" / "apps", ROOT / "docs" / "APPLICATIONS.md"
BEGIN, END = "<!-- measured, written by tests/apps/run.py --write -->", "<!-- end of what was measured -->"
sys.path.insert(0, str(HERE.parent))

import launcher  # noqa: E402

WAYS = {"native": [sys.executable], "mpicoll": ["mpicoll", "run", "--summary"]}
ROW = re.compile(r"^ +[a-z_]+ +(?:blocking|nonblocking|persistent) +(\S+) +\S+ +([\d,]+) ", re.MULTILINE)


@dataclass(frozen=True)
class Application:
    """Describe a program's tests: their source, the selection, and the files that must pass natively."""

    source: str
    tag: str
    files: tuple[str, ...]
    copied: tuple[str, ...] = ("tests",)
    options: tuple[str, ...] = ()
    works: str = ""


APPLICATIONS = {
    "heat": Application(
        "https://github.com/helmholtz-analytics/heat", "v1.8.0",
        tuple(f"tests/core/test_{name}.py" for name in ("communication", "manipulations", "dndarray", "statistics")),
    ),
    "mpi4py-fft": Application(
        "https://github.com/mpi4py/mpi4py-fft", "2.0.6",
        tuple(f"tests/test_{name}.py" for name in ("pencil", "mpifft", "darray")),
        works="from mpi4py_fft import fftw; assert fftw.get_fftw_lib('d'), 'FFTW is not found'",
    ),
    "pylops-mpi": Application(
        "https://github.com/PyLops/pylops-mpi", "v0.7.0",
        ("tests",),
        ("tests", "testdata"),
        ("--with-mpi", "--noconftest"),     # that one puts ranks into names, by what newer pytests do not have
    ),
}


@dataclass
class Ran:
    """One file of tests, run one way on some ranks."""

    seconds: float = 0.0
    ended: bool = True
    outcomes: dict[str, str] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)    # on rank 0, by who served them

    @property
    def passed(self) -> set[str]:
        return {name for name, outcome in self.outcomes.items() if outcome == "passed"}


def tests_of(name: str, sources: Path | None) -> Path:
    """Return a copy of the tests alone, so that they import the installed package."""
    known, copy = APPLICATIONS[name], WORK / name
    if sources is None:
        source = WORK / "sources" / name
        if not source.exists():
            clone = ["git", "clone", "--quiet", "--depth", "1", "--branch", known.tag]
            subprocess.run([*clone, known.source, str(source)], check=True, timeout=600)
    else:
        source = sources / name
    subprocess.run([sys.executable, "-c", known.works], check=True, timeout=600)
    shutil.rmtree(copy, ignore_errors=True)
    for part in known.copied:
        shutil.copytree(source / part, copy / part)
    (copy / "pytest.ini").write_text("[pytest]\n")     # not mpicoll's own
    return copy


def run(name: str, where: Path, file: str, way: str, ranks: int, arguments: argparse.Namespace) -> Ran:
    """Launch one file. What it printed, and what each rank noted, stay in the work directory."""
    notes = WORK / "outcomes" / f"{name}-{Path(file).stem}-{ranks}-{way}"
    shutil.rmtree(notes, ignore_errors=True)
    notes.mkdir(parents=True)
    options = ["-p", "outcomes", "-p", "no:cacheprovider", "-q", "--timeout", str(arguments.timeout),
               "--timeout-method", "thread", *APPLICATIONS[name].options, *(["-k", arguments.k] if arguments.k else [])]
    paths = [HERE / "plugins", *([] if _has_torchvision() else [HERE / "standin"])]
    environment = launcher.environment({"OUTCOMES": str(notes), "PYTHONPATH": os.pathsep.join(map(str, paths)),
                                        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
    log, began = notes.with_suffix(".txt"), time.monotonic()
    with log.open("wb") as output:
        command = launcher.command(ranks, [*WAYS[way], "-m", "pytest", file, *options])
        status = launcher.launch.run_group(command, arguments.limit, environment, output, where)
    ran = Ran(time.monotonic() - began, status is not None)
    for noted in notes.iterdir():
        mine: dict[str, str] = {}
        for line in noted.read_text().splitlines():
            test, outcome = json.loads(line)
            mine[test] = outcome
        for test, outcome in mine.items():
            ran.outcomes[test] = _worst(outcome, ran.outcomes.get(test, outcome))
    for algorithm, calls in ROW.findall(log.read_text(errors="replace")):
        ran.calls["native" if algorithm == "native" else "mpicoll"] += int(calls.replace(",", ""))
    return ran


def _worst(*outcomes: str) -> str:
    return next(outcome for outcome in ("failed", "begun", "passed", "skipped") if outcome in outcomes)


def _has_torchvision() -> bool:
    """Return whether torchvision imports; a build for another torch is installed, but fails to import."""
    if importlib.util.find_spec("torchvision") is None:
        return False
    done = subprocess.run([sys.executable, "-c", "import torchvision"], capture_output=True, timeout=120)
    return done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("applications", nargs="*", help=f"of {', '.join(APPLICATIONS)}; all")
    parser.add_argument("--ranks", default="3,4", help="numbers of ranks (3,4)")
    parser.add_argument("--sources", type=Path, help="a directory with the applications' sources, by their names")
    parser.add_argument("--limit", type=float, default=1800, help="seconds for one launch")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one test")
    parser.add_argument("-k", help="which tests, as pytest has it")
    parser.add_argument("--write", action="store_true", help="write the table in docs/APPLICATIONS.md")
    arguments = parser.parse_args()
    if unknown := set(arguments.applications) - set(APPLICATIONS):
        parser.error(f"no such application: {', '.join(sorted(unknown))}; there are {', '.join(APPLICATIONS)}")
    broken: list[str] = []
    for name in arguments.applications or APPLICATIONS:
        where = tests_of(name, arguments.sources)
        for file in APPLICATIONS[name].files:
            for ranks in map(int, arguments.ranks.split(",")):
                native, ours = (run(name, where, file, way, ranks, arguments) for way in WAYS)
                lost = sorted(native.passed - ours.passed)
                broken += [f"{name}, {ranks} ranks: {test}: {ours.outcomes.get(test, 'not run')}" for test in lost]
                if not (native.passed or arguments.k):
                    broken.append(f"{name}, {ranks} ranks: {file}: no test passes natively")
                row = _row(name, file, ranks, native, ours)
                if arguments.write:
                    write(row)
                print(row, f"{native.seconds:.0f} s natively, {ours.seconds:.0f} s with mpicoll", flush=True)
    print(*broken, f"{len(broken)} differ" if broken else "the same tests pass natively and with mpicoll", sep="\n")
    sys.exit(bool(broken))


def _row(name: str, file: str, ranks: int, native: Ran, ours: Ran) -> str:
    """Return one line of the table."""
    def all_of(ran: Ran) -> str:
        counts = Counter(ran.outcomes.values())
        more = [f"{counts[what]} {words}" for what, words in (
            ("failed", "failed"), ("begun", "did not end"), ("skipped", "skipped")) if counts[what]]
        return ", ".join([str(counts["passed"]), *more, *([] if ran.ended else ["killed"])])

    served = f"{ours.calls['mpicoll']:,}" + (f" (and {ours.calls['native']:,} native)" if ours.calls["native"] else "")
    cells = [name, Path(file).stem, ranks, all_of(native), all_of(ours), len(native.passed - ours.passed), served]
    return f"| {' | '.join(map(str, cells))} |"


def write(row: str) -> None:
    """Put a row in the table, in the place of that of the same tests and ranks."""
    versions = ", ".join(f"{name} {version(name)}" for name in (
        "heat", "mpi4py-fft", "pylops-mpi", "torch", "mpi4py", launcher.flavour()))
    before, rest = PAGE.read_text().split(BEGIN)
    there, after = rest.split(END)
    rows = {tuple(line.split("|")[1:4]): line for line in [*there.splitlines()[5:], row] if line}
    heads = ("application", "tests", "ranks", "passed natively", "passed with mpicoll", "lost", "calls served")
    table = [BEGIN, f"{versions}.", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|",
             *(rows[key] for key in sorted(rows)), END]
    PAGE.write_text(before + "\n".join(table) + after)


if __name__ == "__main__":
    main()
