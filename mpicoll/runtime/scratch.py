"""Keep the scratch of a communicator from call to call, and share it with the fast path."""

from __future__ import annotations

import threading

import numpy as np

from ..plans.plan import ALIGN
from .fast_path import FastPath

MAX_KEPT = 64 << 20  # bytes of an array that is kept for the next call


def allocation_size(nbytes: int) -> int:
    """Return the bytes to allocate: a power of two if they can be kept, so that growing counts need few arrays."""
    power = 1 << max(0, nbytes - 1).bit_length()
    return power if power + ALIGN <= MAX_KEPT else nbytes


class Scratch:
    """At most one array, which a call takes and gives back; fast calls may use it meanwhile."""

    def __init__(self, fast_path: FastPath) -> None:
        self.array: np.ndarray | None = None
        self._fast_path = fast_path
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Keep no array that is given back from now on."""
        self._closed = True

    def take(self, nbytes: int, in_use: bool = False) -> np.ndarray:
        """Return an array with room for nbytes from an aligned address. The progress thread may call this too.

        in_use: return the array that a fast call in flight uses, for the operation that completes that call.
        """
        kept = None
        with self._lock:
            if self._fast_path.reclaim_scratch(in_use):
                kept, self.array = self.array, None
        if kept is not None and len(kept) >= nbytes + ALIGN:
            return kept
        return np.empty(allocation_size(nbytes) + ALIGN, np.uint8)

    def give_back(self, array: np.ndarray | None) -> None:
        """Give back an array: keep the larger of it and the kept array for the next call.

        Garbage collection calls this too, in any thread and at any time, even within another call of this method. So
        this never waits for the lock: if that is taken, it drops the array.
        """
        if array is None or self._closed or len(array) > MAX_KEPT or not self._lock.acquire(blocking=False):
            return
        try:
            larger = self.array is None or len(self.array) < len(array)
            if larger and self._fast_path.share_scratch(array):
                self.array, array = array, self.array
        finally:
            self._lock.release()
