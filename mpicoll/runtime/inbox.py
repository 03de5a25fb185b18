"""The arrays that ranks send each other in sparse exchanges: a receiver knows neither the sender nor the length."""

from __future__ import annotations

import math
import pickle
import struct
from collections import defaultdict
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from mpi4py import MPI

from ..plans.plan import NOTE_TAGS

FIRST, CONTENTS = NOTE_TAGS[-2:]
SHORT = 1 << 14  # bytes of an array that travels in its first message: copying them costs less than a second one
_NUMBERS = struct.Struct("=3q")  # dimensions, bytes of the dtype, the exchange


class Arrival(NamedTuple):
    """An array that another rank sends, and the request that completes when it is here."""

    source: int
    array: np.ndarray
    request: MPI.Request


class Inbox:
    """The arrays under way to this rank on one communicator, by the number of the exchange.

    The first message of an array has the contents of a short one, then shape, dtype (pickled), and numbers of a fixed
    length. The contents of a long array follow in a second message. The first is sent synchronously, so its sender
    knows when it has been matched. A rank may send for the next exchange before this rank has completed the last one;
    messages of one sender stay in order.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.arrivals: dict[int, list[Arrival]] = defaultdict(list)
        self.barriers: dict[str, list[Any]] = {}  # idle executions of the barrier, by engine

    def send(self, sequence: int, rank: int, array: np.ndarray) -> list[MPI.Request]:
        """Start sending a contiguous array, which must stay as it is until the requests are complete."""
        is_short, dtype = array.nbytes <= SHORT, _pickled(array.dtype)
        numbers = struct.pack(f"{array.ndim}q", *array.shape), dtype, _NUMBERS.pack(array.ndim, len(dtype), sequence)
        message = b"".join((array.tobytes() if is_short else b"", *numbers))
        requests = [self.comm.Issend([message, MPI.BYTE], rank, FIRST)]
        return requests if is_short else [*requests, self.comm.Isend([_bytes(array), MPI.BYTE], rank, CONTENTS)]

    def poll(self) -> None:
        """Receive the first messages that are here, and start to receive long arrays."""
        status = MPI.Status()
        while (message := self.comm.Improbe(MPI.ANY_SOURCE, FIRST, status)) is not None:
            received, source = bytearray(status.Get_count(MPI.BYTE)), status.source
            message.Recv([received, MPI.BYTE])
            end = len(received) - _NUMBERS.size
            ndim, length, sequence = _NUMBERS.unpack_from(received, end)
            dtype = _dtype(bytes(received[end - length : end]))
            shape = struct.unpack_from(f"{ndim}q", received, end - length - 8 * ndim)
            request = MPI.Request()  # complete
            if math.prod(shape) * dtype.itemsize <= SHORT:
                array: np.ndarray = np.ndarray(shape, dtype, received)
            else:
                array = np.empty(shape, dtype)
                request = self.comm.Irecv([_bytes(array), MPI.BYTE], source, CONTENTS)
            self.arrivals[sequence].append(Arrival(source, array, request))

    def take(self, sequence: int) -> dict[int, np.ndarray]:
        """Return the arrays of an exchange that is complete, by the ranks that sent them, in rank order."""
        arrivals = self.arrivals.pop(sequence, [])
        return {arrival.source: arrival.array for arrival in sorted(arrivals, key=lambda arrival: arrival.source)}


def _bytes(array: np.ndarray) -> np.ndarray:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8)


@lru_cache(maxsize=256)
def _pickled(dtype: np.dtype) -> bytes:
    return pickle.dumps(dtype)


@lru_cache(maxsize=256)
def _dtype(pickled: bytes) -> np.dtype:
    dtype: np.dtype = pickle.loads(pickled)
    return dtype
