"""Simulate a schedule message by message; tests hold the closed form in model.py to it.

Every rank carries out its steps one after the other, strands side by side, chunks as many at once as the window says.
A short message leaves when its sender begins the step, a long one when its receiver has begun its own too. Messages
between nodes go through the link of a node, those inside a node through that of a rank, in either direction on its own.
A link has as many ports as its level says, and a port carries one message at a time. Between two messages of one step a
rank leaves the gap. A rank reduces and copies one chunk after the other, while messages move.

On a network with a topology a message between nodes also takes the links between switches on its route. Messages share
these fairly (fabric.py), and a message keeps a port of its sender until its last byte has left. A port of its receiver
takes the time of its bytes at the full rate, since the port serves others while a slow message comes in. Bytes that
arrive before a port is free wait at the receiver, and hold up no link.

Without a topology, and where nothing is recorded, event_loop.py computes the same times in compiled code.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple

from ..schedules.grouping import Partition, homes
from ..schedules.ir import Local, Send, Step
from ..schedules.ir import Message as Wire
from ..schedules.schedule import Schedule
from . import event_loop
from .chunks import MOST_MESSAGES, check_messages, cut, local_us
from .fabric import Fabric, Flow
from .network import Level, Network
from .profile import local_blocks
from .shares import UnequalBlocks

Lane = tuple[int, int, int]  # a rank, a strand, the number of a chunk
Name = tuple[int, int, int, int, int]  # of a message: sender, receiver, strand, chunk, how many came before it


@dataclass(slots=True)
class Message:
    """A message that its sender or receiver has posted, or both; times in µs."""

    sender: int
    receiver: int
    nbytes: float
    lanes: dict[bool, Lane] = field(default_factory=dict)  # by whether the side sends
    place: dict[bool, int] = field(default_factory=dict)  # how many of its step came before it
    left: float = math.nan  # when its first byte left
    arrived: float = math.nan


@dataclass(slots=True)
class Progress:
    """An unfinished step: its missing messages, its earliest end, and its reductions and copies in µs."""

    missing: int
    end: float
    local: float


MOST_ROUTED = 500_000  # messages on a topology, which takes longer if they start and end at many different times
LAST = 1 << 30  # the place of what comes after all else at its time
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
    shares: how much of the vector belongs to each rank, as counts in any unit, shape (p,); None: equal shares.
    Raises ArgumentError for a schedule of too many messages (MOST_COMPILED; MOST_MESSAGES where spans are recorded, or
    without numba; MOST_ROUTED on a topology), for nodes for which the topology has no place, and for shares that are no
    counts of p ranks, or of a collective whose blocks do not belong to ranks.
    Node i of `nodes` has place i of the topology.
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
        shares: Sequence[int] | None = None,
        record: bool = False,
    ) -> None:
        self.spans: list[Span] | None = [] if record else None
        self.schedule, self.network, self.p = schedule, network, schedule.p
        self.block, self.lanes = cut(schedule, nbytes, chunk_bytes)
        self.unequal: UnequalBlocks | None = None
        if shares is not None:
            self.unequal = UnequalBlocks(schedule, nbytes, shares, chunk_bytes)
            self.lanes = self.unequal.chunks
        self.window = window
        self.home = homes(nodes) if nodes is not None else {rank: rank for rank in range(self.p)}
        if network.topology is None and not record:
            done = event_loop.run(schedule, network, self.block, self.lanes, window, self.home, self.unequal)
            if done is not None:
                self.ends, self.messages = done
                return
        check_messages(schedule, self.lanes, MOST_MESSAGES if network.topology is None else MOST_ROUTED)
        self.programs = [schedule.program(rank) for rank in range(self.p)]
        self.ends = [0.0] * self.p
        self.messages = 0
        topology, count = network.topology, len(set(self.home.values()))
        self._fabric = Fabric(topology, network.links, count) if topology is not None else None
        self._waiting: dict[int, dict[int, deque[Flow]]] = defaultdict(dict)  # by node and rank: for a port to send
        self._wakes: dict[int, float] = {}  # by node: when a rank that waits is past its gap
        self._used: dict[int, int] = defaultdict(int)  # by node: ports that send
        self._must_settle = False  # whether rates are solved before time goes on
        self._free: dict[tuple[bool, bool, int], list[float]] = {}  # (is far, sends, whose): µs, by port
        # (rank, sends, is far): when the last messages began and ended, one for each port
        self._last: dict[tuple[int, bool, bool], deque[Sequence[float]]] = {}
        self._open: dict[Name, Message] = {}
        self._numbers: dict[tuple[int, int, int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._current: dict[Lane, Progress] = {}
        self._at: dict[Lane, int] = defaultdict(int)
        self._busy = [0.0] * self.p  # until when a rank reduces or copies, in µs
        self._events: list[tuple[float, int, int, Callable[[float, Any], None], Any]] = []
        self._pushed = 0
        self._run()

    @property
    def us(self) -> float:
        """The µs at which the last rank ends."""
        return max(self.ends)

    def _run(self) -> None:
        for rank, strands in enumerate(self.programs):
            for strand in range(len(strands)):
                for lane in range(min(self.lanes, self.window)):
                    self._push(0.0, self._begin, (rank, strand, lane))
        while self._events:
            at, *_, act, what = heappop(self._events)
            act(at, what)
        if self._open:
            raise RuntimeError(f"{len(self._open)} messages of the schedule have no other side")

    def _push(
        self, at: float, act: Callable[[float, Any], None], what: Lane | Message | Flow | int | None, place: int = -1
    ) -> None:
        """Call act at a time, so that links and processors serve in the order of time.

        Messages that leave at the same time leave in the order of their places in a step.
        """
        self._pushed += 1
        heappush(self._events, (at, place, self._pushed, act, what))

    def _begin(self, at: float, lane: Lane) -> None:
        """Begin a lane's next step, or end it; another chunk begins where one has ended."""
        rank, strand, number = lane
        steps = self.programs[rank][strand]
        if self._at[lane] == len(steps):
            self.ends[rank] = max(self.ends[rank], at)
            if number + self.window < self.lanes:
                self._push(at, self._begin, (rank, strand, number + self.window))
            return
        step = steps[self._at[lane]]
        self._at[lane] += 1
        messages, places = [], [0, 0]
        for op in step:
            if not isinstance(op, Local):
                sends = isinstance(op, Send)
                if (nbytes := self._moved(op, number)) or not op.blocks or self.unequal is None:
                    messages.append((sends, op.peer, nbytes, places[sends]))
                places[sends] += 1
        self._current[lane] = Progress(len(messages), at, self._local_us(step, number))
        for message in messages:
            self._post(at, lane, *message)
        if not messages:
            self._push(at, self._compute, lane)

    def _moved(self, op: Wire, chunk: int) -> float:
        """Return the bytes of a message in a chunk."""
        if self.unequal is None:
            return self.schedule.blocks_moved(op) * self.block
        return self.unequal.moved(op.blocks, chunk)

    def _local_us(self, step: Step, chunk: int) -> float:
        """Return the µs for which a step reduces, copies and packs a chunk."""
        if self.unequal is None:
            return local_us(step, self.block, self.network)
        reduced, copied = (
            sum(self.unequal.moved(blocks, chunk) for blocks in listed) for listed in local_blocks(step)
        )
        return reduced / self.network.fold_rate + copied / self.network.copy_rate

    def _post(self, at: float, lane: Lane, sends: bool, peer: int, nbytes: float, place: int) -> None:
        """Post one side of a message: a short one leaves with its sender, a long one when both sides are posted."""
        rank, strand, number = lane
        pair = (rank, peer) if sends else (peer, rank)
        count = self._numbers[pair[0], pair[1], strand, number]
        name = pair[0], pair[1], strand, number, count[sends]
        count[sends] += 1
        if (message := self._open.pop(name, None)) is None:
            message = self._open[name] = Message(*pair, nbytes)
        message.lanes[sends], message.place[sends] = lane, place
        if len(message.lanes) == 2 if nbytes > self.network.short_bytes else sends:
            if message.place[True]:
                self._push(at, self._leave, message, message.place[True])
            else:
                self._leave(at, message)
        elif message.arrived >= 0:
            self._done(lane, message.arrived)

    def _leave(self, at: float, message: Message) -> None:
        """Send a message through the link of its sender."""
        far, level, long, transfer = self._cost(message)
        if far and self._fabric is not None:
            self._queue(at, message)
            return
        out = far, True, self.home[message.sender] if far else message.sender
        left = max(self._through(out, level, at, transfer), self._after(message, True, far, level) + transfer)
        message.left = left - transfer
        self._latest(message.sender, True, far, level).append((message.left, left))
        self.messages += 1
        if self.spans is not None:
            self.spans.append(Span(message.sender, SENDS, message.left, left))
        latency = level.latency + (level.rendezvous if long else 0.0)
        self._push(message.left + latency, self._arrive, message)
        if not long:
            self._done(message.lanes[True], left)

    def _arrive(self, at: float, message: Message, flow: Flow | None = None) -> None:
        """Receive a message, whose first byte is there, through the link of its receiver."""
        far, level, _, transfer = self._cost(message)
        into = far, False, self.home[message.receiver] if far else message.receiver
        arrived = max(self._through(into, level, at, transfer), self._after(message, False, far, level) + transfer)
        self._latest(message.receiver, False, far, level).append((arrived - transfer, arrived))
        if flow is None:
            self._end(message, arrived - transfer, arrived)
        else:
            flow.receiving = arrived - transfer, arrived
            self._end_flow(flow)

    def _end(self, message: Message, begin: float, arrived: float) -> None:
        """Note from when to when a message is received."""
        message.arrived = arrived
        if self.spans is not None:
            self.spans.append(Span(message.receiver, RECEIVES, begin, arrived))
        long = message.nbytes > self.network.short_bytes
        for sends, lane in message.lanes.items():
            if long or not sends:
                self._done(lane, arrived)

    def _queue(self, at: float, message: Message) -> None:
        """Let a message between nodes of a topology wait for a port of its sender's node."""
        assert self._fabric is not None
        node = self.home[message.sender]
        _, level, long, _ = self._cost(message)
        links = self._fabric.route(node, self.home[message.receiver])
        latency = level.latency + (level.rendezvous if long else 0.0) + len(links) * self._fabric.topology.hop_latency
        rate = level.rate if long else level.short_rate
        ranks = self._waiting[node]
        ranks.setdefault(message.sender, deque()).append(Flow(message, links, rate, message.nbytes, latency))
        self._serve(at, node)

    def _serve(self, at: float, node: int) -> None:
        """Begin messages at the link of a node while it has a free port: the first one of a rank past its gap."""
        ranks, level = self._waiting[node], self.network.links
        while ranks and self._used[node] < level.ports:
            ready = {rank: self._after(flows[0].message, True, True, level) for rank, flows in ranks.items()}
            rank = next((rank for rank, begin in ready.items() if begin <= at), None)
            if rank is None:
                if self._wakes.get(node) != (begin := min(ready.values())):
                    self._wakes[node] = begin
                    self._push(begin, self._serve, node)
                return
            flows = ranks.pop(rank)
            self._depart(at, node, flows.popleft())
            if flows:
                ranks[rank] = flows  # behind the other ranks

    def _depart(self, at: float, node: int, flow: Flow) -> None:
        """Send the first byte of a message on its way."""
        flow.message.left = flow.sending[0] = at
        self._latest(flow.message.sender, True, True, self.network.links).append(flow.sending)
        self._used[node] += 1
        self.messages += 1
        self._push(at + flow.latency, self._land, flow)
        if flow.links and self._fabric is not None:
            self._fabric.start(flow, at)
            self._settle_soon(at)
        else:
            flow.end = at + flow.left / flow.limit
            self._push(flow.end, self._sent, flow)

    def _settle_soon(self, at: float) -> None:
        """Solve the rates once all messages that start or end at this time have."""
        if not self._must_settle:
            self._must_settle = True
            self._push(at, self._settle, None, LAST)

    def _settle(self, at: float, _: None) -> None:
        assert self._fabric is not None
        self._must_settle = False
        for flow in self._fabric.settle(at):
            self._push(flow.end, self._sent, flow)

    def _sent(self, at: float, flow: Flow) -> None:
        """Free the sender's port and the links, unless the message's rate has changed since this end was computed."""
        if at != flow.end or flow.sending[1] < math.inf:
            return
        flow.sending[1] = at
        if flow.links and self._fabric is not None:
            self._fabric.stop(flow)
            self._settle_soon(at)
        message = flow.message
        if self.spans is not None:
            self.spans.append(Span(message.sender, SENDS, *flow.sending))
        if message.nbytes <= self.network.short_bytes:
            self._done(message.lanes[True], at)
        self._end_flow(flow)
        node = self.home[message.sender]
        self._used[node] -= 1
        self._serve(at, node)

    def _land(self, at: float, flow: Flow) -> None:
        self._arrive(at, flow.message, flow)

    def _end_flow(self, flow: Flow) -> None:
        """End a message that has left its sender and has its turn at a port of its receiver, once both are known."""
        if flow.receiving is not None and flow.sending[1] < math.inf:
            begin, passed = flow.receiving
            self._end(flow.message, begin, max(passed, flow.sending[1] + flow.latency))

    def _cost(self, message: Message) -> tuple[bool, Level, bool, float]:
        """Return whether a message goes between nodes, its level, whether it is long, and the µs of its bytes."""
        far = self.home[message.sender] != self.home[message.receiver]
        level = self.network.links if far else self.network.node
        long = message.nbytes > self.network.short_bytes
        return far, level, long, message.nbytes / (level.rate if long else level.short_rate)

    def _through(self, link: tuple[bool, bool, int], level: Level, at: float, transfer: float) -> float:
        """Return when a message that waits at a link from a time on has passed it, by the port that is free first."""
        ports = self._free.setdefault(link, [0.0] * level.ports)
        first = min(range(level.ports), key=ports.__getitem__)
        ports[first] = max(ports[first], at) + transfer
        return ports[first]

    def _latest(self, rank: int, sends: bool, far: bool, level: Level) -> deque[Sequence[float]]:
        """Return when the last messages that a rank sent or received at a level began and ended, one for each port."""
        return self._last.setdefault((rank, sends, far), deque(maxlen=level.ports))

    def _after(self, message: Message, sends: bool, far: bool, level: Level) -> float:
        """Return when a rank may begin to send or receive a message that is not the first of a step."""
        last = self._latest(message.sender if sends else message.receiver, sends, far, level)
        if not message.place.get(sends) or not last:
            return 0.0
        free = min(ended for _, ended in last) if len(last) == level.ports else 0.0
        return max(last[-1][0], free) + level.gap

    def _done(self, lane: Lane, at: float) -> None:
        progress = self._current[lane]
        progress.missing -= 1
        progress.end = max(progress.end, at)
        if not progress.missing:
            self._push(progress.end, self._compute, lane)

    def _compute(self, at: float, lane: Lane) -> None:
        """Reduce and copy what a step received, after the other chunks and strands that the rank is busy with."""
        rank, local = lane[0], self._current.pop(lane).local
        end = at
        if local:
            end = self._busy[rank] = max(self._busy[rank], at) + local
            if self.spans is not None:
                self.spans.append(Span(rank, COMPUTES, end - local, end))
        self._push(end, self._begin, lane)
