"""Starts MPI programs with the mpiexec that belongs to this Python.

The Makefile, tests/run.py and tests/launch all come here; what each MPI's launcher needs is in
benchmarks/launch.py.

    python tests/launcher.py -n 4 pytest tests/mpi
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from mpicoll.benchmarks import launch
from mpicoll.benchmarks.launch import command, environment, executable, flavour

__all__ = ["command", "environment", "executable", "flavour", "output_of", "run_group"]
ROOT = Path(__file__).resolve().parents[1]


def run_group(command: Sequence[str], limit: float, output: IO[bytes] | None = None,
              extra: Mapping[str, str] | None = None, left: list[str] | None = None) -> int | None:
    """Run `launch.run_group` in the checkout and in this environment, with `extra` variables."""
    return launch.run_group(command, limit, environment(extra), output, ROOT, left)


def output_of(command: Sequence[str], limit: float, extra: Mapping[str, str] | None = None) -> tuple[int | None, str]:
    """Return the exit status of a launch, None if it had to be killed, and all that it printed."""
    with tempfile.TemporaryFile() as output:
        status = run_group(command, limit, output, extra)
        output.seek(0)
        return status, output.read().decode(errors="replace")


def main(arguments: Sequence[str]) -> None:
    if len(arguments) < 3 or arguments[0] != "-n" or not arguments[1].isdigit():
        sys.exit("usage: python tests/launcher.py -n RANKS PROGRAM [ARGUMENT ...]")
    try:
        line = command(int(arguments[1]), arguments[2:])
    except launch.LaunchError as error:
        sys.exit(str(error))
    os.execve(line[0], line, environment())


if __name__ == "__main__":
    main(sys.argv[1:])
