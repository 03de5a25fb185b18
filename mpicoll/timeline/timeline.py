"""Timelines of all ranks: recorded together, gathered on rank 0, written to a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpi4py import MPI

from ..garbage import collection_off
from ..runtime.comm_state import CommState
from ..runtime.duplicate import dup_without_attributes
from ..stderr import say
from . import clock, trace_events
from .model import RankTimeline
from .recorder import Recorder

PATIENCE = 2.0  # seconds that a program which ends waits for the other ranks


class Timeline:
    """A record of what the collectives of some ranks did, and when: once it has ended, `trace` on rank 0."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        """Begin to record. Collective."""
        self.comm = dup_without_attributes(comm)
        self.recorder = Recorder(comm)
        self.first = clock.read(self.comm)
        self.correction = clock.Correction(self.first, self.first)  # once stopped
        self.trace: dict[str, Any] | None = None
        self.recorder.start()

    def stop(self, barrier: Callable[[], None] = lambda: None) -> RankTimeline:
        """Record no more, and return this rank's record. Collective; a barrier tells who is missing."""
        self.recorder.stop()
        barrier()
        self.correction = clock.Correction(self.first, clock.read(self.comm))
        with collection_off():  # there may be millions of objects, none of them garbage
            return self.recorder.result(self.correction)

    def end(self, barrier: Callable[[], None] = lambda: None) -> None:
        """Stop, and gather what was recorded on rank 0. Collective; a barrier tells who is missing."""
        own = self.stop(barrier)
        with collection_off():
            gathered = self.comm.gather(own)
            self.trace = trace_events.trace(gathered) if gathered is not None else None
        self.comm.Free()

    def meets(self, seconds: float) -> bool:
        """Return whether all ranks call this within so many seconds."""
        request, until = self.comm.Ibarrier(), time.monotonic() + seconds
        while not request.Test():
            if time.monotonic() > until:
                return False
            time.sleep(1e-4)
        return True

    def save(self, path: str | Path) -> None:
        """Write the file, on rank 0. Raises OSError."""
        if self.trace is not None:
            trace_events.write(self.trace, path)


class OfProgram:
    """The timeline of a whole program: MPICOLL_TIMELINE and `mpicoll run --timeline`."""

    def __init__(self) -> None:
        self.timeline: Timeline | None = None
        self.path = ""

    def opened(self, state: CommState, comm: MPI.Intracomm) -> None:
        """Begin with the first communicator of all ranks, if the settings ask for a timeline."""
        if state.settings.timeline and not self.path and comm.size == MPI.COMM_WORLD.size:
            self.path = state.settings.timeline
            self.timeline = Timeline(comm)

    def end(self) -> None:
        """Write the file as the program ends. Collective, but a rank waits only for some seconds for the others."""
        timeline, self.timeline = self.timeline, None
        if timeline is None:
            return
        if not timeline.meets(PATIENCE):
            if timeline.comm.rank == 0:
                say(f"mpicoll: no timeline is written to {self.path}: not all ranks came to the end of the program")
            return
        timeline.end()
        try:
            timeline.save(self.path)
        except OSError as error:
            say(f"mpicoll: the timeline cannot be written to {self.path}: {error.strerror}")


OF_PROGRAM = OfProgram()
