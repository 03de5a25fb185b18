"""Load an engine by its name."""

from __future__ import annotations

from functools import cache
from typing import Any

from . import mpi4py as reference


@cache  # it is asked for while Python ends, too, when nothing can be imported
def engine_named(name: str) -> Any:
    """Return the engine of that name, as its module."""
    if name == reference.name:
        return reference
    from . import compiled  # here, since it need not load where it is not used

    return compiled
