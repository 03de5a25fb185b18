"""The scratch memory of one lane while its plan is made: regions taken and given back, and the peak."""

from __future__ import annotations

from .plan import ALIGN


class Region:
    """A piece of scratch that lives while a block is in it."""

    __slots__ = ("offset", "refs", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.offset, self.size, self.refs = offset, size, 0


class Pool:
    """Scratch of one strand's lane: first fit, aligned, remembering its peak."""

    def __init__(self, start: int) -> None:
        self.free: list[tuple[int, int]] = []
        self.peak = start

    def take(self, size: int) -> Region:
        """Return a region of at least so many bytes."""
        size = -(-size // ALIGN) * ALIGN
        for i, (offset, room) in enumerate(self.free):
            if room >= size:
                self.free[i : i + 1] = [(offset + size, room - size)] if room > size else []
                return Region(offset, size)
        if self.free and self.free[-1][0] + self.free[-1][1] == self.peak:
            offset, room = self.free.pop()
            self.peak = offset + size
            return Region(offset, size)
        self.peak += size
        return Region(self.peak - size, size)

    def give(self, region: Region) -> None:
        """Make a region's bytes free again, joined with their neighbours."""
        if not region.size:
            return
        self.free.append((region.offset, region.size))
        self.free.sort()
        merged: list[tuple[int, int]] = []
        for offset, size in self.free:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        self.free = merged
