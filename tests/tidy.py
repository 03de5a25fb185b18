"""Fail a launch of tests that leaves anything behind.

A launch has a directory for temporary files of its own, removed when it is over, however it ends. What its tests left
there and in shared memory is named, and so are processes that still run (launcher.run_group, which ends them).
ALLOWED is what others leave in spite of all; it is removed too.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path

SHARED = Path("/dev/shm")
ALLOWED = {
    "pytest-of-*": "pytest keeps the directories of its last three runs",
    "mpicoll-kernels-*.lock": "filelock leaves the file of a lock",
    "hydra_hwloc_xmlfile_*": "MPICH's launcher, when it is killed",
    "mpich_shm_*": "MPICH's ranks, when they are killed",
    "Intel_MPI_*": "Intel MPI's ranks, when they are killed",
    "prte.*": "Open MPI's launcher, when it is killed",
    "ompi.*": "Open MPI's ranks, when they are killed",
    "sm_segment.*": "Open MPI's ranks, when they are killed",
    "ucx_shm_*": "UCX in any MPI's ranks, when they are killed",
}


class Place:
    """The directory of a launch, and what was in shared memory before."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.temporary = directory / "t"  # a short name: a socket's path has 107 characters at most
        self.temporary.mkdir()
        self._shared = _shared()

    def left(self) -> list[str]:
        """Return what is not allowed; remove what is left in shared memory, allowed or not."""
        paths = [str(path) for path in _unexpected(self.temporary.iterdir())]
        unused = [path for path in _shared() - self._shared if not _used(path)]
        paths += [str(path) for path in _unexpected(unused)]
        for path in unused:
            with contextlib.suppress(OSError):
                path.unlink()
        return paths


@contextlib.contextmanager
def place() -> Iterator[Place]:
    """Yield the directory of a launch, and remove it with its contents at the end."""
    with tempfile.TemporaryDirectory(prefix="mt-", ignore_cleanup_errors=True) as directory:
        current = Place(Path(directory))
        try:
            yield current
        finally:
            current.left()


def _unexpected(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if not any(fnmatch(path.name, pattern) for pattern in ALLOWED))


def _shared() -> set[Path]:
    """Return this user's segments of shared memory."""
    paths = set()
    with contextlib.suppress(OSError):
        for path in SHARED.iterdir():
            with contextlib.suppress(OSError):
                if path.is_file() and path.stat().st_uid == os.getuid():
                    paths.add(path)
    return paths


def _used(segment: Path) -> bool:
    """Tell whether a process has it mapped or open: other programs run here too."""
    name = str(segment).encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if name in (process / "maps").read_bytes():
                return True
            if any(os.readlink(file) == str(segment) for file in (process / "fd").iterdir()):
                return True
    return False
