"""Open the fast path of a communicator, or say why every call takes the slow one."""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ..dispatch.methods import Method
from ..dispatch.prepare import Call
from ..kernels.background import NotCompiled
from ..runtime.agreement import COMPILING
from ..runtime.fast_path import FastPath
from ..runtime.operation import Operation
from ..selection.select import Overrides

if TYPE_CHECKING:
    from ..runtime.channel import Channel

LOG = logging.getLogger("mpicoll")
_logged: set[str] = set()  # the unknown layouts of objects that were logged


def open_fast_path(channel: Channel) -> FastPath:
    """Return the fast path of a communicator: one that serves nothing where every call takes the slow path.

    That objects are laid out in an unknown way is logged, once and by rank 0.
    """
    if channel.settings.check:
        return ClosedFastPath("check mode compares every call")
    if channel.agreed.engine_why == COMPILING:
        return ClosedFastPath(COMPILING)
    if channel.agreed.engine != "compiled":
        return ClosedFastPath(f"the {channel.agreed.engine} engine runs the plans")
    if why := unknown_layout():
        if channel.rank == 0 and why not in _logged:
            _logged.add(why)
            LOG.warning("every call takes the slow path: %s", why)
        return ClosedFastPath(why)
    try:
        fast_path: FastPath = _loaded().CompiledFastPath(channel)
        return fast_path
    except NotCompiled:
        return ClosedFastPath(COMPILING)
    except ImportError as error:
        return ClosedFastPath(f"it does not load: {error}")


class ClosedFastPath:
    """The fast path of a communicator whose calls all take the slow path."""

    def __init__(self, why: str) -> None:
        self.closed = why

    @staticmethod
    def fast_call(*invocation: Any) -> int:
        """Serve nothing."""
        return 1

    def resume(self, method: Method, form: str) -> tuple[bool, Operation | None]:
        """Go on with nothing: it began nothing."""
        return False, None

    def key(self, call: Call) -> None:
        """Return None: it serves no kind of call."""

    def insert(self, call: Call) -> None:
        """Do nothing."""

    def open_start(self, execution: Any, started: np.ndarray, nbytes: int) -> None:
        """Return None: starts take the slow path."""

    def share_scratch(self, scratch: np.ndarray) -> bool:
        """Let whoever asks use the scratch."""
        return True

    def reclaim_scratch(self, lent: bool = False) -> bool:
        """Take it back."""
        return True

    def activate(self, overrides: Overrides) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def leak(self) -> None:
        """Do nothing."""

    def clear(self) -> None:
        """Do nothing."""


@cache  # it is asked for while Python ends, too, when nothing can be imported
def _loaded() -> Any:
    """Return the module of the compiled fast path."""
    from . import dispatch  # here, since the compiled engine need not load

    return dispatch


def unknown_layout() -> str | None:
    """Return why compiled code cannot read the arguments of calls, None where it can.

    Raises ImportError where the compiled engine does not load.
    """
    why: str | None = _loaded().signature.check()
    return why
