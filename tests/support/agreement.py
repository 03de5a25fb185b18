"""Agreement of the ranks between tests, without a blocking call, so that a deadline can hold."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import numpy as np

TEXT_LIMIT = 200_000        # bytes of one rank's words


class Agreement:
    """All ranks take part in each exchange; one that waits beyond its `seconds` raises TimeoutError."""

    def __init__(self, world) -> None:
        self.comm = world.Dup()
        self.rank, self.size = self.comm.rank, self.comm.size

    def table(self, row: Sequence[int], seconds: float = math.inf) -> list[list[int]]:
        """Return every rank's row, on every rank."""
        mine = np.array(row, dtype=np.int64)
        everyone = np.empty((self.size, mine.size), dtype=np.int64)
        self._finish(self.comm.Iallgather(mine, everyone), seconds)
        return everyone.tolist()

    def texts(self, text: str, seconds: float = math.inf) -> list[str]:
        """Return every rank's text on rank 0, and an empty list elsewhere."""
        data = bytearray(text.encode(errors="replace")[:TEXT_LIMIT])
        lengths = [length for (length,) in self.table([len(data)], seconds)]
        if self.rank:
            self._finish(self.comm.Isend(data, dest=0), seconds)
            return []
        buffers = [data] + [bytearray(length) for length in lengths[1:]]
        for source in range(1, self.size):
            self._finish(self.comm.Irecv(buffers[source], source=source), seconds)
        return [bytes(buffer).decode(errors="replace") for buffer in buffers]

    @staticmethod
    def _finish(request, seconds: float) -> None:
        deadline, nap = time.monotonic() + seconds, 0.0
        while not request.Test():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(nap)
            nap = min(nap + 2e-5, 2e-3)
