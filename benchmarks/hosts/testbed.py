"""Hosts that MPI programs can be launched on."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from .. import launch as launching
from ..launch import PLACEMENTS, RATE_VARIABLE, Across, LaunchError
from . import sandbox
from .network import SUBNET, SWITCH, Network
from .probe import check_reach
from .rates import check_rate

# What launchers take for a remote shell. A host's directory of temporary files is its own memory: launchers keep
# sockets and segments there, and it goes with the host.
AGENT = """#!/bin/sh
host=$1; shift
read pid < "{directory}/$host" || {{ echo "no host is called $host" >&2; exit 255; }}
exec nsenter --target "$pid" --net --uts --ipc --mount -- \\
  env TMPDIR=/dev/shm sh -c 'cd "$0" && exec sh -c "$1"' "$PWD" "$*"
"""


@dataclass(frozen=True)
class Done:
    """A launch that is over.

    status: the launcher's exit status, less than 0 if a signal ended it (as in subprocess), None if time was up;
    output: all that was printed, "" unless captured.
    """

    status: int | None
    output: str
    timed_out: bool


class Hosts:
    """So many hosts, each on a link of so many bits per second in each direction, while entered.

    Made inside the sandbox, after `enter`. Raises LaunchError where such hosts cannot be.
    """

    def __init__(self, count: int, rate_bits_per_second: float) -> None:
        self.network = Network(count, check_rate(rate_bits_per_second))
        self._stack = ExitStack()
        self._agent: Path | None = None

    def __enter__(self) -> Hosts:
        if not sandbox.entered():
            raise LaunchError("hosts are made inside the sandbox only: call hosts.enter() first")
        with ExitStack() as stack:
            stack.enter_context(self.network)
            check_reach(self.network)
            self._agent = make_agent(self.network)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._agent = None
        self._stack.close()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the hosts' names, as MPI_Get_processor_name returns them."""
        return self.network.names

    @property
    def rate(self) -> int:
        """Return the bits per second of every host's link, in each direction."""
        return self.network.rate

    def launch(
        self,
        arguments: Sequence[str],
        ranks_per_host: int = 1,
        ranks: int | None = None,
        placement: str = "block",
        python: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        capture: bool = True,
    ) -> Done:
        """Run an MPI program on the hosts; back when it is over, and nothing of it is left.

        `ranks` defaults to all slots. `placement` "block" fills one host after the other, "cyclic" deals ranks out.
        `python` names the environment whose mpiexec and programs are meant. `env` is added to this process's.
        `timeout` is in seconds. Without `capture`, output goes where this process's goes. Programs find the links'
        bits per second in MPICOLL_LINK_RATE. Raises LaunchError if the launch cannot be made as requested.
        """
        ranks = self._checked(arguments, ranks_per_host, ranks, placement)
        if self._agent is None:
            raise LaunchError("these hosts are not up: launch inside `with Hosts(…) as net`")
        across = Across(self.names, ranks_per_host, placement, self._agent, SWITCH, str(SUBNET))
        line = launching.command(ranks, [str(word) for word in arguments], python, across)
        extra = {"TMPDIR": "/dev/shm", RATE_VARIABLE: str(self.rate), **(env or {})}
        environment = launching.environment(extra, python, across=True)
        with tempfile.TemporaryFile() as file:
            status = launching.run_group(line, timeout, environment, file if capture else None)
            file.seek(0)
            return Done(status, file.read().decode(errors="replace"), status is None)

    def _checked(self, arguments: Sequence[str], ranks_per_host: int, ranks: int | None, placement: str) -> int:
        """Return how many ranks. Raises LaunchError."""
        if not arguments:
            raise LaunchError("there is nothing to run: give a command")
        if placement not in PLACEMENTS:
            raise LaunchError(f"no placement is called {placement!r}; there is {' and '.join(PLACEMENTS)}")
        if ranks_per_host < 1:
            raise LaunchError(f"{ranks_per_host} ranks per host cannot be; give at least 1")
        slots = len(self.names) * ranks_per_host
        ranks = slots if ranks is None else ranks
        if not 1 <= ranks <= slots:
            raise LaunchError(f"{ranks} ranks do not fit on {len(self.names)} hosts with {ranks_per_host} each; "
                              f"give from 1 to {slots}, or more ranks per host")
        return ranks


def make_agent(network: Network) -> Path:
    """Return the remote shell for the hosts of a network."""
    for name in network.names:
        (network.directory / name).write_text(f"{network.pid(name)}\n")
    agent = network.directory / "agent"
    agent.write_text(AGENT.format(directory=network.directory))
    agent.chmod(0o700)
    return agent
