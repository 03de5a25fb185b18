"""Correct clocks that drifted unevenly, by the messages of the run: none arrives before it is sent.

The readings at the beginning and at the end of a recording correct an even drift (clock.py). In between, a message
from rank a to rank b bounds how far b's clock is ahead of a's: by at most the time from its sending to its arrival.
Messages in both directions bound it from both sides. In each window of time, clocks are moved by no more than these
bounds require; between windows, the correction is linear.

The idea: Andrzej Duda, Gilbert Harrus, Yoram Haddad, Guy Bernard, Estimating global time in distributed systems, 1987;
Rolf Rabenseifner, The controlled logical clock, 1997.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from . import model
from .match import TIMES, most_before_sent, sent_and_arrived
from .model import RankTimeline, Span, on_clock

WINDOWS = 64  # of a recording
_FAR = 1e6  # seconds beyond both ends, in which clocks are right


class _Bounds(NamedTuple):
    """By how much a rank's clock is ahead of a sender's, at most, for windows, senders and receivers (as indices)."""

    window: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    at_most: np.ndarray


def evened(
    timelines: Sequence[RankTimeline], numbers: Sequence[np.ndarray], error: float
) -> tuple[Sequence[RankTimeline], float]:
    """Return timelines with even clocks, and by how many seconds the times of two ranks may be wrong.

    error: that of the readings. The timelines are returned as they are if no message contradicts that, or if their
    messages bound the clocks too loosely to correct them.
    """
    before = most_before_sent(timelines, numbers)
    if before <= error:
        return timelines, error
    corrected, moved = correct(timelines, numbers)
    after = max(error, most_before_sent(corrected, numbers)) + moved
    return (corrected, after) if after < before else (timelines, before)


def correct(timelines: Sequence[RankTimeline], numbers: Sequence[np.ndarray]) -> tuple[list[RankTimeline], float]:
    """Return timelines of which messages contradict the clocks less, and by how many seconds these may be wrong.

    numbers: those of match.pair. Windows and ranks without messages in both directions take the value between the
    windows around them. The error is the largest that the bounds allow where they moved a clock, and half of the
    largest change between windows.
    """
    begin, end = _ends(timelines)
    edges = np.linspace(begin, end, WINDOWS + 1)
    bounds = _bounds(timelines, numbers, edges)
    zeros = np.zeros((WINDOWS, len(timelines)))
    ahead = sum(of - of[:, :1] for of in _limits(zeros, bounds)) / 2  # half of it on either side of a violated bound
    unknown = np.where(np.arange(len(timelines)) > 0, np.inf, zeros)  # but of the first rank
    most, least = _limits(unknown, bounds)
    is_bounded = np.isfinite(most) & np.isfinite(least)
    wrong = np.where(is_bounded & (ahead != 0), np.maximum(most - ahead, ahead - least), 0.0)
    change = np.abs(np.diff(np.where(is_bounded, ahead, 0.0), axis=0)).max(initial=0.0) / 2
    middles = (edges[1:] + edges[:-1]) / 2
    corrected = []
    for timeline, own, has in zip(timelines, ahead.T, is_bounded.T, strict=True):
        right = np.concatenate([[begin - _FAR, begin], middles[has], [end, end + _FAR]])
        shown = right.copy()
        shown[2:-2] += own[has]
        shown = np.maximum.accumulate(shown)
        corrected.append(_moved(timeline, partial(_interpolated, shown, right)))
    return corrected, float(wrong.max(initial=0.0) + change)


def _interpolated(shown: np.ndarray, right: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the right times where a clock shows these."""
    interpolated: np.ndarray = np.interp(times, shown, right)
    return interpolated


def _ends(timelines: Sequence[RankTimeline]) -> tuple[float, float]:
    """Return the first and the last time of all calls and spans, in seconds."""
    parts = [(part.began, part.ended) for timeline in timelines for part in timeline.calls]
    parts += [(part.began, part.ended) for timeline in timelines for part in timeline.spans]
    return min(began for began, _ in parts), max(ended for _, ended in parts)


def _bounds(timelines: Sequence[RankTimeline], numbers: Sequence[np.ndarray], edges: np.ndarray) -> _Bounds:
    """Return the least bound for each window, sender and receiver that has messages."""
    sender, sent, receiver, arrived = sent_and_arrived(timelines, numbers)
    window = np.clip(np.searchsorted(edges, (sent + arrived) / 2, "right") - 1, 0, WINDOWS - 1)
    keys, place = np.unique(np.stack([window, sender, receiver]), axis=1, return_inverse=True)
    at_most = np.full(keys.shape[1], np.inf)
    np.minimum.at(at_most, place.reshape(-1), arrived - sent)
    window, sender, receiver = keys
    return _Bounds(window, sender, receiver, at_most)


def _limits(ahead: np.ndarray, bounds: _Bounds) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest values up to these that obey the bounds, and the smallest values from minus these on."""
    backwards = bounds._replace(sender=bounds.receiver, receiver=bounds.sender)
    return _relaxed(ahead.copy(), bounds), -_relaxed(ahead.copy(), backwards)


def _relaxed(ahead: np.ndarray, bounds: _Bounds) -> np.ndarray:
    """Return the largest values, of windows and ranks, that are no larger and obey the bounds (Bellman and Ford).

    Bounds that contradict each other, since clocks drift within a window too, are obeyed as far as p passes do.
    """
    for _ in range(ahead.shape[1]):
        before = ahead.copy()
        values = ahead[bounds.window, bounds.sender] + bounds.at_most
        np.minimum.at(ahead, (bounds.window, bounds.receiver), values)
        if np.array_equal(before, ahead):
            break
    return ahead


def _moved(timeline: RankTimeline, right: Callable[[np.ndarray], np.ndarray]) -> RankTimeline:
    """Return a timeline whose times are those of a function, in seconds."""
    ends = right(np.array([(span.began, span.ended) for span in timeline.spans]).reshape(-1, 2)).tolist()
    spans = [Span(span.name, *pair) for span, pair in zip(timeline.spans, ends)]
    times = right(np.array([(call.began, call.waited, call.ended) for call in timeline.calls]).reshape(-1, 3)).tolist()
    messages = (_moved_rows(call.messages, TIMES, right) for call in timeline.calls)
    calls = [
        call._replace(began=began, waited=waited, ended=ended, messages=rows)
        for call, (began, waited, ended), rows in zip(timeline.calls, times, messages)
    ]
    return timeline._replace(calls=calls, spans=spans, turns=_moved_rows(timeline.turns, model.TURN_TIMES, right))


def _moved_rows(rows: np.ndarray, columns: slice, right: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return a copy of rows whose times, in these columns, are those of a function."""
    moved: np.ndarray = rows.copy()
    moved[:, columns] = on_clock(rows[:, columns], right)
    return moved
