"""The few calls of the Linux kernel that Python 3.10 does not offer. Each raises OSError."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWPID, CLONE_NEWNET = 0x2000_0000, 0x4000_0000
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x4_0000
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(status: int, what: str) -> None:
    if status:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Leave the namespaces of these kinds for new ones; with CLONE_NEWPID, children do."""
    _checked(_libc.unshare(flags), "unshare")


def enter_network(pid: int) -> None:
    """Take this thread, and the sockets it makes from now on, into the network of a process."""
    with Path(f"/proc/{pid}/ns/net").open() as file:
        _checked(_libc.setns(file.fileno(), CLONE_NEWNET), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """Mount a filesystem as the system call does."""
    _checked(_libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None),
             f"mount {source} on {target}")


def unmount(target: str) -> None:
    """umount(2)."""
    _checked(_libc.umount(target.encode()), f"umount {target}")


def die_with_parent(signum: int) -> None:
    """Ask for a signal when the thread that forked this process ends."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signum), 0, 0, 0), "prctl")
