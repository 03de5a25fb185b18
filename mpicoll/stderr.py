"""What a rank says on standard error, so that it arrives whole even when the run ends right after it."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress

FORWARDED = 0.5  # seconds for a launcher to forward what was said before an abort ends it
HEARD = 2.0  # seconds for another rank to say what this one need not say

_kept: int | None = None  # standard error as it was, by a descriptor of its own


def keep_stderr() -> None:
    """Say everything to where standard error goes now, too: a test runner may redirect it and hide it."""
    global _kept
    with suppress(OSError):
        _kept = os.dup(2)


def say(text: str) -> None:
    """In one write, so that the words of two ranks do not mix."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
    if _kept is not None and not _is_kept():
        os.write(_kept, f"{text}\n".encode())


def _is_kept() -> bool:
    """Return whether standard error still goes where it went."""
    assert _kept is not None
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), os.fstat(_kept))
    except (OSError, ValueError, AttributeError):  # no file at all
        return False


def last_words(text: str) -> None:
    """Say it, and wait until the launcher has passed it on: an abort may follow at once."""
    say(text)
    time.sleep(FORWARDED)


def listen() -> None:
    """Leave it to rank 0 to say why all end, and end after it: a launcher may kill the others when one ends badly."""
    time.sleep(HEARD)
