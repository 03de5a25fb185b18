"""Takes the place of the compiler process: delivers kernels that this checkout has compiled already, when told to.

    background.COMMAND = compiler.command(seconds=2.0)          # after so many seconds
    background.COMMAND = compiler.command(go=path, way=FAILING) # when the file is there, and then in this way

It reads the requests as `mpicoll warm --requests` does, and takes NUMBA_CACHE_DIR for the empty cache.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

DELIVERING, KILLED, FULL_DISK, FAILING = "delivering", "killed", "full disk", "failing"
PACKAGES = ("kernels", "plans", "engines", "progress", "fastpath")  # of mpicoll, that have compiled functions


def command(seconds: float = 0.0, go: Path | str = "", way: str = DELIVERING) -> tuple[str, ...]:
    """Return what background.COMMAND is set to."""
    return sys.executable, __file__, str(seconds), str(go), way


def main(seconds: str, go: str, way: str) -> int:
    time.sleep(float(seconds))
    while go and not Path(go).exists():
        time.sleep(0.01)
    if way == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    import mpi4py

    mpi4py.rc.initialize = False
    from mpicoll.kernels import background

    requests = background.read_requests()
    if way == FAILING:
        sys.stderr.writelines(f"{request}\tLoweringError: for this test\n" for request in requests)
    if way != DELIVERING:
        return 0
    cold = os.environ.pop("NUMBA_CACHE_DIR")
    failures = background.compile_all(requests)
    copy(cold)
    return failures


def copy(cold: str) -> None:
    """Copy all kernels that are kept beside their sources to another cache, each at once."""
    import mpicoll
    from mpicoll.kernels import cache

    for package in PACKAGES:
        source = str(Path(mpicoll.__path__[0], package, "__init__.py"))
        kept = cache.directory(source)
        os.environ["NUMBA_CACHE_DIR"] = cold
        to = cache.directory(source)
        del os.environ["NUMBA_CACHE_DIR"]
        assert kept is not None and to is not None
        for file in kept.glob("*.so"):
            shutil.copyfile(file, to / f".{file.name}")
            (to / f".{file.name}").replace(to / file.name)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
