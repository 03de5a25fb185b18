"""Starts MPI programs with the mpiexec that belongs to this Python.

This is the one place that knows what each MPI's launcher needs; the Makefile, tests/run.py and tests/launch
all come here.

    python tests/launcher.py -n 4 pytest tests/mpi
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parents[1]
KILL_AFTER = 10.0       # seconds from SIGTERM to SIGKILL

# What `mpiexec --version` says, and what that launcher is given besides -n.
SIGNATURES = {"intel": "Intel(R) MPI", "openmpi": "Open MPI", "mpich": "HYDRA"}
ARGUMENTS: dict[str, list[str]] = {
    "mpich": [],
    "openmpi": ["--oversubscribe", "--bind-to", "none"],
    "intel": [],
}
ENVIRONMENT: dict[str, dict[str, str]] = {
    "mpich": {},
    "openmpi": {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",  # more ranks than cores is the normal case here
    },
    "intel": {},
}
# Ranks share the cores already: no rank starts a pool of threads of its own.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def executable(name: str) -> str:
    """`name` from the environment of this Python, else from PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name}: neither beside {sys.executable} nor on PATH; install one MPI, "
                                "for instance `pip install mpich`")
    return found


@lru_cache(maxsize=1)
def flavour() -> str:
    """Which MPI the launcher belongs to: "mpich", "openmpi" or "intel"."""
    command = executable("mpiexec")
    said = subprocess.run([command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, env=os.environ | ENVIRONMENT["openmpi"])
    for name, signature in SIGNATURES.items():
        if signature in said.stdout + said.stderr:
            return name
    raise RuntimeError(f"{command} --version names no MPI known here ({', '.join(SIGNATURES)}): "
                       f"{(said.stdout + said.stderr)[:200]!r}")


def command(ranks: int, arguments: Sequence[str]) -> list[str]:
    """The command line that starts `arguments` on so many ranks."""
    program, *rest = arguments
    if os.sep not in program:
        program = executable(program)
    return [executable("mpiexec"), *ARGUMENTS[flavour()], "-n", str(ranks), program, *rest]


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment to start it in."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return ONE_THREAD | ENVIRONMENT[flavour()] | dict(os.environ) | {"PATH": path} | dict(extra or {})


def run_group(command: Sequence[str], limit: float, output: IO[bytes] | None = None,
              extra: Mapping[str, str] | None = None) -> int | None:
    """The exit status of a command, or None if it and all it started had to be killed. Its output goes to
    `output` or, without one, where this program's goes."""
    label = uuid.uuid4().hex
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output,
                               stderr=None if output is None else subprocess.STDOUT, start_new_session=True,
                               env=environment({**(extra or {}), "MPICOLL_LAUNCH": label}))
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(KILL_AFTER)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return None
    finally:
        if process.poll() is None:
            process.kill()
        kill_labelled(label)


def kill_labelled(label: str) -> None:
    """Ends what a launch left behind: a launcher puts its ranks into process groups of their own."""
    mark = f"MPICOLL_LAUNCH={label}".encode()
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (directory / "environ").read_bytes().split(b"\0"):
                os.kill(int(directory.name), signal.SIGKILL)
        except OSError:
            continue


def main(arguments: Sequence[str]) -> None:
    if len(arguments) < 3 or arguments[0] != "-n" or not arguments[1].isdigit():
        sys.exit("usage: python tests/launcher.py -n RANKS PROGRAM [ARGUMENT ...]")
    line = command(int(arguments[1]), arguments[2:])
    os.execve(line[0], line, environment())


if __name__ == "__main__":
    main(sys.argv[1:])
