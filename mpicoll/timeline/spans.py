"""Spans of the program's own in timelines: forward, backward, load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .model import Span

SINKS: list[list[Span]] = []  # of the timelines that are being recorded


@contextmanager
def span(name: str) -> Iterator[None]:
    """Show a part of the program in timelines: `with mpicoll.span("forward"): …`, or as a decorator.

    Local. Without a timeline it records nothing.
    """
    end = begin(name) if SINKS else None
    try:
        yield
    finally:
        if end is not None:
            end()


def begin(name: str) -> Callable[[], None]:
    """Begin a span, and return what ends it, on any thread."""
    began = time.monotonic()

    def end() -> None:
        recorded = Span(str(name), began, time.monotonic())
        for sink in SINKS:
            sink.append(recorded)

    return end
