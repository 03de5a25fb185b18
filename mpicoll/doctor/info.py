"""Gather what runs where, as facts and as text: the MPI library, the ranks and their CPUs, the engines, the kernels."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..errors import spans
from ..selection.tables import library
from .finding import NOT_COMPILED

THREAD_LEVELS = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")


def gather(more: Callable[[], dict[str, Any]] = dict) -> dict[str, Any] | None:
    """Return the facts of all ranks, at rank 0; None elsewhere. Collective over MPI.COMM_WORLD.

    more: further facts of a rank, asked for last, when the kernels of the self-test are there.
    """
    from mpi4py import MPI

    own = {"rank": MPI.COMM_WORLD.rank, "host": MPI.Get_processor_name(), "cpus": affinity(), **_engine()}
    own.update(more())
    auto = _auto(MPI)
    ranks = MPI.COMM_WORLD.gather(own)
    if ranks is None:
        return None
    return {
        "mpicoll": _own_version(),
        "python": platform.python_version(),
        "mpi": _mpi(MPI),
        "ranks": ranks,
        "hosts": len({rank["host"] for rank in ranks}),
        "numba": _numba(),
        "kernels": kernels(),
        "auto": auto,
    }


def _auto(mpi: Any) -> list[str]:
    """Return by what auto goes for all ranks. Collective."""
    from ..cost.network import in_words
    from ..errors import MpicollError
    from ..runtime.agreement import agree

    comm = mpi.COMM_WORLD.Dup()
    try:
        agreed = agree(comm)
    except MpicollError as error:
        return [f"undecided: {error}"]
    finally:
        comm.Free()
    tuning = agreed.settings.tuning
    table = [f"the tuning table of {tuning.path} where it has rules"] if tuning and agreed.table else []
    if agreed.network is None:
        return [*table, "fixed rules"]
    return [*table, f"a model of {agreed.network.name}", *in_words(agreed.network)]


def _own_version() -> str:
    from .._version import __version__

    return __version__


def affinity() -> list[int] | None:
    """Return the CPUs this process may run on; None where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _mpi(mpi: Any) -> dict[str, Any]:
    from ..diagnostics.fault_tolerance import missing

    return {
        "library": library(mpi),
        "library_version": library_version(mpi),
        "standard": ".".join(map(str, mpi.Get_version())),
        "path": library_path(),
        "mpi4py": version("mpi4py"),
        "thread_level": _thread_level(mpi),
        "survives": missing(),
    }


def installed(name: str) -> str | None:
    """Return the version of a package; None where it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def library_version(mpi: Any) -> str:
    """Return what the library says of itself, its first line."""
    return " ".join(mpi.Get_library_version().strip("\0\n ").splitlines()[0].split())


def _thread_level(mpi: Any) -> str:
    levels = {getattr(mpi, f"THREAD_{name}"): name for name in THREAD_LEVELS}
    return levels.get(mpi.Query_thread(), "unknown")


def library_path(maps: Path = Path("/proc/self/maps")) -> str | None:
    """Return where the MPI library was loaded from; None where the system does not tell."""
    return next(iter(library_paths(maps)), None)


def library_paths(maps: Path = Path("/proc/self/maps")) -> list[str]:
    """Return where every MPI library in this process was loaded from, each once."""
    try:
        text = maps.read_text()
    except OSError:
        return []
    return list(dict.fromkeys(re.findall(r"(/\S*/lib(?:mpi|mpich|mpi_abi|pmpi)\.(?:so|\d)\S*)$", text, re.MULTILINE)))


def _engine() -> dict[str, Any]:
    """Return whether the compiled engine passes its self-test here, and calls made before may take the fast path."""
    from ..kernels.background import NotCompiled

    try:
        from ..engines.selftest import check
        from ..fastpath.opening import unknown_layout

        problem = check(wait=False)
        return {"compiled_engine": problem, "fast_path": unknown_layout() if problem is None else "no compiled engine"}
    except NotCompiled:
        return {"compiled_engine": NOT_COMPILED, "fast_path": NOT_COMPILED}
    except Exception as error:
        problem = f"its self-test did not run: {type(error).__name__}: {error}"
        return {"compiled_engine": problem, "fast_path": "no compiled engine"}


def _numba() -> dict[str, Any]:
    """Return numba's version, without importing it, and where what it compiles is kept."""
    directory = cache_directory()
    return {
        "version": installed("numba"),
        "cache_directory": directory,
        "cache_writable": directory is not None and os.access(directory, os.W_OK),
    }


