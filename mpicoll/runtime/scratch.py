"""The scratch of a communicator, kept from call to call and shared with its fast path."""

from __future__ import annotations

import threading

import numpy as np

from ..plans.plan import ALIGN
from .fast_path import FastPath

KEPT = 64 << 20  # bytes that are kept for the next call


def room(nbytes: int) -> int:
    """Return the bytes to allocate: a power of two where they are kept, so that counts that grow need few arrays."""
    power = 1 << max(0, nbytes - 1).bit_length()
    return power if power + ALIGN <= KEPT else nbytes


class Scratch:
    """One array, or none while a call uses it; the fast path may share it."""

    def __init__(self, fast_path: FastPath) -> None:
        self.array: np.ndarray | None = None
        self._fast_path = fast_path
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Drop every array that is given back from now on."""
        self._closed = True

    def take(self, nbytes: int, lent: bool = False) -> np.ndarray:
        """Return an array that holds nbytes from an aligned address on. The progress thread may call this too.

        lent: return the array that a call of the fast path uses. Only the operation that completes that call asks.
        """
        kept = None
        with self._lock:
            if self._fast_path.reclaim_scratch(lent):
                kept, self.array = self.array, None
        if kept is not None and len(kept) >= nbytes + ALIGN:
            return kept
        return np.empty(room(nbytes) + ALIGN, np.uint8)

    def give(self, array: np.ndarray | None) -> None:
        """Keep the larger of this array and the kept one for the next call.

        Garbage collection calls this too, in any thread and at any time, even during another call of it. So it never
        waits for the lock: if that is taken, the array is dropped.
        """
        if array is None or self._closed or len(array) > KEPT or not self._lock.acquire(blocking=False):
            return
        try:
            larger = self.array is None or len(self.array) < len(array)
            if larger and self._fast_path.share_scratch(array):
                self.array, array = array, self.array
        finally:
            self._lock.release()
