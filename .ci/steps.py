"""Runs the steps of CI side by side, as many as the cores allow, and adds up their totals.

    python .ci/steps.py              # all steps
    python .ci/steps.py --list       # the steps and their commands
    python .ci/steps.py lint mpich-unit

A step has a file for its output, build/ci/STEP.log, which is printed when the step ends. Steps of one process (lint,
the site, unit tests on the oldest Python) run beside each other on 2 cores; a step that starts 2 ranks takes both.
Nothing is drawn at random, so a failure repeats. A step with a `N passed, N failed, N skipped` line adds these numbers
to the totals; another counts as one test. The last line is the sum; the exit status is 0 only if nothing failed.

What benchmarks, reports, OSU's and other peers, clusters, jobs and hosts need is tested in full where tests/changed.py
finds a change of them or of what they import, else by a smoke test.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "ci"
UV = ROOT / "build" / "uv" / "bin" / "uv"
TOTALS = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.MULTILINE)
TOLD = re.compile(r"^(?:FAILED|said), .*$", re.MULTILINE)
STILL_RUNNING = 60.0    # seconds between lines that name the steps in progress
KILL_AFTER = 20.0       # seconds from SIGTERM to SIGKILL

# Files that hold what differs between MPI libraries.
PORTABLE = (
    "requests,communicators,making_communicators,threads,fast_path_messages,message_lengths,engines,many_ranks,interface,"
    "lifetime,stall,fatal_errors,errhandlers,sparse,survive,survivors,timeline,status,stencils,history"
)
OLDEST, NEWEST = "3.10", "3.13"
WHEEL = """
rm -rf build/wheel && {python} -m venv --clear .venv-newest
python=.venv-newest/bin/python
$python -m pip --quiet --disable-pip-version-check wheel --no-deps --wheel-dir build/wheel .
wheel="$(echo build/wheel/mpicoll-*.whl)[mpich,test]"
$UV pip install --quiet --python $python "$wheel" || $python -m pip install --quiet "$wheel"
"""
PIPS = {    # of pip's settings, and what uv calls them
    "index-url": "UV_DEFAULT_INDEX", "extra-index-url": "UV_INDEX", "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT", "cert": "SSL_CERT_FILE",
}  # fmt: skip


@dataclass
class Step:
    """A command, the cores that it keeps busy, and what came of it."""

    name: str
    command: list[str]
    limit: float = 900.0                                    # seconds
    cores: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    seconds: float = 0.0
    status: int | None = None                               # None: killed after its limit
    output: str = ""

    @property
    def totals(self) -> tuple[int, int, int]:
        """Passed, failed and skipped tests; a step without such a line is one test."""
        totals = [tuple(map(int, numbers)) for numbers in TOTALS.findall(self.output)]
        passed, failed, skipped = (sum(column) for column in zip(*totals)) if totals else (0, 0, 0)
        if self.status != 0 and not failed:
            failed += 1
        elif not totals:
            passed += 1
        return passed, failed, skipped

    def start(self) -> None:
        """Start its command, with its output to a file."""
        LOGS.mkdir(parents=True, exist_ok=True)
        self.began = time.monotonic()
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
                env={**os.environ, **self.environment}, start_new_session=True,
            )  # fmt: skip
        print(f"######## {self.name} begins: {' '.join(self.command)}", flush=True)

    @property
    def log(self) -> Path:
        """The file of its output."""
        return LOGS / f"{self.name}.log"

    def ended(self) -> bool:
        """Return whether it is over; kill it if it is beyond its limit."""
        assert self.process is not None
        self.status = self.process.poll()
        self.seconds = time.monotonic() - self.began
        if self.status is None and self.seconds < self.limit:
            return False
        if self.status is None:
            self.kill()
        self.output = self.log.read_text(errors="replace").replace("\r", "")
        return True

    def kill(self) -> None:
        """End its process group: politely first, so that test runners end what they started."""
        assert self.process is not None
        for sent in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, sent)
                try:
                    self.process.wait(KILL_AFTER)
                except subprocess.TimeoutExpired:
                    continue

    def report(self) -> None:
        """Print its output, and how it ended."""
        how = f"killed after its limit of {self.limit:.0f} s" if self.status is None else f"exit status {self.status}"
        print(f"\n######## {self.name}: {' '.join(self.command)}\n{self.output.rstrip()}")
        print(f"######## {self.name}: {how} after {self.seconds:.0f} s", flush=True)


def run(steps: Sequence[Step], cores: int) -> None:
    """Run all steps: whenever cores are free, the first that fits; one that wants more than there are runs alone."""
    waiting, running = list(steps), []
    reported = time.monotonic()
    try:
        while waiting or running:
            for step in list(waiting):
                if not running or step.cores <= cores - sum(other.cores for other in running):
                    waiting.remove(step)
                    step.start()
                    running.append(step)
            for step in list(running):
                if step.ended():
                    running.remove(step)
                    step.report()
                    reported = time.monotonic()
            if running and time.monotonic() - reported > STILL_RUNNING:
                reported = time.monotonic()
                lasting = (f"{other.name} for {reported - other.began:.0f} s" for other in running)
                print("... " + ", ".join(lasting), flush=True)
            if running:
                time.sleep(0.2)
    finally:
        for step in running:
            step.kill()


def summarize(steps: Sequence[Step], seconds: float) -> bool:
    """Print a line per step, what failed, and the totals; return whether nothing failed."""
    print(f"\n{'step':<20}{'passed':>8}{'failed':>8}{'skipped':>8}{'seconds':>9}")
    for step in steps:
        numbers = "".join(f"{number:>8}" for number in step.totals)
        print(f"{step.name:<20}{numbers}{step.seconds:>9.0f}")
    print(f"{'all':<20}{'':>24}{seconds:>9.0f}")
    for step in steps:
        if step.totals[1] and not (failures := TOLD.findall(step.output)):
            print(f"FAILED, {step.name}: see its output above, {step.log}")
        elif step.totals[1]:
            print(*failures, sep="\n")
    passed, failed, skipped = (sum(column) for column in zip(*(step.totals for step in steps)))
    print(f"{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return not failed


# -- the steps ----------------------------------------------------------------------------------------------


def interpreter(version: str) -> str | None:
    """Return a Python of this version that can make environments, if the machine has one."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    code = f"import ensurepip, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '{version}')"
    for python in (shutil.which(f"python{version}"), *versions.glob(f"{version}.*/bin/python")):
        if python and subprocess.run([python, "-c", code], capture_output=True).returncode == 0:
            return str(python)
    return None


