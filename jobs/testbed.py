"""A Slurm on this machine alone: munged, slurmctld and a slurmd for each of several nodes that are all this one.

    python -m mpicoll.jobs.testbed --nodes 4 --cpus 2 sh -c 'sinfo && srun --nodes=4 hostname'
    python -m mpicoll.jobs.testbed                  # a shell in which sbatch, srun and squeue work

starts the daemons in a directory of its own, runs the command with SLURM_CONF set, and takes everything down with
all that its jobs started. It needs Slurm's and munge's programs (Debian: slurm-wlm and munge), no root and no set-up:
it is for trying job scripts, and for tests. The nodes share the machine's cores, whatever Slurm believes it has.

From Python:

    with testbed.Slurm(nodes=4) as slurm:
        subprocess.run(["srun", "--nodes=4", "hostname"], env=slurm.environment)
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from mpicoll.benchmarks.launch import kill_labelled, labels
from mpicoll.cli.group import OneLineCommand, asking

NAME = "mpicoll.jobs.testbed"
# And what Debian's packages are called that have them.
DAEMONS = {"munged": "munge", "slurmctld": "slurmctld", "slurmd": "slurmd", "sinfo": "slurm-client"}
START = 60.0  # seconds that the daemons may take
PARTITION = "debug"
CONFIGURATION = """\
ClusterName=testbed
SlurmctldHost={host}({address})
SlurmctldPort={control}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
JobRequeue=1
KillWait=5
MinJobAge=86400
InactiveLimit=0
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr={address} Port=[{first}-{last}] CPUs={cpus} State=UNKNOWN
PartitionName={partition} Nodes=ALL Default=YES MaxTime=12:00:00 State=UP
"""


class TestbedError(ValueError):
    """The testbed does not start; the message is one line for the user."""

    __test__ = False  # for pytest, which collects by name


class Slurm:
    """The daemons, for as long as a with statement lasts. `environment` is what commands need to reach them.

    Raises TestbedError where a program is missing or the nodes do not come up.
    """

    def __init__(self, nodes: int = 4, cpus: int = 2) -> None:
        if missing := [name for name in DAEMONS if program(name) is None]:
            packages = " ".join(DAEMONS[name] for name in missing)
            raise TestbedError(f"no Slurm to start: {', '.join(missing)} not found; on Debian: apt install {packages}")
        self.nodes, self.cpus = nodes, cpus
        self._label = uuid.uuid4().hex
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Slurm:
        with contextlib.ExitStack() as stack:
            self.directory = Path(stack.enter_context(_directory()))
            stack.callback(kill_labelled, self._label)
            stack.callback(self._end_steps)
            self.environment = {**os.environ, "PATH": _path(), "SLURM_CONF": str(self.directory / "slurm.conf"),
                                **labels(self._label)}
            self._write()
            self._munge(stack)
            stack.enter_context(self._daemon("slurmctld", "-D"))
            for node in range(1, self.nodes + 1):
                stack.enter_context(self._daemon("slurmd", "-D", "-N", f"n{node}"))
            self._wait(self._up, "the nodes did not come up")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, command: Sequence[str]) -> int:
        """Return the exit status of a command that may talk to this Slurm. Raises TestbedError where there is none."""
        try:
            return subprocess.run(command, env=self.environment).returncode
        except OSError as error:
            raise TestbedError(f"{command[0]}: {error.strerror}") from None

    def _write(self) -> None:
        first = _ports(self.nodes + 1)
        (self.directory / "state").mkdir()
        for node in range(1, self.nodes + 1):
            (self.directory / f"spool-n{node}").mkdir()
        (self.directory / "slurm.conf").write_text(CONFIGURATION.format(
            host=socket.gethostname().partition(".")[0], address="127.0.0.1", user=pwd.getpwuid(os.geteuid()).pw_name,
            control=first, first=first + 1, last=first + self.nodes, directory=self.directory, nodes=self.nodes,
            cpus=self.cpus, partition=PARTITION))
        key = self.directory / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))

    def _munge(self, stack: contextlib.ExitStack) -> None:
        files = {kind: self.directory / f"munge.{end}" for kind, end in (
            ("socket", "socket"), ("key-file", "key"), ("pid-file", "pid"), ("seed-file", "seed"))}
        stack.enter_context(self._daemon("munged", "--foreground", "--force",
                                         *(f"--{kind}={file}" for kind, file in files.items())))
        self._wait(files["socket"].exists, "munged did not come up")

    @contextlib.contextmanager
    def _daemon(self, name: str, *arguments: str) -> Iterator[None]:
        """Run until the context ends. What it prints goes to a file in the directory."""
        log = self.directory / f"{'-'.join([name, *(a for a in arguments if not a.startswith('-'))])}.out"
        with log.open("wb") as output:
            process = subprocess.Popen([str(program(name)), *arguments], env=self.environment, cwd=self.directory,
                                       stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                       start_new_session=True)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _end_steps(self) -> None:
        """End what slurmd left to watch over jobs: without slurmctld it tries for minutes to say how they went.

        It overwrites its environment, so that no label is found there, but has its node's log open.
        """
        logs = {str(self.directory / f"slurmd-n{node}.log") for node in range(1, self.nodes + 1)}
        for file in Path("/proc").glob("[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if str(file.readlink()) in logs:
                    os.kill(int(file.parts[2]), signal.SIGKILL)

    def _up(self) -> bool:
        done = subprocess.run(["sinfo", "--noheader", "--Node", "--format=%T"], env=self.environment,
                              capture_output=True, text=True)
        return done.stdout.split() == ["idle"] * self.nodes

    def _wait(self, ready: Callable[[], bool], otherwise: str) -> None:
        until = time.monotonic() + START
        while not ready():
            if time.monotonic() > until:
                raise TestbedError(f"{otherwise} within {START:g} s: {self._said()}")
            time.sleep(0.1)

    def _said(self) -> str:
        """Return the last line of every daemon's output and log that has any."""
        files = sorted([*self.directory.glob("*.out"), *self.directory.glob("*.log")])
        ends = {file.name: file.read_text(errors="replace").split("\n")[-2:] for file in files}
        return "; ".join(f"{name}: {end[0]}" for name, end in ends.items() if end[0]) or "the daemons said nothing"


