"""Spans of the program's own in timelines: forward, backward, load."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

from .model import Span

SINKS: list[list[Span]] = []  # of the timelines that are being recorded


@contextmanager
def span(name: str) -> Iterator[None]:
    """Show a part of the program in timelines: `with mpicoll.span("forward"): …`, or as a decorator.

    Local. Without a timeline it records nothing.
    """
    began = MPI.Wtime() if SINKS else 0.0
    try:
        yield
    finally:
        if began and SINKS:
            recorded = Span(str(name), began, MPI.Wtime())
            for sink in SINKS:
                sink.append(recorded)
