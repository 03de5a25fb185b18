"""Find the blocks of messages that are partial sums: these are sent in float32, all others as elements.

A block that no rank has reduced is a contribution, and exact. A reduction makes a partial sum. The last reduction of a
block that a rank keeps makes a complete sum, which that rank rounds and sends rounded. In scan and exscan no rank's sum
is complete for the ranks behind it. So the sender's program alone decides what it sends, and the receiver reads that
program. A block that is forwarded is what the rank before sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache

from .collectives import from_all_ranks
from .ir import INPUT, VALUE, Loc, Local, Recv, RecvReduce, Reduce, Send, Strand
from .liveness import Place, last, written
from .schedule import Schedule

At = tuple[int, int]  # a step, and a place in the order of what it does: 0 for messages, then local work
Source = tuple[int, int, int]  # peer, which of the messages it sends, and which block of that
Left = bool | Loc | Source  # by a write: a partial sum or none; what was copied, or received


class _StrandRecord:
    """The writes and sends of one strand of one rank, by place and by peer."""

    def __init__(self, schedule: Schedule, rank: int, strand: Strand) -> None:
        self.kept = {(VALUE, block) for block in schedule.ends(rank)}
        self.has_full_sums = schedule.collective.covers is from_all_ranks
        self.divides_at_owner = schedule.algorithm.divides_where_owned(schedule.p, schedule.resolved)
        self.last_write = last(strand, written)
        self.used = [{place for op in ops if isinstance(op, Local) for place in (op.src, op.dst)} for ops in strand]
        self.writes: dict[Place, list[tuple[At, Left]]] = defaultdict(list)
        self.sent: dict[int, list[tuple[int, Send]]] = defaultdict(list)  # by peer: (step, message)
        self.received: dict[int, int] = defaultdict(int)  # by peer: messages
        known: set[Place] = {(buffer, block) for block in schedule.starts(rank) for buffer in (VALUE, INPUT)}
        for step, ops in enumerate(strand):
            arrived: dict[Place, Left] = {}
            for op in ops:
                if isinstance(op, Send):
                    self.sent[op.peer].append((step, op))
                elif isinstance(op, Recv | RecvReduce):
                    arrived.update(self._arrived(step, op))
            for place, left in arrived.items():
                self.writes[place].append(((step, 0), left))
            known.update(arrived)
            for order, op in enumerate(ops, 1):
                if isinstance(op, Local):
                    reduces = isinstance(op, Reduce) and op.dst in known
                    left = self._leaves_partial(step, op.dst) if reduces else op.src
                    self.writes[op.dst].append(((step, order), left))
                    known.add(op.dst)

    def _arrived(self, step: int, op: Recv | RecvReduce) -> Iterator[tuple[Place, Left]]:
        """Yield the places that a message writes, and what it leaves there."""
        nth, self.received[op.peer] = self.received[op.peer], self.received[op.peer] + 1
        for i, block in enumerate(op.blocks):
            place = op.buffer, block
            if isinstance(op, RecvReduce):
                yield place, self._leaves_partial(step, place)
            elif self.divides_at_owner and self._is_result(step, place):
                yield place, False
            else:
                yield place, (op.peer, nth, i)

    def _is_result(self, step: int, place: Place) -> bool:
        return place in self.kept and self.last_write[place] == step

    def _leaves_partial(self, step: int, place: Place) -> bool:
        """Return whether a reduction leaves a partial sum.

        Every reduction does, except the last one into a place that the rank keeps if the same step does not use it.
        """
        return not (self.has_full_sums and self._is_result(step, place)) or place in self.used[step]

    def before(self, place: Place, at: At) -> tuple[At, Left]:
        """Return the last write of a place before a time: when it happened, and what it left there."""
        return next((write for write in reversed(self.writes.get(place, ())) if write[0] < at), ((-1, 0), False))


class PartialSums:
    """The blocks of a schedule's messages that are partial sums."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.records: dict[tuple[int, int], _StrandRecord] = {}
        self.programs: dict[int, tuple[Strand, ...]] = {}

    def _record(self, rank: int, strand: int) -> _StrandRecord:
        if (rank, strand) not in self.records:
            program = self.programs.get(rank) or self.programs.setdefault(rank, self.schedule.program(rank))
            self.records[rank, strand] = _StrandRecord(self.schedule, rank, program[strand])
        return self.records[rank, strand]

    def writes(self, rank: int, strand: int, place: Place) -> bool:
        """Return whether a rank's last write of a place leaves a partial sum."""
        return self._is_partial(rank, strand, place, (1 << 62, 0))

    def of_message(self, source: int, destination: int, strand: int, nth: int) -> tuple[bool, ...]:
        """Return for each block of a message, the nth between two ranks, whether it is a partial sum."""
        step, op = self._record(source, strand).sent[destination][nth]
        return tuple(self._is_partial(source, strand, (op.buffer, block), (step, 0)) for block in op.blocks)

    def _is_partial(self, rank: int, strand: int, place: Place, at: At) -> bool:
        while True:  # back from rank to rank, to the one that reduced or contributed the block
            record = self._record(rank, strand)
            when, what = record.before(place, at)
            if isinstance(what, bool):
                return what
            if isinstance(what, Loc):  # a copy
                place, at = what, when
                continue
            peer, nth, i = what
            step, op = self._record(peer, strand).sent[rank][nth]
            rank, place, at = peer, (op.buffer, op.blocks[i]), (step, 0)


@lru_cache(maxsize=1)  # a proof lowers one schedule for many ranks
def partial_sums(schedule: Schedule) -> PartialSums:
    """Return the PartialSums of a schedule."""
    return PartialSums(schedule)
