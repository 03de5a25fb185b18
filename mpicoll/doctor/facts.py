"""Gather from all ranks the facts that the checks look at, beside those that `mpicoll info` prints."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .._version import __version__
from ..errors import MpicollError
from ..selection.tables import library, node
from . import info
from .finding import Facts, Rank
from .launchers import flavour
from .sameness import VARIABLES

ENVIRONMENT = (
    "PMI_SIZE",
    "PMI_RANK",
    "PMIX_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_JOB_ID",
    "SLURM_NTASKS",
    "SLURM_STEP_ID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_MPI_TYPE",
    "SLURM_JOB_CPUS_PER_NODE",
    "I_MPI_PMI_LIBRARY",
    "OMP_NUM_THREADS",
    "NUMBA_CACHE_DIR",
    *VARIABLES,
)
QUIET = 0.5  # seconds for which all ranks sleep while each looks who else is busy
CPUS = Path("/sys/devices/system/cpu")


def gather() -> Facts | None:
    """Return what info gathers and the facts of each rank, at rank 0; None elsewhere.

    Collective over MPI.COMM_WORLD.
    """
    from mpi4py import MPI

    return info.gather(partial(of_this_rank, MPI))


def complete(facts: Facts) -> Facts:
    """Add the facts that rank 0 alone gathers."""
    from mpi4py import MPI

    return {**facts, "mpiexec": mpiexec(facts["mpi"]), "settings": settings(MPI, facts["ranks"])}


def of_this_rank(mpi: Any) -> dict[str, Any]:
    """Return the facts of one rank. An error on one rank must not leave the others waiting."""
    try:
        facts = _still(mpi)
    except Exception as error:
        facts = {"failed": f"{type(error).__name__}: {error}"}
    mpi.COMM_WORLD.Barrier()  # from here on all sleep
    return {"node": mpi.Get_processor_name(), "environ": {}, **facts, "busy": busy()}


def _still(mpi: Any) -> dict[str, Any]:
    """Return what does not change while others work."""
    available = reachable()
    return {
        "node": node(mpi),
        "available": available,
        "cores": cores(info.affinity()),
        "available_cores": _count(cores(available)),
        "machine_cores": _count(cores(range(os.cpu_count() or 1))),
        "environ": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        "software": software(mpi),
        "libraries": loaded(),
        "cache": cache(),
    }


def _count(things: Sequence[int] | None) -> int | None:
    return None if things is None else len(things)


# -- CPUs -----------------------------------------------------------------------------------------------------------


def reachable() -> list[int] | None:
    """Return the CPUs that this process could be bound to: all, where neither a job nor a container has less.

    A thread asks for all, and the system gives it what is allowed. The mask of the other threads stays.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None
    cpus: list[int] = []

    def ask() -> None:
        try:
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
        except OSError:
            return
        cpus.extend(sorted(os.sched_getaffinity(0)))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return cpus or None


def cores(cpus: Sequence[int] | None, directory: Path = CPUS) -> list[int] | None:
    """Return the cores of some CPUs, each named by its first hardware thread; None where the system does not tell."""
    if cpus is None:
        return None
    try:
        firsts = [(directory / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text() for cpu in cpus]
        return sorted({int(re.split("[,-]", text, maxsplit=1)[0]) for text in firsts})
    except (OSError, ValueError):
        return None


def busy(seconds: float = QUIET, stat: Path = Path("/proc/stat")) -> float | None:
    """Return how many CPUs of the machine were in use while this process slept; None where the system does not tell."""
    before = _ticks(stat)
    time.sleep(seconds)
    after = _ticks(stat)
    if before is None or after is None or after[1] <= before[1]:
        return None
    return (after[0] - before[0]) / (after[1] - before[1]) * after[2]


def _ticks(stat: Path) -> tuple[int, int, int] | None:
    """Return the ticks in use, all ticks, and of how many CPUs."""
    try:
        lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
        counts = [int(word) for word in lines[0][1:9]]  # user nice system idle iowait irq softirq steal
    except (OSError, ValueError, IndexError):
        return None
    return sum(counts) - counts[3] - counts[4], sum(counts), len(lines) - 1


# -- software and files -----------------------------------------------------------------------------------------------


def software(mpi: Any) -> dict[str, str | None]:
    """Return what must be the same on every rank."""
    package = Path(__file__).resolve().parents[1]
    return {
        "mpi": info.library_version(mpi),
        "mpi_path": info.library_path(),
        "python": platform.python_version(),
        "mpicoll_path": str(package),
        "mpicoll_files": digest(package),
        "mpicoll": __version__,
        **{name: info.installed(name) for name in ("mpi4py", "numpy", "numba")},
    }


def digest(package: Path) -> str | None:
    """Return ten hex digits for the modules of a package; None where it is not in files."""
    checksum = hashlib.sha256()
    try:
        for directory, inner, files in os.walk(package, followlinks=True):
            inner.sort()
            for name in sorted(files):
                if name.endswith(".py"):
                    path = Path(directory, name)
                    checksum.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    except OSError:
        return None
    return checksum.hexdigest()[:10]


def loaded(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return the MPI libraries in this process, without those that only stand before one of them for profiling."""
    return sorted({os.path.realpath(path) for path in info.library_paths(maps) if "/libpmpi." not in path})


def cache() -> dict[str, Any]:
    """Return where compiled kernels are kept, on which filesystem, and how many this process has compiled so far."""
    directory = info.cache_directory()
    return {
        "directory": directory,
        "filesystem": None if directory is None else filesystem(directory),
        "compiled": len(info.kernels()["compiled"]),
    }


def filesystem(path: str, mounts: Path = Path("/proc/self/mountinfo")) -> str | None:
    """Return the type of the filesystem that a path lies on.

    That of the longest mount point above it, the last of several.
    """
    try:
        lines = [line.split() for line in mounts.read_text().splitlines()]
        real = Path(os.path.realpath(path))
        points = [(_unescaped(words[4]), words[words.index("-") + 1]) for words in lines]
    except (OSError, ValueError, IndexError):
        return None
    above = [(len(point), number, kind) for number, (point, kind) in enumerate(points) if real.is_relative_to(point)]
    return max(above)[2] if above else None


def _unescaped(point: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)


def mpiexec(mpi: dict[str, Any]) -> str | None:
    """Return the launcher that stands in the bin beside the library's directory; None where there is none."""
    kind = flavour(mpi["library_version"]).name.lower().replace(" ", "")
    above = Path(mpi["path"]).parents if mpi["path"] else ()
    beside = [parent / "bin" / name for parent in above[1:4] for name in (f"mpiexec.{kind}", "mpiexec")]
    return next((str(path) for path in beside if path.exists()), None)


def settings(mpi: Any, ranks: Sequence[Rank]) -> dict[str, str | None]:
    """Return why a Comm would refuse what the variables say.

    Or why auto would not go by the tuning table that they name.
    """
    from ..selection import settings as variables

    try:
        read = variables.read()
    except MpicollError as error:
        return {"refused": str(error), "untuned": None}
    if read.tuning is None:
        return {"refused": None, "untuned": None}
    if read.engine != "auto":
        untuned = f"{read.tuning.path} is ignored: it was measured with the default engine, but MPICOLL_ENGINE is set"
        return {"refused": None, "untuned": untuned}
    places: dict[str, list[int]] = {}
    for rank in ranks:
        places.setdefault(rank["node"], []).append(rank["rank"])
    _, why = read.tuning.table(library(mpi), tuple(map(tuple, places.values())))
    return {"refused": None, "untuned": why or None}
