"""A real Slurm on this machine alone, for tests of jobs: a site's file, commands in a directory, what they left."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import launcher
import pytest

from mpicoll.benchmarks.launch import ENVIRONMENT
from mpicoll.jobs import testbed

NODES, CPUS = 4, 2
LIMIT = 150.0  # seconds for one command
WHOLE_TIME = ("--", "--precision", 0)  # a step takes all of its seconds
# How each MPI's ranks are started; libpmi2 of Debian's package. MPICH's ranks on several nodes are not started by srun
# here: docs/SLURM.md says why ("A step dies in MPI_Init").
LAUNCHES = {
    "mpich": 'kind = "mpich"\nlauncher = "mpirun"',
    "intel": 'kind = "intel"\npmi-library = "/usr/lib/x86_64-linux-gnu/libpmi2.so.0"',
    "openmpi": 'kind = "openmpi"\nlauncher = "mpirun"',
}
SRUN = 'kind = "mpich"\nlauncher = "srun"'  # on one node
SITE = """
partition = "debug"
ranks-per-node = 1
requeue = true
{more}
[mpi]
bind = "none"
{mpi}
[environment]
{variables}
"""


@pytest.fixture(scope="module")
def slurm() -> Iterator[testbed.Slurm]:
    with testbed.Slurm(NODES, CPUS) as daemons:
        ours = {name: daemons.environment[name] for name in ("SLURM_CONF", "MPICOLL_LAUNCH")}
        daemons.environment = launcher.environment(ours)
        yield daemons


Run = Callable[..., str]


@pytest.fixture
def run(slurm, tmp_path) -> Run:
    """Return run(word, …): run a command beside a site's file, which has to exit with `status`; return its output."""

    def start(*words: object, status: int = 0) -> str:
        done = subprocess.run([*map(str, words)], cwd=tmp_path, env=slurm.environment, timeout=LIMIT, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        assert done.returncode == status, f"{words}: {done.stdout}{outputs(tmp_path)}"
        return done.stdout

    (tmp_path / "site.toml").write_text(site())
    return start


def site(more: str = "", mpi: str = "") -> str:
    kind = launcher.flavour()
    variables = "\n".join(f'{name} = "{value}"' for name, value in ENVIRONMENT[kind].items())
    return SITE.format(more=more, mpi=mpi or LAUNCHES[kind], variables=variables)


def outputs(directory: Path) -> str:
    """Return the output of the jobs."""
    return "".join(f"\n{path}:\n{path.read_text()}" for path in directory.rglob("*.out"))


def jobs(run: Run, *words: object, status: int = 0) -> str:
    return run(sys.executable, "-m", "mpicoll", "jobs", *words, status=status)


def steps(run: Run, directory: str) -> dict[str, str]:
    """Return the state of every step."""
    return {step["step"]: step["state"] for step in json.loads(jobs(run, "status", "--json", directory))["steps"]}


def results(path: Path) -> list[dict]:
    return [entry for entry in map(json.loads, path.read_text().splitlines()) if entry["kind"] == "result"]


def until(ready: Callable[[], object], directory: Path) -> None:
    end = time.monotonic() + LIMIT
    while not ready():
        assert time.monotonic() < end, outputs(directory)
        time.sleep(0.1)
