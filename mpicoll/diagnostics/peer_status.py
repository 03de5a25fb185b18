"""Learn where the other ranks of a communicator are: from their flight records on this host, else by messages.

The messages are questions and the answers of status.py, with tags of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..plans.plan import NOTE_TAGS
from .flight import Place
from .peer_records import PeerRecords
from .status import Answer

ASK, ANSWER, EXIT_TAG, AGREEMENT, CALIBRATION = NOTE_TAGS[:5]
ASK_INTERVAL = 0.5  # seconds between two questions to one rank, and between two readings of its record
READS = 8  # records are read anew when a call has stalled for so much longer: 1/READS
PROBES_PER_POLL = 4  # a probe progresses messages, and may find one only at the next try
POLL_INTERVAL = 0.1  # seconds between two polls for status messages while the caller waits

OwnAnswer = Callable[[], Answer]


class PeerStatus:
    """The last answers of the other ranks of a communicator, and which of them this rank has asked or must answer.

    read: what records said when they were read last. It takes the place of earlier answers from the next exchange() on,
    so that messages sent before are polled for first.
    """

    def __init__(self, comm: MPI.Intracomm, place: Place) -> None:
        self.comm = comm
        self.records = PeerRecords(place)
        self.answers: dict[int, Answer] = {}
        self.read: dict[int, Answer] = {}
        self.pending: set[int] = set()  # ranks that were asked and have not answered
        self.askers: set[int] = set()  # ranks that have asked; later errors are sent to them unasked
        self.owed: set[int] = set()  # ranks that have asked and were not answered yet
        self.sent_unasked = False  # whether an answer was sent without a question: it may never be received
        self.sent: list[tuple[MPI.Request, Any]] = []
        self.began = self.asked = self.looked = float("-inf")  # began: the first question about the current stall
        self.read_at = float("-inf")

    def read_records(self, now: float, seconds: float) -> None:
        """Read the records on this host, at growing intervals; seconds: how long a call stalls already."""
        if now - self.read_at >= max(ASK_INTERVAL, seconds / READS):
            self.read_at = now
            self.answers = {rank: answer for rank, answer in self.answers.items() if rank not in self.read}
            answers = ((rank, self.records.answer(rank)) for rank in self.others)
            self.read = {rank: answer for rank, answer in answers if answer is not None}

    def ask(self, now: float) -> None:
        """Ask every other rank that has no record here and no question pending, once in ASK_INTERVAL seconds."""
        if now - self.asked < ASK_INTERVAL:
            return
        if now - self.asked > 4 * ASK_INTERVAL:  # the answers are about an earlier call
            self.answers = {rank: answer for rank, answer in self.answers.items() if answer.ended}
            self.began = now
        self.asked = now
        for rank in self.others:
            if rank not in self.pending and rank not in self.read:
                self._send(b"", rank, ASK)
                self.pending.add(rank)

    def tell(self, ranks: Iterable[int], answer: Answer) -> None:
        """Send an answer to these ranks without a question."""
        note = answer.pack()
        for rank in ranks:
            self.sent_unasked = True
            self._send(note, rank, ANSWER)

    @property
    def is_drained(self) -> bool:
        """Return whether no status message of this rank can be in flight."""
        return not self.pending and not self.sent_unasked

    @property
    def others(self) -> list[int]:
        """Return every other rank."""
        return [rank for rank in range(self.comm.size) if rank != self.comm.rank]

    def all_answered(self) -> bool:
        """Return whether every other rank has answered."""
        return len(self.answers) == self.comm.size - 1

    def exchange(self, own_answer: OwnAnswer) -> None:
        """Receive questions and answers, and answer the questions with own_answer()."""
        self.answers |= self.read
        for rank, note in self._receive(ANSWER):
            self.pending.discard(rank)  # before unpacking: if that fails, the rank is asked again
            self.answers[rank] = Answer.unpack(note)
        for rank, _ in self._receive(ASK):
            self.owed.add(rank)
            self.askers.add(rank)
        if self.owed:
            note = own_answer().pack()
            for rank in sorted(self.owed):
                self._send(note, rank, ANSWER)
                self.owed.discard(rank)
        self.sent = [(request, note) for request, note in self.sent if not request.Test()]

    def _send(self, note: bytes, rank: int, tag: int) -> None:
        self.sent.append((self.comm.Isend([note, MPI.BYTE], rank, tag), note))

    def _receive(self, tag: int) -> Iterable[tuple[int, bytes]]:
        status = MPI.Status()
        while any(self.comm.Iprobe(MPI.ANY_SOURCE, tag, status) for _ in range(PROBES_PER_POLL)):
            note = np.empty(status.Get_count(MPI.BYTE), np.uint8)
            self.comm.Recv([note, MPI.BYTE], status.source, tag)
            yield status.source, note.tobytes()
