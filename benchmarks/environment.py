"""What numbers were measured on: enough to compare them, nothing that names a machine, a user or a path."""

from __future__ import annotations

import platform
import re
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("mpicoll", "mpi4py", "numpy", "numba")


def describe(comm: Any, mpi: Any) -> dict[str, Any]:
    """The environment of a run; collective, since the hosts are counted."""
    hosts = comm.allgather(mpi.Get_processor_name())
    vendor, numbers = mpi.get_vendor()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "mpi": f"{vendor} {'.'.join(map(str, numbers))}",
        "mpi_standard": ".".join(map(str, mpi.Get_version())),
        "ranks": comm.size,
        "hosts": len(set(hosts)),
        "ranks_per_host_most": max(map(hosts.count, hosts)),
        "python": platform.python_version(),
        **{name: _version(name) for name in PACKAGES},
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "commit": commit(Path(__file__).resolve().parents[1]),
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The processor's name, where the system tells it."""
    try:
        found = re.search(r"^(?:model name|cpu)\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or None


def commit(root: Path) -> str | None:
    """The commit of a checkout, read from its files: a rank that has started MPI had better not fork."""
    git = root / ".git"
    if not (root / "mpicoll").is_dir():
        return None
    try:
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
    """One line for people."""
    ranks, hosts = environment["ranks"], environment["hosts"]
    return (
        f"{environment['mpi']}, {ranks} rank{'s' * (ranks > 1)} on {hosts} host{'s' * (hosts > 1)}, "
        f"Python {environment['python']}, {environment['cpu'] or 'unknown processor'}"
    )
