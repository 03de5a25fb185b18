"""Record one step of a pattern on one rank: its calls and phases from a timeline, its memory from an account."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from mpicoll.describe.explore.training import Communication, RankStep
from mpicoll.timeline.model import Call
from mpicoll.timeline.timeline import Timeline
from mpicoll.training.account import BLOCKING, MESSAGES, Account, Event
from mpicoll.training.phases import PHASES


def rank_step(timeline: Timeline, account: Account, began: float, ended: float) -> RankStep:
    """Stop a timeline of one step, and return the record of this rank. Collective.

    account: it metered the communicators of the step. began, ended: when the step did, in seconds of
    time.perf_counter(), which on Linux is the clock of timelines, time.monotonic().
    """
    own = timeline.stop()
    timeline.comm.Free()
    events = sorted(account.events, key=lambda event: event.began)
    calls = pair([event for event in events if event.name not in MESSAGES], own.calls)
    communications = [
        Communication(
            call.key, event.name, call.facts["collective"], call.facts["algorithm"], call.facts.get("root", -1),
            call.facts["bytes"], event.moves, event.name in BLOCKING, event.began, event.ended,
        )
        for event, call in calls
        if call.facts["ranks"] > 1
    ]  # fmt: skip
    communications += messages(own.rank, events)
    to_rank_0 = timeline.correction
    ends = to_rank_0(np.array([(call.began, call.ended) for call in communications]).reshape(-1, 2)).tolist()
    corrected = [call._replace(began=first, ended=last) for call, (first, last) in zip(communications, ends)]
    times, held = zip(*account.watch.history)
    history = list(zip(to_rank_0(np.array(times)).tolist(), held))
    spans = [(span.name, span.began, span.ended) for span in own.spans if span.name in PHASES]
    return RankStep(own.rank, own.host, corrected, spans, history, *to_rank_0(np.array([began, ended])).tolist())


def pair(events: Sequence[Event], calls: Sequence[Call]) -> list[tuple[Event, Call]]:
    """Return the calls of an account, in the order in which they began, each with its record in a timeline.

    The calls of a communicator are in the order of their numbers, which is that of the program. Times order those of
    several communicators: a nonblocking call begins in a timeline with its first message.
    """
    by_name: defaultdict[str, defaultdict[str, list[Call]]] = defaultdict(lambda: defaultdict(list))
    for call in sorted(calls, key=lambda call: call.number):
        by_name[call.name][call.communicator].append(call)
    merged = {name: heapq.merge(*of.values(), key=lambda call: call.began) for name, of in by_name.items()}
    return [(event, next(merged[event.name])) for event in events]


def messages(rank: int, events: Sequence[Event]) -> list[Communication]:
    """Return the messages between two ranks, by the order of those with the same sender and receiver."""
    numbers: Counter[tuple[int, int]] = Counter()
    sent_or_received = []
    for event in events:
        if event.peer < 0:
            continue
        ends = (rank, event.peer) if event.name.lower().endswith("send") else (event.peer, rank)
        numbers[ends] += 1
        key = f"{ends[0]} to {ends[1]}", numbers[ends], 0
        sent_or_received.append(
            Communication(key, event.name, "", "", ends[0], event.nbytes, event.moves, False, event.began, event.ended)
        )
    return sent_or_received
