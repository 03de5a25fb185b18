"""Starts MPI programs with the mpiexec of an environment.

This is the one place that knows what each MPI's launcher needs, on this machine and across hosts. An environment is
named by its Python; without one it is that of the Python that runs.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO

KILL_AFTER = 10.0  # seconds from SIGTERM or SIGINT to SIGKILL
GRACE, POLL = 5.0, 0.05  # seconds for what ends just after its launcher, and between two looks
LABELS = "MPICOLL_LAUNCH"  # names the launches, one within the other, that a process belongs to
PLACEMENTS = ("block", "cyclic")
RATE_VARIABLE = "MPICOLL_LINK_RATE"  # tells programs on shaped hosts the links' bits per second

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


class LaunchError(ValueError):
    """A launch that is impossible here; the message is one line for the user."""


@dataclass(frozen=True)
class Across:
    """Hosts to start ranks on.

    `agent` is a remote shell, AGENT HOST COMMAND…; `interface` is this machine's towards the hosts, `subnet` theirs.
    """

    hosts: tuple[str, ...]
    ranks_per_host: int
    placement: str
    agent: Path
    interface: str
    subnet: str

    @property
    def block(self) -> bool:
        return self.placement == "block"


def _hydra(across: Across) -> list[str]:
    """Return the words with which both relatives of Hydra go round the hosts, so many ranks at a time."""
    together = across.ranks_per_host if across.block else 1
    agent = ["-launcher", "rsh", "-launcher-exec", str(across.agent), "-iface", across.interface]
    return [*agent, "-hosts", ",".join(across.hosts), "-ppn", str(together)]


def _prte(across: Across) -> list[str]:
    hosts = ",".join(f"{host}:{across.ranks_per_host}" for host in across.hosts)
    agent = ["--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", str(across.agent)]
    by = "slot" if across.block else "node"
    order = ["--map-by", by, "--rank-by", by, "--bind-to", "none"]
    network = ["--mca", "pml", "ob1", "--mca", "btl", "tcp,sm,self", "--mca", "btl_tcp_if_include", across.subnet]
    return [*agent, "--host", hosts, *order, *network]


# Across hosts: the launcher's arguments, and the network that MPI is to use between hosts. Shared memory stays on
# within a host. Launchers do not bind ranks, since each host would begin with the same core. Waiting ranks yield,
# since the cores are few.
ARGUMENTS_ACROSS: dict[str, Callable[[Across], list[str]]] = {"mpich": _hydra, "openmpi": _prte, "intel": _hydra}
ENVIRONMENT_ACROSS = {
    "mpich": {"UCX_TLS": "tcp,self", "FI_PROVIDER": "tcp"},  # whichever of UCX and libfabric it was built with
    "openmpi": {},
    "intel": {"FI_PROVIDER": "tcp", "I_MPI_FABRICS": "shm:ofi", "I_MPI_PIN": "0", "I_MPI_WAIT_MODE": "1"},
}


def directory(python: Path | None = None) -> Path:
    """Return where an environment has its programs. Its Python is a link, which is not to be followed."""
    return (python or Path(sys.executable)).absolute().parent


def executable(name: str, python: Path | None = None) -> str:
    """`name` from the environment of a Python, else from PATH. Raises LaunchError."""
    beside = directory(python) / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        advice = "; install one MPI, for instance `pip install mpich`" if name == "mpiexec" else ""
        raise LaunchError(f"{name}: neither in {directory(python)} nor on PATH{advice}")
    return path


def program(name: str, python: Path | None = None) -> str:
    """Return the program a command begins with: a path, or a name as `executable` finds it. Raises LaunchError."""
    if os.sep not in name:
        return executable(name, python)
    if shutil.which(name) is None:
        raise LaunchError(f"{name}: {'not executable' if Path(name).exists() else 'no such file'}")
    return name


@lru_cache
def flavour(python: Path | None = None) -> str:
    """Return which MPI the launcher belongs to: "mpich", "openmpi" or "intel". Raises LaunchError."""
    command = executable("mpiexec", python)
    done = subprocess.run([command, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=60, env=os.environ | ENVIRONMENT["openmpi"])
    for name, signature in SIGNATURES.items():
        if signature in done.stdout + done.stderr:
            return name
    raise LaunchError(f"{command} --version names no MPI known here ({', '.join(SIGNATURES)}): "
                      f"{(done.stdout + done.stderr)[:200]!r}")


def command(ranks: int, arguments: Sequence[str], python: Path | None = None,
            across: Across | None = None) -> list[str]:
    """Return the command line that starts `arguments` on so many ranks. Raises LaunchError."""
    name, *rest = arguments
    started = [program(name, python), *rest]
    kind = flavour(python)
    options = ARGUMENTS_ACROSS[kind](across) if across else ARGUMENTS[kind]
    return [executable("mpiexec", python), *options, "-n", str(ranks), *started]


def environment(extra: Mapping[str, str] | None = None, python: Path | None = None,
                across: bool = False) -> dict[str, str]:
    """Return the environment to start it in.

    What the caller's has already stands, but for the network between hosts.
    """
    path = f"{directory(python)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    kind = flavour(python)
    network = ENVIRONMENT_ACROSS[kind] if across else {}
    return ONE_THREAD | ENVIRONMENT[kind] | dict(os.environ) | network | {"PATH": path} | dict(extra or {})


def run_group(command: Sequence[str], limit: float | None, env: Mapping[str, str], output: IO[bytes] | None = None,
              cwd: Path | None = None, left: list[str] | None = None) -> int | None:
    """Return the exit status of a command, or None if it and all it started had to be killed after `limit` seconds.

    Its output goes to `output` or, without one, where this program's goes; it reads nothing. However this ends, no
    process that the command started survives, nor does one of a launch within it. `left` receives the processes that
    still ran a while after the command had ended by itself. On an exception, such as that of Ctrl-C, the command
    first gets a SIGINT, so that it can clean up.
    """
    label = uuid.uuid4().hex
    process = subprocess.Popen(command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output,
                               stderr=None if output is None else subprocess.STDOUT, start_new_session=True,
                               env={**env, **labels(label, env)})
    try:
        status = process.wait(limit)
        if left is not None:
            _until_gone(label)
            left += map(_words, labelled(label))
        return status
    except subprocess.TimeoutExpired:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_AFTER)
        return None
    except BaseException:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_AFTER)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        kill_labelled(label)


def labels(label: str, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable by which a launch, and one that it is part of, finds what it started."""
    return {LABELS: ":".join(filter(None, (env.get(LABELS), label)))}


def kill_labelled(label: str) -> None:
    """End what a launch left behind: a launcher puts its ranks into process groups of their own."""
    deadline = time.monotonic() + KILL_AFTER
    while (pids := labelled(label)) and time.monotonic() < deadline:  # one may start another meanwhile
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(POLL)


def labelled(label: str) -> list[int]:
    """Return the processes that a launch started, directly or by others, and that still run."""
    pids = []
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (directory / "environ").read_bytes().split(b"\0")
            if any(word.startswith(f"{LABELS}=".encode()) and label.encode() in word for word in words):
                pids.append(int(directory.name))
    return pids


def _until_gone(label: str) -> None:
    """Wait for processes that are about to end: launchers do not wait for all of theirs."""
    deadline = time.monotonic() + GRACE
    while labelled(label) and time.monotonic() < deadline:
        time.sleep(POLL)


def _words(pid: int) -> str:
    """Return a process for people."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        command = "ended meanwhile"
    return f"process {pid} ({command[:80]})"
