"""Copy a call's arguments, so that they cannot change while the call reads them more than once.

The caller owns its lists and arrays. Another thread, a signal handler or a finaliser may change a list, or reshape an
array, whenever Python code runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def snapshot(send: Any, recv: Any) -> tuple[Any, Any]:
    """Return equal buffer arguments on the same memory, in new lists, tuples and arrays.

    If send and recv are one object, so are the results. Other objects are returned unchanged.
    """
    sent = _message(send)
    return sent, sent if recv is send else _message(recv)


def _message(message: Any) -> Any:
    """Return the snapshot of a buffer, or of `[buffer, count, displacement, datatype]` or one of its shorter forms."""
    if type(message) is np.ndarray:
        return message.view()
    if not isinstance(message, (list, tuple)):
        return message
    first, *others = message or (None,)
    parts = first.view() if type(first) is np.ndarray else first, *map(values, others)
    return _like(message, parts[: len(message)])


def values(part: Any) -> Any:
    """Copy counts, displacements or datatypes, and lists of them."""
    if type(part) is np.ndarray:
        return part.copy()
    return _like(part, tuple(map(values, part))) if isinstance(part, (list, tuple)) else part


def _like(original: Any, parts: tuple[Any, ...]) -> Any:
    return list(parts) if isinstance(original, list) else parts
