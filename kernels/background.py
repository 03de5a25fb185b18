"""Compile kernels in a separate process of low priority, once per machine, while NumPy's kernels serve.

A caller that can continue without a compiled kernel requests it within `instead_of(request)`. If no cache has the
kernel, `cache.native` registers it here and raises NotCompiled. `poll` starts the compiler process, unless one runs on
this host, and loads the kernels that it has written. `state.generation` counts these, so that callers know when to
request again.

The compiler process holds a file lock until it ends, however it ends, so that ranks can tell whether one is running. A
kernel that two processes in turn did not deliver is given up: a request for it then raises ImportError, and NumPy's
serves. With MPICOLL_COMPILE=wait, or after `wait`, every process compiles the kernels that it needs, then continues.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .digest import digest

if TYPE_CHECKING:
    import subprocess

COMMAND = (sys.executable, "-m", "mpicoll", "warm", "--requests")  # reads pickled requests from standard input
INTERVAL = 0.05  # seconds between two polls
ATTEMPTS = 2  # compiler processes that are started for one kernel

_log = logging.getLogger(__name__)
_request: ContextVar[Request | None] = ContextVar("request", default=None)
_polling = threading.Lock()
_processes: list[subprocess.Popen[bytes]] = []  # kept, since Popen complains of children that outlive it


class NotCompiled(Exception):
    """The kernel is in no cache yet; a process compiles it in the background."""


class Request(NamedTuple):
    """A call that compiles a kernel: the function `name` of a module, or `prepare` of an object of that name."""

    module: str
    name: str
    arguments: tuple[Any, ...] = ()

    def run(self) -> None:
        """Compile the kernel, or load it."""
        target = getattr(import_module(self.module), self.name)
        getattr(target, "prepare", target)(*self.arguments)

    def __str__(self) -> str:
        return f"{self.module}.{self.name}({', '.join(map(str, self.arguments))})"


class Pending:
    """A kernel that is being compiled: `load` returns its address once the cache has it."""

    def __init__(self, request: Request, load: Callable[[], int | None]) -> None:
        self.request, self.load, self.attempts = request, load, 0


class State:
    """The kernels that this process waits for, and how often some have arrived or were given up."""

    def __init__(self) -> None:
        self.pending: dict[str, Pending] = {}
        self.failed: dict[str, str] = {}
        self.generation = 0
        self.next_poll = 0.0


state = State()
_waits = False


def wait() -> None:
    """Make this process compile the kernels that it needs before it continues, as benchmarks do."""
    global _waits
    _waits = True
    state.pending.clear()


@contextmanager
def instead_of(request: Request) -> Iterator[None]:
    """Within the block, raise NotCompiled for a kernel that is in no cache, and have `request` compile it."""
    token = _request.set(None if _waits or os.environ.get("MPICOLL_COMPILE") == "wait" else request)
    try:
        yield
    finally:
        _request.reset(token)


def defer(label: str, directory: Path | None, load: Callable[[], int | None]) -> None:
    """Register a kernel and raise NotCompiled, if the caller can continue without it; else return.

    Raises ImportError for a kernel that was given up.
    """
    request = _request.get()
    if request is None or sys.modules.get("numba", True) is None or find_spec("numba") is None:
        return  # without numba, compiling raises the right error at once
    if directory is None:
        state.failed[label] = (
            "no directory for compiled kernels can be written; set NUMBA_CACHE_DIR to one that can, or "
            "MPICOLL_COMPILE=wait to compile in every process"
        )
    if label in state.failed:
        raise ImportError(state.failed[label])
    state.pending.setdefault(label, Pending(request, load))
    raise NotCompiled(f"{label} is being compiled in the background")


def poll() -> None:
    """Load kernels that have arrived; start a compiler process if some are missing and none is running."""
    if not state.pending or time.monotonic() < state.next_poll or not _polling.acquire(blocking=False):
        return
    try:
        _load()
        if state.pending and (lock := _lock()) is not None:
            try:
                _load()  # the process that has just ended may have written more
                _give_up()
                if state.pending:
                    _start(lock)
            finally:
                os.close(lock)
        state.next_poll = time.monotonic() + INTERVAL
    finally:
        _polling.release()


def _load() -> None:
    arrived = [label for label, pending in list(state.pending.items()) if pending.load() is not None]
    for label in arrived:
        del state.pending[label]
    state.generation += bool(arrived)


def _give_up() -> None:
    """Give up the kernels that the last compiler processes did not deliver."""
    reasons = _reasons()
    for label, pending in list(state.pending.items()):
        reason = reasons.get(str(pending.request)) if pending.attempts else None
        if reason is None and pending.attempts >= ATTEMPTS:
            reason = f"{ATTEMPTS} compiler processes ended without it (see {_path('log')})"
        if reason is not None:
            state.failed[label] = reason
            del state.pending[label]
            state.generation += 1
            _log.warning("NumPy's kernel serves, which is slower: %s was not compiled: %s", label, reason)


def _start(lock: int) -> None:
    """Start a compiler process that holds the lock as long as it runs."""
    import pickle  # here, since a warm cache never needs them
    import subprocess

    for pending in state.pending.values():
        pending.attempts += 1
    requests = sorted({tuple(pending.request) for pending in state.pending.values()}, key=str)
    try:
        with Path(_path("log")).open("wb") as log:
            process = subprocess.Popen(
                COMMAND,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                pass_fds=(lock,),
                start_new_session=True,
            )
        _processes.append(process)
        assert process.stdin is not None
        with suppress(OSError), process.stdin as stdin:  # it may have ended already
            stdin.write(pickle.dumps(requests))
    except OSError as error:
        _log.info("no compiler process: %s", error)


def _lock() -> int | None:
    """Return a descriptor that holds the lock; None while a compiler process has it."""
    try:
        descriptor = os.open(_path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        _log.info("no lock for the compiler process: %s", error)
        descriptor = os.open(os.devnull, os.O_RDWR)  # without one, several may run
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        pass
    return descriptor


def _path(suffix: str) -> str:
    """Return a file for the compiler processes of this user on this host, for this cache."""
    place = digest(f"{os.environ.get('NUMBA_CACHE_DIR')} {__file__}".encode(), 8).hex()
    return f"{temporary_directory()}/mpicoll-compiler-{os.getuid()}-{place}.{suffix}"


def temporary_directory() -> str:
    """Return the directory for temporary files, without importing tempfile."""
    return os.environ.get("TMPDIR") or "/tmp"


def _reasons() -> dict[str, str]:
    """Return why the last compiler process could not compile requests."""
    with suppress(OSError):
        lines = Path(_path("log")).read_text(errors="replace").splitlines()
        return dict(line.split("\t", 1) for line in lines if "\t" in line)
    return {}


def read_requests() -> list[Request]:
    """Return the requests that another process has written to standard input."""
    import pickle

    return [Request(*fields) for fields in pickle.loads(sys.stdin.buffer.read())]


def compile_all(requests: Sequence[Request]) -> int:
    """Compile kernels one after the other, and return how many could not be; the reasons go to standard error."""
    import traceback

    wait()
    failures = 0
    for request in requests:
        try:
            request.run()
        except Exception as error:
            failures += 1
            what = "".join(traceback.format_exception_only(error)).split()
            sys.stderr.write(f"{request}\t{' '.join(what)}\n")
    return failures
