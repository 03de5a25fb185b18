"""Send and receive the arrays of sparse exchanges, of which a receiver knows neither sender nor length."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..errors import RequestError
from ..plans.plan import NOTE_TAGS
from .array_format import as_bytes, read_trailer, trailer

FIRST, CONTENTS = NOTE_TAGS[-2:]
SHORT = 1 << 14  # bytes of an array that is copied into its first message, which is faster than a second message


class Arrival(NamedTuple):
    """An array from another rank, and the request that completes when its data has arrived."""

    source: int
    array: np.ndarray
    request: MPI.Request


class Inbox:
    """The arrays that this rank sends and receives in sparse exchanges on one communicator, by exchange number.

    The first message of an array contains its data if it is short, then a trailer (array_format.py) with the number of
    the exchange. The data of a long array follows in a second message. The first message is sent synchronously, so its
    sender knows when it has been matched. Another rank may begin the next exchange before this rank has completed the
    current one; messages of one sender stay in order.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.arrivals: dict[int, list[Arrival]] = defaultdict(list)
        self.is_posting = False  # True outside of send() and poll(): an interrupt came while they posted messages

    def check(self) -> None:
        """Raise RequestError after an interrupt that lost messages."""
        if self.is_posting:
            raise RequestError(
                "an interrupt came while a sparse exchange posted messages, some perhaps in flight; use another "
                "communicator, such as comm.Dup()"
            )

    def send(self, sequence: int, arrays: dict[int, np.ndarray]) -> dict[int, list[MPI.Request]]:
        """Start to send contiguous arrays, by destination rank. They must not change until their requests complete."""
        self.is_posting = True
        requests = {rank: self._send(sequence, rank, array) for rank, array in arrays.items()}
        self.is_posting = False
        return requests

    def _send(self, sequence: int, rank: int, array: np.ndarray) -> list[MPI.Request]:
        is_short = array.nbytes <= SHORT
        message = b"".join((array.tobytes() if is_short else b"", trailer(array, sequence)))
        requests = [self.comm.Issend([message, MPI.BYTE], rank, FIRST)]
        return requests if is_short else [*requests, self.comm.Isend([as_bytes(array), MPI.BYTE], rank, CONTENTS)]

    def poll(self) -> None:
        """Receive the first messages that have arrived, and start to receive long arrays."""
        status = MPI.Status()
        while self.comm.Iprobe(MPI.ANY_SOURCE, FIRST, status):
            self.is_posting = True
            self._receive(status.source, status.Get_count(MPI.BYTE))
            self.is_posting = False

    def _receive(self, source: int, nbytes: int) -> None:
        message = bytearray(nbytes)
        self.comm.Recv([message, MPI.BYTE], source, FIRST)
        described, sequence = read_trailer(message, nbytes)
        request = MPI.Request()  # complete
        if described.nbytes <= SHORT:
            array: np.ndarray = np.ndarray(described.shape, described.dtype, message)
        else:
            array = np.empty(described.shape, described.dtype)
            request = self.comm.Irecv([as_bytes(array), MPI.BYTE], source, CONTENTS)
        self.arrivals[sequence].append(Arrival(source, array, request))

    def take(self, sequence: int) -> dict[int, np.ndarray]:
        """Return the arrays of an exchange that is complete, by the ranks that sent them, in rank order."""
        arrivals = self.arrivals.pop(sequence, [])
        return {arrival.source: arrival.array for arrival in sorted(arrivals, key=lambda arrival: arrival.source)}
