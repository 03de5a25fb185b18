"""Place intervals of time on tracks, so that those of one track overlap only where one holds the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def place(intervals: Sequence[tuple[float, float]], nested: bool = True) -> list[int]:
    """Return the track of each interval, counted from 0: the first on which it fits.

    nested: whether an interval may be inside another of its track. Viewers drop intervals that overlap otherwise.

    >>> place([(0, 10), (1, 3), (2, 4), (5, 12)])
    [0, 0, 1, 1]
    >>> place([(0, 3), (0, 10)])
    [0, 0]
    >>> place([(0, 10), (1, 3), (10, 12)], nested=False)
    [0, 1, 0]
    """
    tracks: list[list[float]] = []  # the ends of the intervals that are open on each track, the outermost first
    placed = [0] * len(intervals)
    times = np.array(intervals, float).reshape(-1, 2)
    for index in np.lexsort((-times[:, 1], times[:, 0])).tolist():
        began, ended = intervals[index]
        for ends in tracks:
            while ends and ends[-1] <= began:
                ends.pop()
        fits = (track for track, ends in enumerate(tracks) if not ends or (nested and ended <= ends[-1]))
        track = next(fits, len(tracks))
        if track == len(tracks):
            tracks.append([])
        tracks[track].append(ended)
        placed[index] = track
    return placed
