"""Read GOAL text, check it, and play it: what LogGOPSim does, or the LogGP model, in a few lines.

In LogGOPSim a processor that receives a message is occupied for its bytes. In LogGP (Alexandrov and others, 1995) only
the network interface is, so a rank receives while it sends and computes. Times are whole numbers of any unit.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

OPERATION = re.compile(
    r"(l\d+): (?:(?P<kind>send|recv) (?P<size>\d+)b (?:to|from) (?P<peer>\d+) tag (?P<tag>\d+)|calc (?P<time>\d+))"
)
REQUIRES = re.compile(r"(l\d+) requires (l\d+)")
KINDS = ("send", "recv", "calc")


@dataclass
class Operation:
    """A send, receive or calculation of a rank, and the operations of its rank that require it."""

    rank: int
    kind: str
    size: int  # bytes, or the time of a calculation
    peer: int = -1
    tag: int = -1
    missing: int = 0
    after: list[Operation] = field(default_factory=list)


def read(text: str) -> list[list[Operation]]:
    """Return the operations of every rank. Raises ValueError for a line that the grammar of GOAL does not have."""
    lines = deque(line for line in text.splitlines() if line and not line.startswith("//"))
    p = int(re.fullmatch(r"num_ranks (\d+)", lines.popleft())[1])
    ranks = []
    for rank in range(p):
        if lines.popleft() != f"rank {rank} {{":
            raise ValueError(f"no operations of rank {rank}")
        by_label: dict[str, Operation] = {}
        while (line := lines.popleft()) != "}":
            if match := OPERATION.fullmatch(line):
                assert match[1] not in by_label
                if match["kind"]:
                    numbers = (int(match[name]) for name in ("size", "peer", "tag"))
                    by_label[match[1]] = Operation(rank, match["kind"], *numbers)
                else:
                    by_label[match[1]] = Operation(rank, "calc", int(match["time"]))
            elif match := REQUIRES.fullmatch(line):
                by_label[match[2]].after.append(by_label[match[1]])
                by_label[match[1]].missing += 1
            else:
                raise ValueError(f"no line of GOAL: {line}")
        ranks.append([*by_label.values()])
    assert not lines
    return ranks


def messages(ranks: list[list[Operation]]) -> dict[tuple[int, int, int], dict[str, Operation]]:
    """Return both sides of every message by sender, receiver and tag. Raises ValueError where sides do not match."""
    sides: dict[tuple[int, int, int], dict[str, Operation]] = defaultdict(dict)
    for op in (op for operations in ranks for op in operations if op.kind != "calc"):
        key = (op.rank, op.peer, op.tag) if op.kind == "send" else (op.peer, op.rank, op.tag)
        if op.kind in sides[key]:
            raise ValueError(f"{key} is used twice")
        sides[key][op.kind] = op
    for key, both in sides.items():
        if len(both) != 2 or both["send"].size != both["recv"].size:
            raise ValueError(f"{key} has sides that do not match")
    return sides


def check_order(ranks: list[list[Operation]]) -> None:
    """Raise ValueError where operations wait for each other in a circle, messages included."""
    after = {id(op): list(op.after) for operations in ranks for op in operations}
    missing = {id(op): op.missing for operations in ranks for op in operations}
    for both in messages(ranks).values():
        after[id(both["send"])].append(both["recv"])
        missing[id(both["recv"])] += 1
    free = [op for operations in ranks for op in operations if not missing[id(op)]]
    done = 0
    while free:
        done += 1
        for op in after[id(free.pop())]:
            missing[id(op)] -= 1
            if not missing[id(op)]:
                free.append(op)
    if done != len(missing):
        raise ValueError(f"{len(missing) - done} operations wait for each other")


class Player:
    """Play the operations of all ranks: `end` is the time at which the last processor is done."""

    def __init__(self, text: str, L: int, o: int, g: int, G: int, S: int, *, loggopsim: bool = True) -> None:
        self.L, self.o, self.g, self.G, self.S, self.loggopsim = L, o, g, G, S, loggopsim
        self.ranks = read(text)
        messages(self.ranks)
        check_order(self.ranks)
        self.missing = {id(op): op.missing for operations in self.ranks for op in operations}
        self.cpu, self.sends, self.receives = ([0] * len(self.ranks) for _ in range(3))  # when next available
        self.posted: dict[tuple[int, int, int], Operation] = {}
        self.arrived: dict[tuple[int, int, int], Operation] = {}
        self.done = self.end = 0
        self.events: list[tuple[int, int, str, Operation]] = []
        self.order = count()
        self.turn = 0  # the place in the order of the event at hand
        for operations in self.ranks:
            self._free([op for op in operations if not op.missing], 0)
        while self.events:
            at, self.turn, what, op = heappop(self.events)
            getattr(self, what)(at, op)
        if self.done != len(self.missing):
            raise ValueError(f"{len(self.missing) - self.done} operations did not end")

    def _free(self, operations: list[Operation], at: int) -> None:
        for op in sorted(operations, key=lambda op: KINDS.index(op.kind)):
            ready = max(at, self.cpu[op.rank], self.sends[op.rank] if op.kind == "send" else 0)
            self._push(ready, op.kind, op)

    def _push(self, at: int, what: str, op: Operation) -> None:
        heappush(self.events, (at, next(self.order), what, op))

    def _again(self, at: int, what: str, op: Operation) -> None:
        """Put off the event at hand, which keeps its place among those of the same time."""
        heappush(self.events, (at, self.turn, what, op))

    def _end(self, at: int, op: Operation) -> None:
        self.done += 1
        self.end = max(self.end, at)
        free = []
        for other in op.after:
            self.missing[id(other)] -= 1
            if not self.missing[id(other)]:
                free.append(other)
        self._free(free, at)

    def calc(self, at: int, op: Operation) -> None:
        if self.cpu[op.rank] > at:
            return self._again(self.cpu[op.rank], "calc", op)
        self.cpu[op.rank] = at + op.size
        return self._end(at + op.size, op)

    def send(self, at: int, op: Operation) -> None:
        ready = max(self.cpu[op.rank], self.sends[op.rank])
        if ready > at:
            return self._again(ready, "send", op)
        self.cpu[op.rank] = at + self.o
        self.sends[op.rank] = at + self.g + (op.size - 1) * self.G
        self._push(at + self.o + self.L, "message", op)
        return self._end(at + self.o, op) if op.size <= self.S else None

    def recv(self, at: int, op: Operation) -> None:
        key = op.peer, op.rank, op.tag
        if (sent := self.arrived.pop(key, None)) is None:
            self.posted[key] = op
            return
        if op.size > self.S:
            self._resume(sent, at)
        self._end(at, op)

    def message(self, at: int, sent: Operation) -> None:
        rank = sent.peer
        ready = max(self.receives[rank], self.cpu[rank] if self.loggopsim else 0)
        if ready > at:
            return self._again(ready, "message", sent)
        transfer = (sent.size - 1) * self.G
        self.receives[rank] = at + self.g + transfer
        if not self.loggopsim:
            return self._push(at + transfer, "received", sent)
        self.cpu[rank] = at + self.o + transfer
        return self._match(at, at + self.o + transfer, sent)

    def received(self, at: int, sent: Operation) -> None:
        rank = sent.peer
        if self.cpu[rank] > at and self.o:
            return self._again(self.cpu[rank], "received", sent)
        self.cpu[rank] = max(self.cpu[rank], at + self.o)
        return self._match(at, at + self.o, sent)

    def _match(self, at: int, end: int, sent: Operation) -> None:
        key = sent.rank, sent.peer, sent.tag
        if (op := self.posted.pop(key, None)) is None:
            self.arrived[key] = sent
            self.end = max(self.end, end)
            return
        if sent.size > self.S:
            self._resume(sent, at)
        self._end(end, op)

    def _resume(self, sent: Operation, at: int) -> None:
        """End a rendezvous send, whose rank is busy until then."""
        self.cpu[sent.rank] = max(self.cpu[sent.rank], at)
        self.sends[sent.rank] = max(self.sends[sent.rank], at)
        self._end(at, sent)
