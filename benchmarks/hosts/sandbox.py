"""A sandbox that the kernel takes down: whatever is made inside is gone when its first process is.

Three processes hold it. The one that called `enter` stays outside. The first process inside is its child; the worker,
a child of that, continues where `enter` was called. Both parents pass signals on and end with their child's status. If
any of the three dies, of whatever cause, the first process does, and with it every process, namespace, link and mount
inside.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import threading
from typing import NoReturn

from ..launch import LaunchError
from . import linux

TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
BLOCKED = (*PASSED_ON, signal.SIGCHLD)

_inside = False


def enter() -> None:
    """Go on inside the sandbox, in a process of its own; at once if this is inside already.

    Standard output and standard error stay; there is no controlling terminal. Call it first: before threads, before
    MPI. Raises LaunchError where there cannot be a sandbox: no root, a tool or a feature of the kernel missing.
    """
    global _inside
    if _inside:
        return
    check_machine()
    if threading.active_count() > 1:
        raise LaunchError("hosts.enter() must be called before any thread is started: call it first")
    _flush()
    try:
        linux.unshare(linux.CLONE_NEWPID)
        lifeline = os.pipe()
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        first = os.fork()
        if first:
            _tend(first)
        _be_first(*lifeline)
    except OSError as error:
        raise LaunchError(f"this machine forbids network namespaces: {error.strerror}; in a container, "
                          "start it privileged") from None
    _inside = True


def entered() -> bool:
    """Return whether this is inside."""
    return _inside


def check_machine() -> None:
    """Raise LaunchError unless namespaces and links can be made here."""
    if not sys.platform.startswith("linux"):
        raise LaunchError(f"several hosts on one machine need Linux; this is {sys.platform}")
    if os.geteuid() != 0:
        raise LaunchError("several hosts on one machine need root, to make network namespaces; use sudo")
    missing = [name for name in TOOLS if shutil.which(name) is None]
    if missing:
        packages = sorted({TOOLS[name] for name in missing})
        raise LaunchError(f"{', '.join(missing)} missing; on Debian, apt-get install {' '.join(packages)}")


def _flush() -> None:
    """Flush what is buffered: it would be written twice."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _be_first(lifeline: int, outside: int) -> None:
    """Become the first process of new namespaces, and end as the worker does; return in the worker."""
    os.close(outside)
    linux.die_with_parent(signal.SIGKILL)
    if select.select([lifeline], [], [], 0)[0]:  # the parent has died before that was asked for
        os._exit(1)
    os.close(lifeline)
    os.setsid()  # a terminal's Ctrl-C comes from outside only, once
    linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    for kind, place in (("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/dev/shm")):
        linux.mount(kind, place, kind)
    worker = os.fork()
    if worker:
        _tend(worker)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)


def _tend(child: int) -> NoReturn:
    """Forward signals to a child, the second and later ones as SIGKILL; reap every child; exit as the child does."""
    heard = {signum for signum in PASSED_ON if signal.getsignal(signum) is not signal.SIG_IGN}
    last = False
    while True:
        signum = signal.sigwait({*heard, signal.SIGCHLD})  # all blocked, so that none is missed
        if signum in heard:
            os.kill(child, signal.SIGKILL if last else signum)
            last = True
        ended = -1
        while ended:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if ended == child:
                os._exit(_as_in_a_shell(status))


def _as_in_a_shell(status: int) -> int:
    """Return the exit status for that of wait(2): 128 and the signal's number for a process that a signal ended."""
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
