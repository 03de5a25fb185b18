"""A copy of the environment for the nodes' own disks, so that hundreds of ranks do not import from a shared one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import mpicoll
from mpicoll.benchmarks.results.environment import COMMIT, commit

from .errors import JobsError

PACKAGE = Path(mpicoll.__file__).resolve().parent
COMPLETE = "COMPLETE"  # on a node that has the whole copy
OF_A_LAUNCH = ("SLURM", "SRUN", "PMI", "PMIX", "I_MPI", "OMPI", "PRTE", "NUMBA_CACHE_DIR", "PYTHONPATH")


def stage(target: Path) -> Path:
    """Copy this virtual environment to `target`, compile the kernels there, and pack it as `target`.tar.

    The archive is to be unpacked at the same path elsewhere: what numba compiled is known by its path. An mpicoll that
    is installed for editing goes along as it is now. Raises JobsError.
    """
    if sys.prefix == sys.base_prefix:
        raise JobsError(f"{sys.executable} belongs to no virtual environment, and only those can be copied")
    if target.exists():
        raise JobsError(f"{target} is there already")
    try:
        shutil.copytree(sys.prefix, target, symlinks=True)
        _own(target)
        _compile(target)
        archive = target.with_name(f"{target.name}.tar")
        # posix: with the times of files to the nanosecond, by which Python knows what it compiled
        _run("tar", "--format=posix", "-cf", str(archive), "-C", str(target), ".")
        (target / COMPLETE).touch()
    except OSError as error:
        raise JobsError(f"cannot copy to {target}: {error.strerror or error}") from None
    except shutil.Error as error:
        raise JobsError(f"cannot copy to {target}: {error.args[0][0][2]}") from None
    return archive


def _own(target: Path) -> None:
    """Copy mpicoll itself into the environment, if it is outside of it, and note its commit."""
    packages = target / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    if not PACKAGE.is_relative_to(Path(sys.prefix).resolve()):
        for finder in packages.glob("__editable__*mpicoll*"):
            finder.unlink()
        shutil.copytree(PACKAGE, packages / PACKAGE.name)
        if revision := commit():
            (packages / PACKAGE.name / COMMIT).write_text(f"{revision}\n", encoding="utf-8")


def _compile(target: Path) -> None:
    """Compile the engine and the usual reductions, in a process that is no rank of a launch."""
    python, environment = str(target / "bin" / "python"), os.environ
    alone = {name: value for name, value in environment.items() if not name.startswith(OF_A_LAUNCH)}
    _run(python, "-m", "mpicoll", "warm", env=alone, cwd=target)


def _run(*words: str, **how: object) -> None:
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, **how)  # type: ignore[call-overload]
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        raise JobsError(f"{' '.join(words[:4])}: {output[-1] if output else f'exit status {done.returncode}'}")
