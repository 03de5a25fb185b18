"""Hosts as sets of namespaces, on one switch, each behind a link that lets through a rate in each direction.

A host is a process that sleeps in a network, a hostname, System V IPC and mounts of its own. A process that enters
its namespaces runs on that host. Each host has its own /dev/shm, so no two hosts can share memory.
"""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from ..launch import LaunchError
from . import linux
from .rates import format_rate

SWITCH = "switch0"
SUBNET = ipaddress.IPv4Network("10.77.0.0/16")
MOST = 500  # hosts; a Linux bridge has 1,023 ports
# 64 KiB pass at once after a pause; a queue of 100 ms stands for a switch's buffer.
SHAPE = "tbf rate {rate}bit burst 64k latency 100ms"

# Arguments: name, address, directory. Two lines on standard output say how far it is; between them comes the link.
# The directory is in /dev/shm, and is still there when a /dev/shm of the host's own has taken the place: Open MPI
# wants to find its agent on hosts too. IPv6 would only spend the links' credit on finding neighbours.
HOLDER = """
set -e
echo "$1" > /proc/sys/kernel/hostname
mount -t sysfs sysfs /sys
mount -t tmpfs tmpfs "$3/shm"
mkdir "$3/shm/${3##*/}"
mount --bind "$3" "$3/shm/${3##*/}"
mount --move "$3/shm" /dev/shm
echo made; read linked
ip link set lo up
ip link set eth0 addrgenmode none
ip address add "$2" dev eth0
ip link set eth0 up
tc qdisc add dev eth0 root $linked
echo ready; exec sleep infinity
"""


class Network:
    """So many hosts on a switch, while entered. Raises LaunchError where the kernel or a tool refuses.

    names: of the hosts; rate: of every link, bits per second in each direction; directory: one that all hosts see.
    """

    def __init__(self, count: int, rate: int) -> None:
        if not 1 <= count <= MOST:
            raise LaunchError(f"{count} hosts cannot be made; give a number from 1 to {MOST}")
        self.rate, self.directory = rate, Path()
        self.names = tuple(f"host{i}" for i in range(count))
        addresses = SUBNET.hosts()
        self.here = next(addresses)
        self.addresses = dict(zip(self.names, addresses))
        self._holders: dict[str, subprocess.Popen[str]] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Network:
        with ExitStack() as stack:
            self.directory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
            (self.directory / "shm").mkdir()
            bind_etc_hosts(self.etc_hosts(), self.directory / "hosts", stack)
            self._make(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._stack.close()

    def pid(self, name: str) -> int:
        """Return the process that holds the host of that name."""
        return self._holders[name].pid

    def etc_hosts(self) -> str:
        """Return the names of all hosts, as in /etc/hosts."""
        lines = [f"{address} {name}" for name, address in self.addresses.items()]
        return "\n".join(["127.0.0.1 localhost", *lines, ""])

    def _make(self, stack: ExitStack) -> None:
        # Whether a switch and links go with their last process at once is up to the kernel; a second network's names
        # are the same.
        stack.callback(self._remove_links)
        _told("ip", f"link set lo up\nlink add {SWITCH} address 02:00:00:00:00:01 type bridge mcast_snooping 0\n"
              f"link set {SWITCH} addrgenmode none\n"
              f"address add {self.here}/{SUBNET.prefixlen} dev {SWITCH}\nlink set {SWITCH} up")
        for name in self.names:
            self._hold(name, stack)
        for name in self.names:
            self._hear(name, "made")
        _told("ip", "\n".join(f"link add {link(name)} type veth peer name eth0 netns {self.pid(name)}\n"
                              f"link set {link(name)} addrgenmode none\n"
                              f"link set {link(name)} master {SWITCH} up" for name in self.names))
        shape = SHAPE.format(rate=self.rate)
        _told("tc", "\n".join(f"qdisc add dev {link(name)} root {shape}" for name in self.names))
        for name in self.names:
            _input(self._holders[name]).write(shape + "\n")
            _input(self._holders[name]).flush()
        for name in self.names:
            self._hear(name, "ready")
        check_shape(link(self.names[0]), self.rate)

    def _hold(self, name: str, stack: ExitStack) -> None:
        address = f"{self.addresses[name]}/{SUBNET.prefixlen}"
        line = ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-c", HOLDER, "sh", name, address,
                str(self.directory)]
        holder = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, start_new_session=True)
        self._holders[name] = stack.enter_context(holder)
        stack.callback(holder.kill)

    def _hear(self, name: str, word: str) -> None:
        holder = self._holders[name]
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline().strip() != word:
            raise LaunchError(refusal(f"{name} could not be made", holder.stderr.read()))

    def _remove_links(self) -> None:
        lines = "\n".join(f"link delete {name}" for name in (*map(link, self._holders), SWITCH))
        with suppress(LaunchError):  # some may be gone already: -force continues
            _told("ip", lines, "-force")


def link(name: str) -> str:
    """Return the switch's end of a host's link."""
    return f"to-{name}"


def check_shape(interface: str, rate: int) -> None:
    """Raise LaunchError unless the kernel has taken the rate as it was given."""
    shown = subprocess.run(["tc", "-j", "qdisc", "show", "dev", interface], capture_output=True, text=True, check=True)
    shapes: list[dict[str, Any]] = [qdisc for qdisc in json.loads(shown.stdout) if qdisc["kind"] == "tbf"]
    actual = 8 * shapes[0]["options"]["rate"] if shapes else 0
    if abs(actual - rate) > rate / 1000:
        raise LaunchError(f"the kernel made a link of {format_rate(actual)} instead of {format_rate(rate)}; "
                          "give another rate")


def refusal(what: str, output: str) -> str:
    """Return what a tool did not do, and in which words; one line."""
    words = " ".join(re.sub(r"Command failed -:\d+", "", output).split()) or "no reason given"
    if "qdisc kind is unknown" in words or (what == "tc refused" and "No such file or directory" in words):
        return f"this kernel has no token bucket filter, which limits a link's rate: modprobe sch_tbf ({words})"
    return f"{what}: {words}"


def _told(tool: str, lines: str, *options: str) -> None:
    """Have ip or tc do these lines. Raises LaunchError."""
    done = subprocess.run([tool, *options, "-batch", "-"], input=lines + "\n", capture_output=True, text=True)
    if done.returncode:
        raise LaunchError(refusal(f"{tool} refused", done.stderr))


def _input(holder: subprocess.Popen[str]) -> Any:
    assert holder.stdin is not None
    return holder.stdin


def bind_etc_hosts(text: str, file: Path, stack: ExitStack) -> None:
    """Have this text in /etc/hosts, here and on hosts made from now on, until the stack is closed."""
    file.write_text(text)
    with suppress(OSError):  # where there is no /etc/hosts, addresses do
        linux.mount(str(file), "/etc/hosts", flags=linux.MS_BIND)
        stack.callback(linux.unmount, "/etc/hosts")
