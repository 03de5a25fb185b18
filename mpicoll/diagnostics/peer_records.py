"""Read where a communicator's other ranks on this host are, in their flight records.

A rank whose call stalls does so instead of asking these ranks by messages. It also learns of a rank that could not
answer: one that is stopped or was killed, or in which native code keeps Python's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

from .flight import RECORD, Place
from .flight_reader import Stream, read_one
from .groups import world_ranks
from .status import Answer

PROCESSES: dict[int, int] = {}  # the process ids of ranks of MPI.COMM_WORLD, as far as known


def note_processes(comm: MPI.Intracomm, processes: Sequence[int]) -> None:
    """Keep the process ids of a communicator's ranks, in the order of ranks. Local."""
    PROCESSES.update((rank, process) for rank, process in zip(world_ranks(comm), processes) if rank != MPI.UNDEFINED)


class PeerRecords:
    """The records of a communicator's other ranks."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.paths: dict[int, Path] = {}  # by rank, as far as known

    def answer(self, rank: int) -> Answer | None:
        """Return the status of a rank; None if no record on this host has it."""
        path = self._path(rank)
        if path is None or RECORD.is_ambiguous(self.place):
            return None
        try:
            process = read_one(path, only_text=True)
        except (OSError, ValueError):  # its program has ended, or runs another version
            return None
        if process is None or self.place.name in process.ambiguous:
            return None
        if process.is_dead or process.silence:
            answer = process.answer(Stream(self.place.name, False))
            return Answer(0, ended=process.doing()) if answer is None and process.is_dead else answer
        return process.answers.get(self.place.name)

    def is_read_by(self, rank: int) -> bool:
        """Return whether a rank can read the status of this rank on this communicator in its record."""
        is_readable = RECORD.holds(self.place) and not RECORD.is_ambiguous(self.place)
        return is_readable and self._path(rank) is not None

    def _path(self, rank: int) -> Path | None:
        """Return the record of a rank, if it is on this host."""
        if rank not in self.paths:
            world_rank = self.place.members[rank]
            path = RECORD.path_of(world_rank, PROCESSES[world_rank]) if world_rank in PROCESSES else None
            if path is None:
                return None
            self.paths[rank] = path
        return self.paths[rank]
