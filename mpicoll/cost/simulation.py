"""Simulate a schedule message by message; tests hold the closed form in model.py to it.

Every rank carries out its steps one after the other, strands side by side, chunks as many at once as the window says.
A short message leaves when its sender begins the step, a long one when its receiver has begun its own too. Messages
between nodes go one after the other through the link of a node, those inside a node one after the other through that of
a rank, in either direction on its own. Between two messages of one step a rank leaves the gap.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

from ..errors import ArgumentError
from ..schedules.grouping import Partition, homes
from ..schedules.ir import Local, Send
from ..schedules.schedule import Schedule
from .network import Level, Network
from .profile import blocks_of, reduced_and_copied

Lane = tuple[int, int, int]  # a rank, a strand, the number of a chunk
Name = tuple[int, int, int, int, int]  # of a message: sender, receiver, strand, chunk, how many came before it


@dataclass(slots=True)
class Message:
    """A message that its sender or receiver has posted, or both; times in µs."""

    begun: dict[bool, float] = field(default_factory=dict)  # by whether the side sends
    lanes: dict[bool, Lane] = field(default_factory=dict)
    place: dict[bool, int] = field(default_factory=dict)  # how many of its step came before it


@dataclass(slots=True)
class Progress:
    """An unfinished step: its missing messages, its earliest end, and its reductions and copies in µs."""

    missing: int
    end: float
    local: float


MOST_MESSAGES = 3_000_000  # of all ranks and chunks: about half a minute
SENDS, RECEIVES, COMPUTES = "sends", "receives", "computes"


class Span(NamedTuple):
    """A time in µs in which a rank sends, receives, or reduces and copies."""

    rank: int
    what: str
    begin: float
    end: float


class Simulation:
    """Simulate one call of nbytes on all ranks, from a common start; `ends` are the µs at which ranks end.

    chunk_bytes: None for whole blocks; window: chunks in flight. spans, if recorded, has what every rank does when.
    Raises ArgumentError for a schedule of more than MOST_MESSAGES.
    """

    def __init__(
        self,
        schedule: Schedule,
        network: Network,
        nbytes: float,
        nodes: Partition | None = None,
        chunk_bytes: int | None = None,
        window: int = 1,
        *,
        record: bool = False,
    ) -> None:
        self.spans: list[Span] | None = [] if record else None
        self.network, self.p = network, schedule.p
        block = nbytes / blocks_of(schedule)
        self.lanes = max(1, ceil(block / chunk_bytes)) if chunk_bytes else 1
        self.block, self.window = block / self.lanes, window
        _check_messages(schedule, self.lanes)
        self.home = homes(nodes) if nodes is not None else {rank: rank for rank in range(self.p)}
        self.programs = [schedule.program(rank) for rank in range(self.p)]
        self.ends = [0.0] * self.p
        self.messages = 0
        self._free: dict[tuple[bool, bool, int], float] = defaultdict(float)  # (is far, sends, whose): µs
        self._last: dict[tuple[int, bool], float] = defaultdict(float)  # (rank, sends): µs
        self._open: dict[Name, Message] = {}
        self._numbers: dict[tuple[int, int, int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._current: dict[Lane, Progress] = {}
        self._at: dict[Lane, int] = defaultdict(int)
        self._events: list[tuple[float, Lane]] = []
        self._run()

    @property
    def us(self) -> float:
        """The µs at which the last rank ends."""
        return max(self.ends)

    def _run(self) -> None:
        for rank, strands in enumerate(self.programs):
            for strand in range(len(strands)):
                for lane in range(min(self.lanes, self.window)):
                    heappush(self._events, (0.0, (rank, strand, lane)))
        while self._events:
            self._begin(*heappop(self._events))
        stuck = sum(progress.missing for progress in self._current.values())
        if stuck:
            raise RuntimeError(f"{stuck} messages of the schedule have no other side")

    def _begin(self, at: float, lane: Lane) -> None:
        """Begin a lane's next step, or end it; another chunk begins where one has ended."""
        rank, strand, number = lane
        steps = self.programs[rank][strand]
        if self._at[lane] == len(steps):
            self.ends[rank] = max(self.ends[rank], at)
            if number + self.window < self.lanes:
                heappush(self._events, (at, (rank, strand, number + self.window)))
            return
        step = steps[self._at[lane]]
        self._at[lane] += 1
        messages = [op for op in step if not isinstance(op, Local)]
        reduced, copied = reduced_and_copied(step)
        local = self.block * (reduced / self.network.fold_rate + copied / self.network.copy_rate)
        self._current[lane] = Progress(len(messages), at, local)
        places = [0, 0]
        for op in messages:
            sends = isinstance(op, Send)
            self._post(at, lane, sends, op.peer, len(op.blocks) * self.block, places[sends])
            places[sends] += 1
        if not messages:
            self._end(lane)

    def _post(self, at: float, lane: Lane, sends: bool, peer: int, nbytes: float, place: int) -> None:
        """Note that one side of a message has begun; carry it where nothing is missing."""
        rank, strand, number = lane
        pair = (rank, peer) if sends else (peer, rank)
        count = self._numbers[pair[0], pair[1], strand, number]
        name = pair[0], pair[1], strand, number, count[sends]
        count[sends] += 1
        message = self._open.setdefault(name, Message())
        message.begun[sends], message.lanes[sends], message.place[sends] = at, lane, place
        if len(message.begun) == 2:
            del self._open[name]
            self._carry(pair, message, nbytes)

    def _carry(self, pair: tuple[int, int], message: Message, nbytes: float) -> None:
        """Find out when both sides are done with a message."""
        sender, receiver = pair
        far = self.home[sender] != self.home[receiver]
        level: Level = self.network.links if far else self.network.node
        long = nbytes > self.network.short_bytes
        transfer = nbytes / (level.rate if long else level.short_rate)
        begun = max(message.begun.values()) if long else message.begun[True]
        out = far, True, self.home[sender] if far else sender
        into = far, False, self.home[receiver] if far else receiver
        latency = level.latency + (level.rendezvous if long else 0.0)
        self._free[out] = max(self._free[out], begun) + transfer
        left = max(self._free[out], self._after(sender, True, message, level) + transfer)
        self._free[into] = max(self._free[into], left - transfer + latency) + transfer
        arrived = max(self._free[into], self._after(receiver, False, message, level) + transfer)
        self._last[sender, True], self._last[receiver, False] = left, arrived
        self.messages += 1
        if self.spans is not None:
            self.spans.append(Span(sender, SENDS, left - transfer, left))
            self.spans.append(Span(receiver, RECEIVES, arrived - transfer, arrived))
        self._done(message.lanes[True], arrived if long else left)
        self._done(message.lanes[False], arrived)

    def _after(self, rank: int, sends: bool, message: Message, level: Level) -> float:
        """Return when a rank may send or receive a message that is not the first of a step."""
        return self._last[rank, sends] + level.gap if message.place[sends] else 0.0

    def _done(self, lane: Lane, at: float) -> None:
        progress = self._current[lane]
        progress.missing -= 1
        progress.end = max(progress.end, at)
        if not progress.missing:
            self._end(lane)

    def _end(self, lane: Lane) -> None:
        progress = self._current.pop(lane)
        if self.spans is not None and progress.local:
            self.spans.append(Span(lane[0], COMPUTES, progress.end, progress.end + progress.local))
        heappush(self._events, (progress.end + progress.local, lane))


def _check_messages(schedule: Schedule, lanes: int) -> None:
    """Raise ArgumentError for a schedule of more messages than can be simulated in reasonable time."""
    most = max(
        sum(not isinstance(op, Local) for strand in schedule.program(rank) for step in strand for op in step)
        for rank in {0, schedule.p - 1}
    )
    if most * schedule.p * lanes > MOST_MESSAGES:
        chunks = f" in {lanes:,} chunks" if lanes > 1 else ""
        raise ArgumentError(
            f"{schedule.title} on {schedule.p} ranks{chunks} has up to {most * schedule.p * lanes:,} messages, and "
            f"{MOST_MESSAGES:,} are simulated at most; take fewer ranks, or `mpicoll choose` for the closed form"
        )
