"""What a rank says on standard error, so that it arrives whole even when the run ends right after it."""

from __future__ import annotations

import sys
import time

FORWARDED = 0.5  # seconds for a launcher to forward what was said before an abort ends it


def say(text: str) -> None:
    """In one write, so that the words of two ranks do not mix."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def last_words(text: str) -> None:
    """Say it, and wait until the launcher has passed it on: an abort may follow at once."""
    say(text)
    time.sleep(FORWARDED)