def cache_directory() -> str | None:
    """Return where compiled kernels are kept; None where no directory can be written."""
    from ..kernels import cache, reference

    directory = cache.directory(str(reference.__file__))
    return None if directory is None else str(directory)


def kernels() -> dict[str, Any]:
    """Return what this rank has compiled and loaded so far: what the self-test needs; or why NumPy's kernels serve."""
    from ..kernels import cache, serving

    why = serving.why_plain()
    plain = f"NumPy's, since numba does not serve: {why}" if why else ""
    return {"compiled": list(cache.compiled_here()), "loaded": list(cache.loaded_here()), "plain": plain}


# -- for people -------------------------------------------------------------------------------------------------


def lines(facts: dict[str, Any]) -> str:
    """Return the facts, one a line; ranks that agree share a line."""
    mpi, numba, built = facts["mpi"], facts["numba"], facts["kernels"]
    ranks = facts["ranks"]
    out = [
        ("mpicoll", f"{facts['mpicoll']}, Python {facts['python']}"),
        ("MPI", f"{mpi['library']}, MPI {mpi['standard']}"),
        ("", mpi["library_version"]),
        ("library", mpi["path"] or "unknown"),
        ("mpi4py", f"{mpi['mpi4py']}, thread level {mpi['thread_level']}"),
        ("", f"survives a failed rank: {'no, because ' + mpi['survives'] if mpi['survives'] else 'yes'}"),
        ("ranks", f"{len(ranks)} on {facts['hosts']} host{'s' * (facts['hosts'] != 1)}"),
        *(("", f"rank {who} on {host}: {_cpus(cpus)}") for who, (host, cpus) in _grouped(ranks, "host", "cpus")),
        ("engines", "mpi4py: serves every algorithm"),
        *(("", f"compiled: {_passed(why)} on rank {who}") for who, (why,) in _grouped(ranks, "compiled_engine")),
        *(("", f"fast path: {_open(why)} on rank {who}") for who, (why,) in _grouped(ranks, "fast_path")),
        ("numba", numba["version"] or "not found"),
        *([("cache", _cache(numba))] if numba["version"] else []),
        ("kernels", built["plain"] or _counted(built)),
        *(("", f"{how} {_names(built[how])}") for how in ("compiled", "loaded") if built[how]),
        *(("" if i else "auto", line) for i, line in enumerate(facts["auto"])),
    ]
    return "\n".join(f"{name:<9}{text}" for name, text in out)


def _grouped(ranks: Iterable[dict[str, Any]], *keys: str) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the ranks that give the same values for some keys, in short form."""
    groups: dict[str, tuple[list[int], tuple[Any, ...]]] = {}
    for rank in ranks:
        values = tuple(rank[key] for key in keys)
        groups.setdefault(repr(values), ([], values))[0].append(rank["rank"])
    return [(spans(who), values) for who, values in groups.values()]


def _cpus(cpus: list[int] | None) -> str:
    if cpus is None:
        return "CPUs unknown"
    return f"CPU {spans(cpus)}" if len(cpus) == 1 else f"CPUs {spans(cpus)}"


def _passed(why: str | None) -> str:
    return "passes its self-test" if why is None else f"not used, {why};"


def _open(why: str | None) -> str:
    return "open" if why is None else f"closed, {why};"


def _names(kernels: Iterable[str]) -> str:
    """Return the kernels without their argument types."""
    return ", ".join(sorted({name.partition("(")[0] for name in kernels}))


def _counted(built: dict[str, Any]) -> str:
    return f"{len(built['compiled'])} compiled, {len(built['loaded'])} loaded from the cache"


def _cache(numba: dict[str, Any]) -> str:
    directory = numba["cache_directory"]
    if directory is None:
        return "none: no directory for it can be written; set NUMBA_CACHE_DIR"
    return f"{directory}, {'writable' if numba['cache_writable'] else 'read-only'}"
