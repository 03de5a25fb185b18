"""Describe where numbers were measured: enough to compare and repeat them, and no name of a machine, user or path."""

from __future__ import annotations

import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpicoll.cli.sizes import format_size
from mpicoll.doctor.info import installed
from mpicoll.selection.tables import library, node

PACKAGES = ("mpicoll", "mpi4py", "numpy", "numba")
OURS = ("MPICOLL_ENGINE", "MPICOLL_CHECK", "MPICOLL_TIMEOUT", "MPICOLL_PROGRESS", "MPICOLL_TUNING",
        "MPICOLL_LOG")
SETTINGS = re.compile(rf"(?:MPICH|MPIR_CVAR|OMPI_MCA|PRTE_MCA|PMIX_MCA|I_MPI|FI|UCX)_\w+|{'|'.join(OURS)}")
# What a launcher sets anew for every run, and what names hosts.
OF_THE_LAUNCHER = re.compile(
    r"MPICH_INTERFACE|I_MPI_(?:ROOT|MPIRUN|INFO|HYDRA|PIN_)|OMPI_MCA_(?:PREFIXES|initial_wdir|num_procs|cpu_type)|.*host",
    re.IGNORECASE,
)
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
KINDS = {"Data": "d", "Instruction": "i"}
LIBRARY = "mpicoll"
COMMIT = "COMMIT"  # a file in a copy of a checkout, which says of which commit it is
ROOT = Path(__file__).resolve().parents[2]


def hosts_of(comm: Any, mpi: Any) -> list[int]:
    """Return every rank's host, numbered in the order of their first ranks. Collective."""
    return numbered(comm.allgather(node(mpi)))


def numbered(names: Sequence[str]) -> list[int]:
    """Return names as numbers.

    >>> numbered(["b", "a", "b"])
    [0, 1, 0]
    """
    known = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return [known[name] for name in names]


def placement(host_of: Sequence[int]) -> str:
    """Return how ranks were dealt to hosts.

    >>> [placement(hosts) for hosts in ([0, 0], [0, 0, 1, 1], [0, 1], [0, 1, 0, 1], [0, 1, 1])]
    ['one host', 'block', 'block', 'cyclic', 'block']
    """
    hosts = max(host_of) + 1
    if hosts == 1:
        return "one host"
    if list(host_of) == sorted(host_of):
        return "block"
    return "cyclic" if list(host_of) == [rank % hosts for rank in range(len(host_of))] else "irregular"


def describe(comm: Any, mpi: Any, host_of: Sequence[int], rate: float | None = None) -> dict[str, Any]:
    """Return the environment of a run. Collective, since every rank sends the cores that it may use."""
    hosts = range(max(host_of) + 1)
    return {
        "command": command(sys.argv, comm.size),
        "time": now(),
        "mpi": library(mpi),
        "mpi_standard": ".".join(map(str, mpi.Get_version())),
        "mpi_settings": mpi_settings(os.environ),
        "ranks": comm.size,
        "hosts": len(hosts),
        "ranks_per_host": [list(host_of).count(host) for host in hosts],
        "host_of": list(host_of),
        "placement": placement(host_of),
        "rate": rate,
        "binding": comm.allgather(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None),
        "cores": os.cpu_count(),
        "caches": caches(),
        "memory": memory(),
        "cpu": cpu_model(),
        "system": f"{platform.system()} {platform.machine()}",
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        **{name: installed(name) for name in PACKAGES},
        "commit": commit(),
    }


def command(arguments: Sequence[str], ranks: int) -> str:
    """Return the command line of a run, a path in it as the file's name alone.

    >>> command(["/opt/bin/mpicoll", "bench", "allreduce", "--json", "/tmp/a.jsonl"], 4)
    'mpiexec -n 4 mpicoll bench allreduce --json a.jsonl'
    >>> command(["/a/mpicoll/mpicoll/benchmarks/train/__main__.py", "--time"], 2)
    'mpiexec -n 2 python -m mpicoll.benchmarks.train --time'
    """
    program, *words = arguments
    if program.endswith(".py"):  # python -m
        place = Path(program).with_suffix("").parts
        ours = [at for at, part in enumerate(place) if part == LIBRARY]
        program = f"python -m {'.'.join(place[ours[-1] if ours else -1 :]).removesuffix('.__main__')}"
    words = [shortened(word) for word in words]
    return f"mpiexec -n {ranks} {shlex.join([*Path(program).name.split(), *words])}"


def shortened(word: str) -> str:
    """Return a word of a command line, of a path only its last part.

    >>> [shortened(word) for word in ("--json=/tmp/a.jsonl", "../b/c.jsonl", "100Gbit/s")]
    ['--json=a.jsonl', 'c.jsonl', '100Gbit/s']
    """
    option, equals, value = word.rpartition("=")
    return option + equals + (Path(value).name if _is_path(value) else value)


def mpi_settings(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that set MPI and its transports; a path among them is not told.

    >>> mpi_settings({"UCX_TLS": "tcp,self", "HOME": "/root", "I_MPI_PMI_LIBRARY": "/a/b.so", "I_MPI_HYDRA_UUID": "7"})
    {'I_MPI_PMI_LIBRARY': '(a path)', 'UCX_TLS': 'tcp,self'}
    """
    wanted = sorted(name for name in variables if SETTINGS.fullmatch(name) and not OF_THE_LAUNCHER.match(name))
    return {name: "(a path)" if _is_path(variables[name]) else variables[name] for name in wanted}


def _is_path(word: str) -> bool:
    return word.startswith(("/", "./", "../", "~"))


def caches(directory: Path = CACHES) -> dict[str, int]:
    """Return the bytes of the first core's caches, by level: L1d, L2, L3."""
    sizes = {}
    for index in sorted(directory.glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
            sizes[f"L{level}{KINDS.get(kind, '')}"] = int(size.removesuffix("K")) << 10
        except (OSError, ValueError):
            continue
    return sizes


def memory() -> int | None:
    """Return the bytes of memory."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the processor's name, if the system has it."""
    try:
        match = re.search(r"^(?:model name|cpu)\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.processor() or None


def now() -> str:
    """Return the time, in UTC, as files of results have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def commit(root: Path = ROOT) -> str | None:
    """Return the commit of a checkout, or of a copy, read from its files.

    A rank that has started MPI had better not fork.
    """
    git = root / ".git"
    try:
        if (root / COMMIT).is_file():
            return (root / COMMIT).read_text().strip()
        if not (root / "mpicoll").is_dir():
            return None
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (git / name).exists():
            return (git / name).read_text().strip()
        packed = re.search(rf"^(\w+) {re.escape(name)}$", (git / "packed-refs").read_text(), re.MULTILINE)
        return packed[1] if packed else None
    except OSError:
        return None


def headline(environment: dict[str, Any]) -> str:
    """Return one line for people."""
    ranks, hosts, rate = environment["ranks"], environment["hosts"], environment["rate"]
    cores, caches = environment["cores"], environment["caches"]
    words = [
        environment["mpi"],
        f"{ranks} rank{'s' * (ranks > 1)} on {hosts} host{'s' * (hosts > 1)}"
        + f", {environment['placement']} placement" * (1 < hosts < ranks)
        + (f", {rate / 1e6:g} Mbit/s a host" if rate else ""),
        f"Python {environment['python']}",
        f"{environment['cpu'] or 'unknown processor'}, {cores} core{'s' * (cores != 1)}"
        + "".join(f", {name} {format_size(size)}" for name, size in caches.items() if name in ("L2", "L3")),
    ]
    return "; ".join(words)
