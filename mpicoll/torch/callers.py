"""Find out whether Python code called, or torch's C++ in a backward pass."""

from __future__ import annotations

import sys

_ENGINE = "_engine_run_backward"  # the Python function that runs the backward pass on this thread


def is_backward() -> bool:
    """Return whether torch's C++ called into this package from a backward pass, with no Python code of others between.

    On a thread of autograd's own there is no Python code at all.
    """
    frame = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__package__") == __package__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is None or frame.f_code.co_name == _ENGINE
