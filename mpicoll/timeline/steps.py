"""Group the rows of a rank's messages into steps of plans, and place these on tracks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..engines.events import CHUNK, ENDED, POSTED, SLOT, STEP, STRAND
from .match import rows
from .model import RankTimeline
from .tracks import place


class Steps(NamedTuple):
    """The rows of messages, step after step, with their numbers; and for each step its first row, call and track."""

    messages: np.ndarray
    numbers: np.ndarray
    first: np.ndarray
    call: np.ndarray
    track: np.ndarray


def steps(timeline: RankTimeline, numbers: np.ndarray) -> Steps:
    """Return the steps of all calls. numbers: those of the pairs of messages, as match.pair returns them.

    The rows of a chunk slot of a call are a unit, in which step follows step. Units are in the order of their first
    rows, each on a track of its own while others last.
    """
    messages = rows(timeline)
    call = np.repeat(np.arange(len(timeline.calls)), [len(call.messages) for call in timeline.calls])
    slots = np.stack([call, messages[:, STRAND], messages[:, SLOT]], axis=1)
    _, first, inverse = np.unique(slots, axis=0, return_index=True, return_inverse=True)
    unit = first[inverse.reshape(-1)]
    order = np.argsort(unit, kind="stable")
    messages, numbers, call, unit = messages[order], numbers[order], call[order], unit[order]
    of_step = np.stack([unit, messages[:, CHUNK], messages[:, STEP]])
    is_first = np.append(np.full(min(1, len(unit)), True), np.any(of_step[:, 1:] != of_step[:, :-1], axis=0))
    step, (units, sizes) = np.flatnonzero(is_first), np.unique(unit, return_counts=True)
    starts = np.cumsum(sizes) - sizes
    last = messages[starts + sizes - 1]
    spans = np.stack([messages[starts, POSTED], np.maximum(last[:, POSTED], last[:, ENDED])], axis=1) * 1e-9
    tracks = np.array(place(spans.tolist(), nested=False), np.int64)
    return Steps(messages, numbers, step, call[step], tracks[np.searchsorted(units, unit[step])])
