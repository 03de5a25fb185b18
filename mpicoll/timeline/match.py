"""Pair every message that was sent with the receive that took it."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence

import numpy as np

from ..engines.events import KIND, NO_MESSAGE, PEER, SLOT, STRAND
from ..plans.plan import SEND
from .model import RankTimeline

UNMATCHED = -1


def pair(timelines: Sequence[RankTimeline]) -> tuple[list[list[np.ndarray]], int]:
    """Return a number for every row of every call of every rank, the same for a send and its receive; and the pairs.

    Rows of messages whose other end was not recorded, or that are none, have UNMATCHED. Messages of one call with the
    same tag arrive in the order in which they were sent, as MPI promises.
    """
    numbers = [[np.full(len(call.messages), UNMATCHED) for call in timeline.calls] for timeline in timelines]
    calls: dict[tuple[str, int, int], list[tuple[int, int]]] = defaultdict(list)
    for i, timeline in enumerate(timelines):
        for j, call in enumerate(timeline.calls):
            calls[call.key].append((i, j))
    pairs = 0
    for members in calls.values():
        sent: dict[tuple[int, ...], deque[tuple[int, int, int]]] = defaultdict(deque)
        for i, j, row, (kind, peer, strand, slot) in _rows(timelines, members):
            if kind == SEND:
                sent[timelines[i].rank, peer, strand, slot].append((i, j, row))
        for i, j, row, (kind, peer, strand, slot) in _rows(timelines, members):
            if kind not in (SEND, NO_MESSAGE):
                queue = sent.get((peer, timelines[i].rank, strand, slot))
                if queue:
                    sender, sent_in, at = queue.popleft()
                    numbers[sender][sent_in][at] = numbers[i][j][row] = pairs
                    pairs += 1
    return numbers, pairs


def _rows(
    timelines: Sequence[RankTimeline], members: Iterable[tuple[int, int]]
) -> Iterable[tuple[int, int, int, list[int]]]:
    """Yield every row of a call on its ranks: timeline, call, row, and its kind, peer, strand and slot."""
    for i, j in members:
        rows = timelines[i].calls[j].messages[:, [KIND, PEER, STRAND, SLOT]].tolist()
        for row, values in enumerate(rows):
            yield i, j, row, values
