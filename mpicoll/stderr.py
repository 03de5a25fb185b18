"""Print to standard error so that a text arrives whole, even if the run ends right after it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

FORWARD_SECONDS = 0.5  # for a launcher to forward a text before an abort ends it
REPORT_SECONDS = 2.0  # for rank 0 to print the error of all ranks before this rank ends

_kept: int | None = None  # a duplicate of the original standard error


def keep_stderr() -> None:
    """Also print to the current standard error from now on, since a test runner may redirect it later."""
    global _kept
    with suppress(OSError):
        _kept = os.dup(2)


def say(text: str) -> None:
    """Print a text in one write, so that the texts of two ranks do not mix."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    if _kept is not None and not _is_kept():
        os.write(_kept, f"{text}\n".encode())


def _is_kept() -> bool:
    """Return whether standard error still goes to the kept descriptor's file."""
    assert _kept is not None
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), os.fstat(_kept))
    except (OSError, ValueError, AttributeError):  # standard error has no file
        return False


def last_words(text: str) -> None:
    """Print a text, and wait until the launcher has forwarded it, since an abort may follow at once."""
    say(text)
    time.sleep(FORWARD_SECONDS)


def listen() -> None:
    """Wait while rank 0 prints why all ranks end: a launcher may kill the others when one rank ends badly."""
    time.sleep(REPORT_SECONDS)
