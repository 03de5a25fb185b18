"""Engines run plans. They alone post messages.

An engine is a module with `name` and `Execution`, one plan under way. Executions are resumable: advance()
goes as far as it can without blocking, so blocking, nonblocking and many-in-flight are the same code.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from mpi4py import MPI

from ..plan import Plan


class Waiting(NamedTuple):
    """What one lane of an execution waits for."""

    strand: int
    chunk: int
    step: int
    peers: tuple[int, ...]


class Execution(Protocol):
    """One plan under way."""

    def __init__(self, plan: Plan, comm: MPI.Comm) -> None:
        """Set up for a plan and a communicator."""

    def bind(self, sequence: int, bases: tuple[int, int, int], kernel: int) -> None:
        """Make ready to run: addresses of input, output and scratch, and of the kernel. Not while under way."""

    def advance(self, seconds: float) -> bool:
        """Go on for at most `seconds` (0: as far as possible at once); True when done. Raises MPI.Exception."""

    def waiting(self) -> list[Waiting]:
        """What each unfinished lane waits for."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far."""


def engine_named(name: str) -> Any:
    """The engine of that name, as its module."""
    from . import mpi4py as reference

    if name == reference.name:
        return reference
    from . import compiled

    return compiled
