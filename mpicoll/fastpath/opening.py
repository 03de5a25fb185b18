"""Open the fast path of a communicator, or record why every call takes the slow path."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..diagnostics.history import RowWords
from ..diagnostics.record import Record
from ..dispatch.call import Call
from ..dispatch.methods import Method
from ..kernels.background import NotCompiled
from ..progress.operation import Operation
from ..runtime.agreement import COMPILING
from ..runtime.fast_path import FastPath
from ..selection.select import Overrides

if TYPE_CHECKING:
    from ..runtime.comm_state import CommState

LOG = logging.getLogger("mpicoll")
_logged: set[str] = set()  # unknown layouts of objects that were logged


def open_fast_path(state: CommState) -> FastPath:
    """Return the fast path of a communicator; a ClosedFastPath if every call takes the slow path.

    Rank 0 logs an unknown layout of Python objects, once.
    """
    if state.settings.check:
        return ClosedFastPath("check mode compares every call")
    if state.agreed.engine_why == COMPILING:
        return ClosedFastPath(COMPILING)
    if state.agreed.engine != "compiled":
        return ClosedFastPath(f"the {state.agreed.engine} engine runs the plans")
    if why := unknown_layout():
        if state.rank == 0 and why not in _logged:
            _logged.add(why)
            LOG.warning("every call takes the slow path: %s", why)
        return ClosedFastPath(why)
    try:
        fast_path: FastPath = _loaded().CompiledFastPath(state)
        return fast_path
    except NotCompiled:
        return ClosedFastPath(COMPILING)
    except ImportError as error:
        return ClosedFastPath(f"it does not load: {error}")


class ClosedFastPath:
    """The fast path of a communicator whose calls all take the slow path; `closed` is the reason."""

    def __init__(self, why: str) -> None:
        self.closed = why

    @staticmethod
    def fast_call(*invocation: Any) -> int:
        """Return 1: the call takes the slow path."""
        return 1

    def resume(self, method: Method, form: str) -> tuple[bool, Operation | None]:
        """Return (False, None): no call was begun here."""
        return False, None

    def note_line(self) -> None:
        """Write nothing: no call was begun here."""

    def key(self, call: Call) -> None:
        """Return None: no kind of call is served."""

    def insert(self, call: Call) -> None:
        """Ignore the call: nothing is cached here."""

    def open_start(self, call: Any, execution: Any, started: np.ndarray, words: RowWords, record: Record) -> None:
        """Return None: starts take the slow path."""

    def share_scratch(self, scratch: np.ndarray) -> bool:
        """Return True: no fast call uses other scratch."""
        return True

    def reclaim_scratch(self, in_use: bool = False) -> bool:
        """Return True: no fast call uses the scratch."""
        return True

    def activate(self, overrides: Overrides) -> None:
        """Ignore the overrides: no call is served under any."""

    def close(self) -> None:
        """Stay closed."""

    def leak(self) -> None:
        """Leak nothing; no call was begun here."""

    def clear(self) -> None:
        """Remove nothing: nothing is cached here."""

    def forget(self) -> None:
        """Remove nothing: nothing is cached here."""


@cache  # called while Python exits, too, when imports fail
def _loaded() -> Any:
    """Return the module of the compiled fast path."""
    from . import compiled_path  # not at the top: the compiled engine may fail to load

    return compiled_path


def unknown_layout() -> str | None:
    """Return why compiled code cannot read the arguments of calls; None if it can.

    Raises ImportError if the compiled engine does not load.
    """
    why: str | None = _loaded().signature.check_layouts()
    return why
