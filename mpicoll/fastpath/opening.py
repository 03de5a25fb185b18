"""Open the fast path of a communicator, or say why every call takes the slow one."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runtime.channel import Channel
    from .dispatch import CompiledFastPath

LOG = logging.getLogger("mpicoll")
_logged: set[str] = set()  # the unknown layouts of objects that were logged


def open_fast_path(channel: Channel) -> CompiledFastPath | str:
    """Return the fast path of a communicator, or why every call takes the slow path.

    That objects are laid out in an unknown way is logged, once and by rank 0.
    """
    if channel.settings.check:
        return "check mode compares every call"
    if channel.agreed.engine != "compiled":
        return f"the {channel.agreed.engine} engine runs the plans"
    if why := unknown_layout():
        if channel.rank == 0 and why not in _logged:
            _logged.add(why)
            LOG.warning("every call takes the slow path: %s", why)
        return why
    from .dispatch import CompiledFastPath  # here, since the compiled engine need not load

    return CompiledFastPath(channel)


def unknown_layout() -> str | None:
    """Return why compiled code cannot read the arguments of calls, None where it can.

    Raises ImportError where the compiled engine does not load.
    """
    from . import signature  # here, since the compiled engine need not load

    return signature.check()
