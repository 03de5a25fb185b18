"""Measure how long, of some time, at least one of many intervals was open."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


def covered(intervals: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return a function from times to how long, until then, at least one of the intervals was open.

    intervals: a row of beginning and end for each, in any order; they may overlap.

    >>> covered(np.array([[4.0, 6.0], [0.0, 1.0], [5.0, 7.0]]))(np.array([0.5, 3.0, 5.0, 9.0])).tolist()
    [0.5, 1.0, 2.0, 4.0]
    """
    if not len(intervals):
        return np.zeros_like
    began, ended = intervals[np.argsort(intervals[:, 0], kind="stable")].T
    until = np.maximum.accumulate(ended)
    starts = np.flatnonzero(np.append(True, began[1:] > until[:-1]))  # of intervals that none before reaches
    edges = np.stack([began[starts], until[np.append(starts[1:], len(until)) - 1]], axis=1)
    lengths = np.cumsum(edges[:, 1] - edges[:, 0])
    values = np.stack([np.append(0.0, lengths[:-1]), lengths], axis=1)
    return lambda times: np.interp(times, edges.reshape(-1), values.reshape(-1))
