"""The blocking sparse exchange on up to MOST_RANKS: an alltoall of sizes, then an alltoallv of the arrays.

This is PEX, the personalized exchange, of Hoefler, Siebert, Lumsdaine, Scalable communication protocols for dynamic
sparse data exchange, 2010. Only ranks with an array for each other exchange messages in the alltoallv, and both calls
take the fast path. The arrays are copied into one buffer, and arrive in another. If a rank sends more than MOST_BYTES
the copies take longer than NBX does: that rank sends a flag with its sizes, and all ranks use NBX.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ..plans.plan import SEQUENCES, WINDOW
from ..progress.operation import Operation
from ..progress.stages import RequestStage
from ..runtime.array_format import as_bytes, read_trailer, trailer
from ..runtime.comm_state import CommState
from ..runtime.inbox import SHORT
from ..schedules.collectives import NONBLOCKING
from ..selection.select import Choice
from . import execute, methods, sparse_exchange
from .slow_path import prepare_call
from .sparse_exchange import Arrays

MOST_RANKS = 1024  # the alltoall then has as many rounds as the barrier of NBX, of 4 KiB each
MOST_BYTES = 1 << 20  # of a rank's arrays; with 2 MiB NBX is four times as fast on 4 ranks of one host
FLAG = 1 << 62  # of a size: its sender has more bytes
ALIGNED = 16  # bytes of whose multiples a message is, so that every array is aligned
REPLACED = frozenset(("alltoall", "alltoallv"))  # collectives whose forced algorithms may not serve sizes
PADDING = [bytes(-n % ALIGNED) for n in range(ALIGNED)]
Buffer = list[object]


def serves(state: CommState) -> bool:
    """Return whether blocking exchanges begin with sizes: on all ranks or none."""
    return state.size <= MOST_RANKS and REPLACED.isdisjoint(name for name, _ in state.overrides.algorithms)


class PersonalizedExchange:
    """The arrays of this rank for others, and of others for this rank, as blocks of bytes.

    sizes and incoming are the buffers of the alltoall. After it read_sizes() sets is_large, whether the arrays go by
    NBX; if not, buffers() returns the buffers of the alltoallv.
    """

    def __init__(self, arrays: Arrays, size: int) -> None:
        self.arrays, self.counts, self.ends = arrays, [0] * size, []
        for rank in sorted(arrays):
            nbytes, end = arrays[rank].nbytes, trailer(arrays[rank])
            end = PADDING[(nbytes + len(end)) % ALIGNED] + end
            self.counts[rank] = nbytes + len(end)
            self.ends.append((arrays[rank], end))
        self.sizes, self.incoming = np.array(self.counts, np.int64), np.zeros(size, np.int64)
        if sum(self.counts) > MOST_BYTES:
            self.sizes |= FLAG

    def read_sizes(self) -> None:
        """Read what the other ranks have sent."""
        self.counts_in: list[int] = self.incoming.tolist()
        self.is_large = max(self.counts_in) >= FLAG

    def buffers(self) -> tuple[Buffer, Buffer]:
        """Return the buffers by which the arrays travel."""
        pieces: list[Any] = []
        for array, end in self.ends:
            pieces += array.tobytes() if array.nbytes <= SHORT else as_bytes(array), end
        message = np.frombuffer(b"".join(pieces) or bytes(1), np.uint8)  # which cannot be empty
        self.room = np.empty(sum(self.counts_in), np.uint8)
        return [message, self.counts, MPI.BYTE], [self.room, self.counts_in, MPI.BYTE]

    def received(self) -> Arrays:
        """Return the arrays that have arrived, by source, in rank order."""
        arrays, start, room, message = {}, 0, self.room, memoryview(self.room.data)
        for rank, size in enumerate(self.counts_in):
            if size:
                described, _ = read_trailer(message, start + size)
                arrays[rank] = np.ndarray(described.shape, described.dtype, room, start)
                start += size
        return arrays


def complete_later(state: CommState, exchange: PersonalizedExchange) -> None:
    """Send the arrays when the alltoall is complete that an interrupt made this rank leave.

    Else ranks that have the sizes of this rank's arrays would wait for the arrays. Those for this rank are lost.
    """
    left, sequence = state.queue.slots.get(state.sequence % SEQUENCES), state.next_sequence()
    choice = Choice("alltoallv", "linear", None, WINDOW, state.engine, "an interrupt ended the wait for their sizes")
    stages = [lambda: RequestStage(_Rest(state, exchange, sequence), "the arrays of a sparse exchange")]
    operation = Operation(choice, sequence, stages, lambda: None, exchange, NONBLOCKING, "Sparse_alltoall")
    operation.predecessor = left
    state.queue.begin(operation)


class _Rest:
    """The rest of an exchange after the alltoall, as a request."""

    def __init__(self, state: CommState, exchange: PersonalizedExchange, sequence: int) -> None:
        exchange.read_sizes()
        if exchange.is_large:
            self.operation = sparse_exchange.operation(state, exchange.arrays, {}, NONBLOCKING, sequence=sequence)
        else:
            call = prepare_call(state, NONBLOCKING, methods.ALLTOALLV, *exchange.buffers(), None, 0)
            self.operation = execute.operation(state, call, sequence)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Advance the exchange, and return whether it is complete."""
        return self.operation.step(0.0)
