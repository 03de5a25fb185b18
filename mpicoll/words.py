"""What a rank says on standard error, so that it arrives whole even when the run ends right after it."""

from __future__ import annotations

import sys
import time

FORWARDED = 0.5  # seconds for a launcher to forward what was said before an abort ends it
HEARD = 2.0  # seconds for another rank to say what this one need not say


def say(text: str) -> None:
    """In one write, so that the words of two ranks do not mix."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def last_words(text: str) -> None:
    """Say it, and wait until the launcher has passed it on: an abort may follow at once."""
    say(text)
    time.sleep(FORWARDED)


def listen() -> None:
    """Leave it to rank 0 to say why all end, and end after it: a launcher may kill the others when one ends badly."""
    time.sleep(HEARD)
