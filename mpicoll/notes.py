"""Notes between ranks: the questions and answers of whereabouts.py, on tags of their own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from .plan import NOTE_TAGS
from .whereabouts import Answer

ASK, ANSWER, PARTING = NOTE_TAGS[:3]
AGAIN = 0.5  # seconds between two questions of one rank
TRIES = 4  # a probe moves what is on its way a little, and may find nothing yet
LOOK = 0.1  # seconds between two looks for notes while a call is waited for

Mine = Callable[[Iterable[int]], Answer]  # what a rank says when it is asked for these persistent ones


class Notes:
    """One rank's side of a communicator: what it was told, and when it asked."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.told: dict[int, Answer] = {}
        self.sent: list[tuple[MPI.Request, Any]] = []
        self.asked = self.looked = float("-inf")

    def ask(self, now: float, calls: list[int]) -> None:
        """Ask every other rank, about these persistent collectives too, unless that was a moment ago."""
        if now - self.asked < AGAIN:
            return
        if now - self.asked > 4 * AGAIN:  # what was told of an earlier call says nothing of this one
            self.told = {rank: answer for rank, answer in self.told.items() if answer.ended}
        self.asked, note = now, json.dumps(calls).encode()
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self._send(note, rank, ASK)

    def tell_all(self, answer: Answer) -> None:
        """Tell every other rank, unasked."""
        for rank in range(self.comm.size):
            if rank != self.comm.rank:
                self._send(answer.pack(), rank, ANSWER)

    def has_heard(self) -> bool:
        """Whether every other rank has answered."""
        return len(self.told) == self.comm.size - 1

    def look(self, now: float, mine: Mine) -> None:
        """Take in what was told and answer what was asked, by mine(), unless that was a moment ago."""
        if now - self.looked >= LOOK:
            self.looked = now
            self.take_in(mine)

    def take_in(self, mine: Mine) -> None:
        """Take in what was told and answer what was asked, by mine()."""
        self.told.update((rank, Answer.unpack(note)) for rank, note in self._receive(ANSWER))
        asked = {rank: json.loads(note) for rank, note in self._receive(ASK)}
        for rank, calls in asked.items():
            self._send(mine(calls).pack(), rank, ANSWER)
        self.sent = [(request, note) for request, note in self.sent if not request.Test()]

    def _send(self, note: bytes, rank: int, tag: int) -> None:
        self.sent.append((self.comm.Isend([note, MPI.BYTE], rank, tag), note))

    def _receive(self, tag: int) -> Iterable[tuple[int, bytes]]:
        status = MPI.Status()
        while any(self.comm.Iprobe(MPI.ANY_SOURCE, tag, status) for _ in range(TRIES)):
            note = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self.comm.Recv([note, MPI.BYTE], status.source, tag)
            yield status.source, note.tobytes()
