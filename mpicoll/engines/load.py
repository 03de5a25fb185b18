"""Load an engine by its name."""

from __future__ import annotations

from functools import cache
from typing import Any

from . import mpi4py as reference


@cache  # also called while Python exits, when imports fail
def engine_named(name: str) -> Any:
    """Return the module of an engine by its name: "mpi4py", or any other for the compiled one."""
    if name == reference.name:
        return reference
    from . import compiled  # not at the top: a process with the other engine need not import it

    return compiled
