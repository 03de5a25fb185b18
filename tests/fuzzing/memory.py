"""The memory of one buffer: what is in it, what must be in it afterwards, and of which bytes nothing is promised."""

from __future__ import annotations

import numpy as np

from .kinds import Layout, significant

PAD = 64            # bytes of a guard zone at either end
GUARD = 0xA5


class Area:
    """So many bytes between guard zones; places are given in bytes from its beginning."""

    def __init__(self, nbytes: int, name: str) -> None:
        self.whole = np.empty(nbytes + 2 * PAD, np.uint8)
        self.want, self.counts = np.empty_like(self.whole), np.empty(len(self.whole), bool)
        self.view = self.whole[PAD : PAD + nbytes]
        self.name, self.data = name, significant(name)

    def clear(self) -> None:
        """Empty the memory and expect nothing in it."""
        self.whole[:] = self.want[:] = GUARD
        self.counts[:] = True

    def put(self, at: int, layout: Layout, data: np.ndarray) -> None:
        """Fill in elements before the call; they are to stay."""
        where = self._where(at, layout, data)
        self.whole[where] = self.want[where] = data.view(np.uint8).reshape(-1, len(self.data))
        self.counts[where] = self.data

    def expect(self, at: int, layout: Layout, data: np.ndarray) -> None:
        """Expect that the call writes these elements at a position."""
        where = self._where(at, layout, data)
        self.want[where] = data.view(np.uint8).reshape(-1, len(self.data))
        self.counts[where] = self.data

    def ignore(self) -> None:
        """Ignore all bytes inside the guard zones, of which the call promises nothing."""
        self.counts[PAD:-PAD] = False

    def wrong(self) -> str:
        """Return how memory differs from what it must hold; empty if it does not."""
        bad = np.flatnonzero((self.whole != self.want) & self.counts)
        if not len(bad):
            return ""
        first = int(bad[0])
        zone = "" if PAD <= first < len(self.whole) - PAD else ", outside the buffer"
        got, want = (x[first : first + 16].tobytes().hex() for x in (self.whole, self.want))
        return f"{len(bad)} bytes, the first at {first - PAD} of {len(self.view)}{zone}: got {got}, expected {want}"

    def _where(self, at: int, layout: Layout, data: np.ndarray) -> np.ndarray:
        """Return the positions of the data's bytes, a row for each number."""
        size = len(self.data)
        items = data.nbytes // size // len(layout.picks)
        numbers = (np.arange(items)[:, None] * layout.width + np.array(layout.picks)).ravel()
        return PAD + at + numbers[:, None] * size + np.arange(size)
