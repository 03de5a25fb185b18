"""A lock that lets one process compile while others of the same user, host and cache directory wait.

A waiting process needs the result and not the lock, so it continues as soon as the result is there: a process that
compiles one function after another frees the lock only briefly between two. A file beside the lock names the holder.
Others stop waiting once the holder has ended, or has compiled one and the same function for LIMIT seconds. They then
compile the function a second time, which wastes time and does no harm.

The lock file is in the directory for temporary files, since locks on network file systems may be broken. Processes of
other hosts that share the cache do not see it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from .digest import digest

POLL = 0.02  # seconds between two looks
GONE = 1.0  # seconds for which the holder that is named must have ended: the next one may not have written its name yet
TELL = 30.0  # seconds of waiting after which a warning names the holder
LIMIT = 600.0  # seconds to wait for one holder

_log = logging.getLogger(__name__)
Found = TypeVar("Found")


class Holder(NamedTuple):
    """A process that holds a lock, and what it compiles."""

    pid: int
    host: str
    what: str

    @property
    def ended(self) -> bool:
        """Return whether the process is known to have ended; False for one on another host."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            pass
        return False

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, which compiles {self.what}"


class Turn:
    """The lock, held by this thread until it is released."""

    def __init__(self, lock: Any, what: str) -> None:
        self._lock, self._file = lock, _beside(lock)
        _name(self._file, Holder(os.getpid(), socket.gethostname(), what))

    def release(self) -> None:
        """Let another process compile."""
        if self._lock.lock_counter == 1:  # a thread may have taken it again
            with contextlib.suppress(OSError):
                self._file.unlink()
        self._lock.release()


def turn_or_result(cache_path: str, what: str, look: Callable[[], Found | None]) -> tuple[Turn | None, Found | None]:
    """Wait for this process's turn to compile, or until `look` finds another process's result.

    Return (None, None) if there can be no lock, or its holder has ended or takes too long; a warning says which.
    """
    from filelock import Timeout  # here, since a warm cache never needs it

    lock = _lock(cache_path)
    began = since = time.monotonic()
    holder, has_warned = None, False
    while True:
        try:
            lock.acquire(timeout=0)
            return Turn(lock, what), None
        except Timeout:
            pass
        except (OSError, NotImplementedError) as error:
            _log.warning("compiling %s without a lock: %s", what, error)
            return None, None
        if (result := look()) is not None:
            return None, result
        now = time.monotonic()
        if (current := _holder(_beside(lock))) != holder:
            holder, since = current, now
        if why := _reason(holder, now - since):
            _log.warning("compiling %s, and not waiting for %s: it %s", what, _words(holder, lock), why)
            return None, None
        if not has_warned and now - began > TELL:
            has_warned = True
            _log.warning("waiting for %s, for %.0f s so far", _words(holder, lock), now - began)
        time.sleep(POLL)


def _reason(holder: Holder | None, seconds: float) -> str:
    """Return why to stop waiting for a holder; empty while there is no reason."""
    if holder is not None and seconds > GONE and holder.ended:
        return "has ended"
    return f"has held the lock for {seconds:.0f} s" if seconds > LIMIT else ""


def _words(holder: Holder | None, lock: Any) -> str:
    return f"{holder or 'an unknown process'} ({lock.lock_file})"


def _name(file: Path, holder: Holder) -> None:
    """Write who holds the lock; where that fails, others wait for an unknown process."""
    with contextlib.suppress(OSError):
        written = file.with_suffix(f".{holder.pid}")
        written.write_text(json.dumps(holder))
        written.replace(file)


def _holder(file: Path) -> Holder | None:
    """Return the holder that the file names; None if there is no readable file."""
    try:
        pid, host, what = json.loads(file.read_text())
        return Holder(int(pid), str(host), str(what))
    except (OSError, ValueError, TypeError):
        return None


def _beside(lock: Any) -> Path:
    return Path(lock.lock_file).with_suffix(".holder")


@cache
def _lock(cache_path: str) -> Any:
    """Return one lock object per process and directory, so that a thread which holds it may take it again."""
    import tempfile  # here, for it loads much

    from filelock import FileLock

    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    place = digest(os.path.realpath(cache_path).encode(), 8).hex()
    return FileLock(Path(tempfile.gettempdir()) / f"mpicoll-kernels-{user}-{place}.lock")
