"""A call's arguments as they are when it is made, which nobody changes while the call reads them more than once.

A caller's lists and arrays are the caller's: another thread, a signal handler or a finaliser may put other things into
a list, or give an array another shape, at any moment in which Python runs.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def snapshot(send: Any, recv: Any) -> tuple[Any, Any]:
    """Return buffer arguments that say the same on the same memory, in lists, tuples and arrays of their own.

    One object that is given for both stays one object. What is no list, tuple or numpy.ndarray stays as it is.
    """
    taken = _message(send)
    return taken, taken if recv is send else _message(recv)


def _message(message: Any) -> Any:
    """Return a buffer, or a list that begins with one: `[buffer, count, displacement, datatype]` or a shorter form."""
    if type(message) is np.ndarray:
        return message.view()
    if not isinstance(message, (list, tuple)):
        return message
    first, *others = message or (None,)
    parts = first.view() if type(first) is np.ndarray else first, *map(values, others)
    return _like(message, parts[: len(message)])


def values(part: Any) -> Any:
    """Return a copy of counts, displacements, datatypes, and lists of them."""
    if type(part) is np.ndarray:
        return part.copy()
    return _like(part, tuple(map(values, part))) if isinstance(part, (list, tuple)) else part


def _like(given: Any, parts: tuple[Any, ...]) -> Any:
    return list(parts) if isinstance(given, list) else parts