def tools_changed() -> bool:
    """Ask tests/changed.py whether the tests of benchmarks, jobs and the like run in full."""
    done = subprocess.run([sys.executable, "tests/changed.py"], cwd=ROOT, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="", flush=True)
    return done.returncode != 0


def uv_settings(listed: str) -> dict[str, str]:
    """Return what `pip config list` says of indexes and constraints as uv's variables: uv does not read it."""
    known = dict(re.findall(r"^\S*?\.([a-z-]+)='(.*)'$", listed, re.MULTILINE))
    settings = {variable: known[name] for name, variable in PIPS.items() if name in known}
    return {"UV_INDEX_STRATEGY": "unsafe-best-match", **settings}    # like pip, the newest of all indexes


def uv() -> Step:
    """Return the step that installs uv, which takes a tenth of pip's time; without it pip makes the environments."""
    own = UV.parents[1]
    script = f"{sys.executable} -m venv --clear {own} && {own}/bin/python -m pip install --quiet uv || echo 'no uv'"
    return Step("uv", ["sh", "-c", script], 300, 1)


def environments() -> list[Step]:
    """Return the steps that make all environments: by uv, and again by pip where that fails."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True).stdout
    settings = {"UV": str(UV), "UV_CACHE_DIR": str(ROOT / "build" / "uv-cache"), **uv_settings(listed)}

    def step_of(name: str, words: str, **constraints: str) -> Step:
        environment = {"PIP_NO_COMPILE": "1", **settings, **constraints}    # of all modules few are imported
        return Step(f"env-{name}", ["sh", "-c", f"{words} || UV= {words}"], 1200, 1, environment)

    make = f"make PYTHON={sys.executable}"
    steps = [step_of(mpi, f"{make} MPI={mpi} env") for mpi in ("mpich", "openmpi", "intel")]
    steps += [step_of(f"torch-{mpi}", f"{make} MPI={mpi} torch-env") for mpi in ("mpich", "openmpi", "intel")]
    steps += [step_of("docs", f"{make} .venv-docs/.installed")]
    oldest = interpreter(OLDEST) or sys.executable
    lowest = dict.fromkeys(("PIP_CONSTRAINT", "UV_CONSTRAINT"), str(ROOT / "tests" / "lowest.txt"))
    steps += [step_of("oldest", f"make PYTHON={oldest} VENV=.venv-oldest env", **lowest)]
    if newest := interpreter(NEWEST):   # from a wheel, as users install it; the others use the checkout itself
        steps += [Step("env-newest", ["sh", "-ec", WHEEL.format(python=newest)], 1200, 1, settings)]
    return steps


def tests() -> list[Step]:
    """Return the steps that test; those of one core come first, since they run beside each other."""
    def make(name: str, *words: str, **options: Any) -> Step:
        return Step(name, ["make", f"PYTHON={sys.executable}", *words], **options)

    def suite(name: str, arguments: str, *words: str, **options: Any) -> Step:
        return make(name, *words, "test", f"TEST_ARGS={arguments}", **options)

    tools, newest = "" if tools_changed() else " --smoke-tools", interpreter(NEWEST)
    # Kernels are compiled first, on one core: no test waits for the compiler. With a cache of its own no environment
    # waits for the compiler of another.
    oldest = {"environment": {"NUMBA_CACHE_DIR": str(ROOT / "build" / "kernels-oldest")}}
    steps = [
        Step("warm", [".venv/bin/mpicoll", "warm"], 600, 1),
        suite("oldest-unit", "--suites unit --sample-unit 0.05 -- -n 0 -m 'not once'", "VENV=.venv-oldest", cores=1,
              **oldest),
        make("lint", "lint", cores=1),
        make("site", "site", cores=1),
        *([Step("warm-newest", [".venv-newest/bin/mpicoll", "warm"], 600, 1)] if newest else ()),
        suite("mpich-unit", f"--suites unit{tools}"),
        suite("mpich-mpi", f"--thorough --suites mpi --sample 0.03{tools}", limit=1800),
        suite("mpich-launch", f"--thorough --suites launch --sample-launch 0.25{tools}", limit=1500),
        suite("oldest-mpi", "--suites mpi --ranks 2 --sample 0.05", "VENV=.venv-oldest", **oldest),
    ]
    for mpi, ranks in (("openmpi", 3), ("intel", 2)):
        portable = f"--suites launch,mpi --ranks {ranks} --sample-launch 0.25 --files {PORTABLE} -- -m 'not once'"
        steps.append(suite(mpi, portable, f"MPI={mpi}"))
    arguments = f"TORCH_ARGS=--ranks 3 --sample-launch 0.5{tools}", "TORCH_SUITE_ARGS=--ranks 3"
    steps.append(make("torch-mpich", "test-torch", *arguments))
    for mpi, suites in (("openmpi", "torch_programs,torch"), ("intel", "torch")):
        python = f".venv-torch-{mpi}/bin/python"
        steps.append(Step(f"torch-{mpi}", [python, "tests/run.py", "--suites", suites, "--ranks", "2",
                                           "--files", "operations,data_parallel,shrink"]))
    if newest:
        steps.append(Step("newest", [".venv-newest/bin/python", "tests/run.py", "--suites", "unit,mpi", "--ranks", "2",
                                     "--files", "exports,harness,many_ranks", "--", "-n", "0"]))
    return steps


def main() -> int:
    """Run what the command line asks for; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="print the steps, and run nothing")
    parser.add_argument("names", nargs="*", metavar="STEP", help="run these steps, and make no environments")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and tests send it
    began, cores = time.monotonic(), os.cpu_count() or 1
    before, after = ([] if arguments.names else [uv(), *environments()]), tests()
    steps = [*before, *(step for step in after if not arguments.names or step.name in arguments.names)]
    if unknown := {*arguments.names} - {step.name for step in after}:
        parser.error(f"{', '.join(sorted(unknown))}: the steps are {', '.join(step.name for step in after)}")
    if arguments.list:
        for step in steps:
            print(f"{step.name:<15}{step.cores} cores: {' '.join(step.command)}")
        return 0
    for version in (OLDEST, NEWEST):
        if interpreter(version) is None:
            print(f"python{version}: not on this machine", flush=True)
    for stage in (before[:1], before[1:], steps[len(before):]):     # each needs what the one before it made
        run(stage, cores)
    return 0 if summarize(steps, time.monotonic() - began) else 1


if __name__ == "__main__":
    sys.exit(main())
