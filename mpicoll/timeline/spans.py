"""Spans of the program's own in timelines: forward, backward, load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from .model import Span

SINKS: list[list[Span]] = []  # of the timelines that are being recorded


@contextmanager
def span(name: str) -> Iterator[None]:
    """Show a part of the program in timelines: `with mpicoll.span("forward"): …`, or as a decorator.

    Local. Without a timeline it records nothing.
    """
    began = time.monotonic() if SINKS else 0.0
    try:
        yield
    finally:
        if began and SINKS:
            recorded = Span(str(name), began, time.monotonic())
            for sink in SINKS:
                sink.append(recorded)
