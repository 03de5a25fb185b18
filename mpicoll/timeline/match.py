"""Pair every message that was sent with the receive that took it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..engines.events import ARRIVED, COLUMNS, ENDED, KIND, NO_MESSAGE, PEER, POSTED, SLOT, STRAND
from ..plans.plan import SEND
from .model import RankTimeline

TIMES = slice(POSTED, ENDED + 1)  # columns of a message

UNMATCHED = -1


def rows(timeline: RankTimeline) -> np.ndarray:
    """Return the rows of messages of all calls of a rank, one call after the other."""
    return np.concatenate([np.empty((0, COLUMNS), np.int64), *(call.messages for call in timeline.calls)])


def is_receive(messages: np.ndarray) -> np.ndarray:
    """Return for each row whether it is of a receive."""
    kinds = messages[:, KIND]
    receives: np.ndarray = (kinds != SEND) & (kinds != NO_MESSAGE)
    return receives


def pair(timelines: Sequence[RankTimeline]) -> tuple[list[np.ndarray], int]:
    """Return a number for each of `rows` of every rank, the same for a send and its receive; and the pairs.

    Rows of messages whose other end was not recorded, or that are none, have UNMATCHED. Messages of one call with the
    same tag arrive in the order in which they were sent, as MPI promises.
    """
    calls = [(timeline.rank, call.key, len(call.messages)) for timeline in timelines for call in timeline.calls]
    ids = {key: number for number, key in enumerate(dict.fromkeys([key for _, key, _ in calls]))}
    lengths = [length for *_, length in calls]
    rank = np.repeat(np.array([rank for rank, *_ in calls], np.int64), lengths)
    call = np.repeat(np.array([ids[key] for _, key, _ in calls], np.int64), lengths)
    of_ranks = [rows(timeline) for timeline in timelines]
    messages = np.concatenate([np.empty((0, COLUMNS), np.int64), *of_ranks])
    sends, receives = messages[:, KIND] == SEND, is_receive(messages)
    source, destination = (np.where(here, rank, messages[:, PEER]) for here in (sends, receives))
    channels = np.stack([call, source, destination, messages[:, STRAND], messages[:, SLOT]], axis=1)
    _, channel = np.unique(channels, axis=0, return_inverse=True)
    by_call = np.argsort(call, kind="stable")
    sent, taken = by_call[sends[by_call]], by_call[receives[by_call]]
    of_sent, of_taken = (_count_up(channel.reshape(-1)[some]) for some in (sent, taken))
    _, in_sent, in_taken = np.intersect1d(of_sent, of_taken, assume_unique=True, return_indices=True)
    numbers = np.full(len(messages), UNMATCHED)
    in_order = np.argsort(in_taken)
    numbers[sent[in_sent[in_order]]] = numbers[taken[in_taken[in_order]]] = np.arange(len(in_order))
    return np.split(numbers, np.cumsum([len(some) for some in of_ranks])[:-1]), len(in_order)


def sent_and_arrived(timelines: Sequence[RankTimeline], numbers: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return four arrays, with a value for each pair of messages: the sender, when it sent, the receiver, the arrival.

    Ranks are indices in timelines, times are seconds. A message that did not arrive, since its call broke off, is left
    out. numbers: those of `pair`.
    """
    messages = np.concatenate([np.empty((0, COLUMNS), np.int64), *map(rows, timelines)])
    rank, number = np.repeat(np.arange(len(timelines)), [len(some) for some in numbers]), np.concatenate(numbers)
    ends = list[np.ndarray]()
    for of_end, column in ((messages[:, KIND] == SEND, POSTED), (is_receive(messages), ARRIVED)):
        paired = np.flatnonzero(of_end & (number != UNMATCHED))
        paired = paired[np.argsort(number[paired])]
        ends += [rank[paired], messages[paired, column] * 1e-9]
    has_arrived = ends[3] > 0
    return tuple(end[has_arrived] for end in ends)


def most_before_sent(timelines: Sequence[RankTimeline], numbers: Sequence[np.ndarray]) -> float:
    """Return the most seconds by which a message arrived before it was sent, 0 if none did: clocks drifted unevenly.

    numbers: those of `pair`.
    """
    _, sent, _, arrived = sent_and_arrived(timelines, numbers)
    return float((sent - arrived).max(initial=0))


def _count_up(channel: np.ndarray) -> np.ndarray:
    """Return numbers that are different for the messages of a channel, and the same for the k-th of sends and receives.

    >>> _count_up(np.array([2, 0, 2])).tolist()
    [2, 0, 4294967298]
    """
    order = np.argsort(channel, kind="stable")
    first = np.searchsorted(channel[order], channel)  # of its channel
    place = np.empty(len(channel), np.int64)
    place[order] = np.arange(len(channel))
    numbers: np.ndarray = ((place - first) << 32) + channel
    return numbers
