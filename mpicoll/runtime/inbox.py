"""The arrays that ranks send each other in sparse exchanges: a receiver knows neither the sender nor the length."""

from __future__ import annotations

import pickle
from collections import defaultdict
from typing import NamedTuple

import numpy as np
from mpi4py import MPI

from ..plans.plan import NOTE_TAGS

HEADER, CONTENTS = NOTE_TAGS[-2:]
SHORT = 1 << 14  # bytes of an array that travels in its header: copying them costs less than a second message


class Arrival(NamedTuple):
    """An array that another rank sends, and the request that completes when it is here."""

    source: int
    array: np.ndarray
    request: MPI.Request


class Announced(NamedTuple):
    """What a header says of an array that follows it."""

    dtype: np.dtype
    shape: tuple[int, ...]


class Inbox:
    """The arrays under way to this rank on one communicator, by the number of the exchange.

    A pickled header has the exchange's number and a short array, or what is Announced of a long one, which follows in a
    message of its own. The header is sent synchronously, so the sender knows when this rank has received it. A rank may
    send for the next exchange while this one is not through with the last; messages of one sender stay in order.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.arrivals: dict[int, list[Arrival]] = defaultdict(list)

    def send(self, sequence: int, rank: int, array: np.ndarray) -> list[MPI.Request]:
        """Start sending a contiguous array, which must stay as it is until the requests are complete."""
        is_short = array.nbytes <= SHORT
        header = pickle.dumps((sequence, array if is_short else Announced(array.dtype, array.shape)), protocol=5)
        requests = [self.comm.Issend([header, MPI.BYTE], rank, HEADER)]
        return requests if is_short else [*requests, self.comm.Isend([_bytes(array), MPI.BYTE], rank, CONTENTS)]

    def poll(self) -> None:
        """Receive the headers that are here, and start to receive their arrays."""
        status = MPI.Status()
        while (message := self.comm.Improbe(MPI.ANY_SOURCE, HEADER, status)) is not None:
            header, source = bytearray(status.Get_count(MPI.BYTE)), status.source
            message.Recv([header, MPI.BYTE])
            sequence, array = pickle.loads(header)
            request = MPI.Request()  # complete
            if isinstance(array, Announced):
                array = np.empty(array.shape, array.dtype)
                request = self.comm.Irecv([_bytes(array), MPI.BYTE], source, CONTENTS)
            self.arrivals[sequence].append(Arrival(source, array, request))

    def take(self, sequence: int) -> dict[int, np.ndarray]:
        """Return the arrays of an exchange that is complete, by the ranks that sent them, in rank order."""
        arrivals = self.arrivals.pop(sequence, [])
        return {arrival.source: arrival.array for arrival in sorted(arrivals, key=lambda arrival: arrival.source)}


def _bytes(array: np.ndarray) -> np.ndarray:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8)
