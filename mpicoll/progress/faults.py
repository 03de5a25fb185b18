"""Log errors that no call can raise, once for each kind, so that the thread continues."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from mpi4py import MPI

from ..errors import MpicollError

LOG = logging.getLogger("mpicoll")
OURS = (MPI.Exception, MpicollError, MemoryError)  # errors that no signal handler is assumed to raise
_logged = set[tuple[str, type[BaseException]]]()
Result = TypeVar("Result")


def may_be_an_interrupt(error: BaseException) -> bool:
    """Return whether a signal handler may have raised this error, which must then reach the program."""
    return threading.current_thread() is threading.main_thread() and not isinstance(error, OURS)


def log_once(what: str, error: BaseException) -> None:
    """Log an error that no call can raise: the first of its type as a warning, later ones at level DEBUG."""
    seen = (what, type(error)) in _logged
    _logged.add((what, type(error)))
    with suppress(Exception):  # from a logging handler of the program, or an error that cannot be printed
        frames = traceback.extract_tb(error.__traceback__)
        where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
        LOG.log(
            logging.DEBUG if seen else logging.WARNING,
            "%s failed and is tried again: %s: %s%s; further ones are logged at level DEBUG",
            *(what, type(error).__name__, error, where),
            exc_info=error if LOG.isEnabledFor(logging.DEBUG) else None,
        )


class contained:
    """Log an error that the block raises, and continue after the block.

    An error that may be an interrupt of the main thread is raised, unless in_callback: a finalizer or a callback of
    MPI's has no caller that could catch it.
    """

    def __init__(self, what: str, in_callback: bool = False) -> None:
        self.what, self.in_callback = what, in_callback

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None or (not self.in_callback and may_be_an_interrupt(error)):
            return False
        log_once(self.what, error)
        return True


def attempt(what: str, function: Callable[[], Result], otherwise: Result) -> Result:
    """Return the result of a function, or `otherwise` if it raises; the error is logged as by contained()."""
    with contained(what):
        return function()
    return otherwise
