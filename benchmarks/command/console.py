"""The terminal that output ends on, and how wide it is.

mpiexec puts something between its ranks and the terminal: MPICH a pipe, Open MPI a terminal of its own, even
where its output goes to a file. So a rank asks whether the launcher that started it writes to a terminal.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from rich.console import Console

WIDTH = 180  # columns where the output is not a terminal
LAUNCHERS = ("mpiexec", "mpirun", "prterun", "orterun")


def console() -> Console:
    """Return a console on standard output that prints tables whole in a file or a pipe, and never reads markup."""
    columns = terminal_width()
    return Console(
        force_terminal=columns is not None,
        width=columns or WIDTH,
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def terminal_width(proc: Path = Path("/proc")) -> int | None:
    """Return the columns of the terminal that output ends on, directly or behind an mpiexec on this host; or None."""
    try:
        pid = os.getppid()
        while pid > 1:
            name, parent = re.findall(r"\((.*)\) \S (\d+)", (proc / str(pid) / "stat").read_text())[0]
            if name.startswith(LAUNCHERS):
                return columns_of(str((proc / str(pid) / "fd" / "1").readlink()))
            pid = int(parent)
        return os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else None
    except (OSError, ValueError, IndexError):
        return None


def columns_of(device: str) -> int | None:
    """Return the columns of a device if it is a terminal."""
    if not device.startswith(("/dev/pts/", "/dev/tty")):
        return None
    descriptor = os.open(device, os.O_RDONLY | os.O_NOCTTY)
    try:
        return os.get_terminal_size(descriptor).columns
    finally:
        os.close(descriptor)