def _path() -> str:
    """Return PATH with the directories of daemons, which often only root has there."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def program(name: str) -> str | None:
    """Return where a daemon is."""
    return shutil.which(name, path=_path())


@contextlib.contextmanager
def _directory() -> Iterator[str]:
    """Provide a short path, since sockets' have to be."""
    path = tempfile.mkdtemp(prefix="slurm-", dir="/tmp")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _ports(count: int) -> int:
    """Return the first of so many ports that follow each other and are free now. Raises TestbedError."""
    for first in range(20000 + os.getpid() % 9000, 32000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise TestbedError(f"no {count} free ports")


@click.command("testbed", cls=OneLineCommand, context_settings={
    "show_default": True, "help_option_names": ["-h", "--help"], "allow_interspersed_args": False})  # fmt: skip
@click.option("--nodes", default=4, type=click.IntRange(1, 64), help="How many nodes.")
@click.option("--cpus", default=2, type=click.IntRange(1), help="CPUs that each is to have.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def testbed(nodes: int, cpus: int, command: tuple[str, ...]) -> None:
    """Run COMMAND, or a shell, beside a Slurm of several nodes that are all this machine.

    The partition is called debug. The exit status is COMMAND's. However it ends, no daemon and no job is left.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):  # which would otherwise leave the daemons
        signal.signal(number, lambda which, _: sys.exit(128 + which))
    with asking(), Slurm(nodes, cpus) as slurm:
        status = slurm.run(command or [os.environ.get("SHELL", "/bin/sh")])
    raise click.exceptions.Exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    testbed.main(prog_name=f"python -m {NAME}")
