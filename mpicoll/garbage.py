"""Python's garbage collector, off while code is timed or makes very many objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collection_off"]


@contextmanager
def collection_off() -> Iterator[None]:
    """Turn the garbage collector off in the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
