"""Notes between ranks: the questions and answers of status.py, on tags of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..plans.plan import NOTE_TAGS
from .status import Answer

ASK, ANSWER, PARTING, AGREEMENT = NOTE_TAGS[:4]
AGAIN = 0.5  # seconds between two questions of one rank
TRIES = 4  # a probe moves what is on its way a little, and may find nothing yet
LOOK = 0.1  # seconds between two looks for notes while a call is waited for

Mine = Callable[[], Answer]  # what a rank says of itself


class Inquiry:
    """One rank's side of a communicator: the answers it got, whom it asked, and who asked it."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.answers: dict[int, Answer] = {}
        self.pending: set[int] = set()  # ranks that have not answered: they are not asked again
        self.askers: set[int] = set()  # ranks that asked, so that they want to know what comes
        self.owed: set[int] = set()  # ranks that asked and have no answer yet
        self.untaken = False  # whether notes went out that nobody had asked for: they may never be taken in
        self.sent: list[tuple[MPI.Request, Any]] = []
        self.began = self.asked = self.looked = float("-inf")  # began: the first question on what stands still now

    def ask(self, now: float) -> None:
        """Ask every other rank that owes no answer, unless that was a moment ago."""
        if now - self.asked < AGAIN:
            return
        if now - self.asked > 4 * AGAIN:  # answers about an earlier call say nothing of this one
            self.answers = {rank: answer for rank, answer in self.answers.items() if answer.ended}
            self.began = now
        self.asked = now
        for rank in self.others:
            if rank not in self.pending:
                self._send(b"", rank, ASK)
                self.pending.add(rank)

    def tell(self, ranks: Iterable[int], answer: Answer) -> None:
        """Tell these ranks, unasked."""
        self.untaken = True
        note = answer.pack()
        for rank in ranks:
            self._send(note, rank, ANSWER)

    @property
    def is_settled(self) -> bool:
        """Return whether no note of this rank can be on its way: all that it asked have answered."""
        return not self.pending and not self.untaken

    @property
    def others(self) -> list[int]:
        """Every other rank."""
        return [rank for rank in range(self.comm.size) if rank != self.comm.rank]

    def has_heard(self) -> bool:
        """Return whether every other rank has answered."""
        return len(self.answers) == self.comm.size - 1

    def take_in(self, mine: Mine) -> None:
        """Take in answers and give those that were asked for, by mine()."""
        for rank, note in self._receive(ANSWER):
            self.pending.discard(rank)  # first: where the answer cannot be read, the rank is asked again
            self.answers[rank] = Answer.unpack(note)
        for rank, _ in self._receive(ASK):
            self.owed.add(rank)
            self.askers.add(rank)
        if self.owed:
            note = mine().pack()
            for rank in sorted(self.owed):
                self._send(note, rank, ANSWER)
                self.owed.discard(rank)
        self.sent = [(request, note) for request, note in self.sent if not request.Test()]

    def _send(self, note: bytes, rank: int, tag: int) -> None:
        self.sent.append((self.comm.Isend([note, MPI.BYTE], rank, tag), note))

    def _receive(self, tag: int) -> Iterable[tuple[int, bytes]]:
        status = MPI.Status()
        while any(self.comm.Iprobe(MPI.ANY_SOURCE, tag, status) for _ in range(TRIES)):
            note = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self.comm.Recv([note, MPI.BYTE], status.source, tag)
            yield status.source, note.tobytes()
