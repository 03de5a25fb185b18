"""`mpicoll info --check`: what goes wrong with MPI programs on clusters, looked for before a long run.

facts.py gathers what all ranks see; checks are functions from these facts to findings, and report.py has them all.
They use no MPI, so that each can be tried with facts that are made up.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .. import stderr
from ..launcher import rank
from . import facts as gathering
from . import launchers
from .finding import Facts, Finding
from .report import findings, lines, status

__all__ = ["PATIENCE", "Facts", "Finding", "examine", "findings", "lines", "status"]
PATIENCE = 300.0  # seconds: the kernels' compiler may take a minute, and its lock two


def examine(patience: float = PATIENCE) -> tuple[Facts | None, list[Finding], int]:
    """Return the facts and the findings at rank 0, and the exit status on all ranks. Collective over MPI.COMM_WORLD.

    The run is aborted if the ranks do not reach each other within `patience` seconds.
    """
    MPI = started()
    with giving_up(patience, MPI.COMM_WORLD.rank, lambda: MPI.COMM_WORLD.Abort(1)):
        facts, results, verdict = gathering.gather(), list[Finding](), 1
        try:
            if facts is not None:
                facts = gathering.complete(facts)
                results = findings(facts)
            verdict = status(results)
        finally:
            verdict = MPI.COMM_WORLD.bcast(verdict)  # the other ranks must not wait if rank 0 raises
        return facts, results, verdict


def started() -> Any:
    """Return mpi4py.MPI, initialized. If that may end the process, rank 0 first prints what to type."""
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True
    from mpi4py import MPI

    if not MPI.Is_initialized():
        doubt = launchers.doubt(dict(os.environ), MPI.Get_library_version())
        if doubt and rank() == 0:
            stderr.say(f"mpicoll: {doubt}")
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI


@contextmanager
def giving_up(seconds: float, who: int, end: Callable[[], Any]) -> Iterator[None]:
    """End the run from a thread if the block takes longer than this."""

    def late() -> None:
        stderr.last_words(
            f"mpicoll: rank {who}: not all ranks have answered for {seconds:g} s: one is stopped or compiles, or "
            "the network between nodes does not work; giving up"
        )
        try:
            end()
        finally:
            os._exit(1)  # in case MPI fails to abort

    timer = threading.Timer(seconds, late)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
