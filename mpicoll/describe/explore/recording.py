"""The times of one recorded call, as the page has those of a simulation."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ...errors import TimelineError
from ...proofs.symbolic import Message
from ...schedules.collectives import base_collective
from ...schedules.ir import Local, Send
from ...schedules.schedule import Schedule
from ...timeline.read import Part
from .timing import Clock, StepId, short, times

Leg = tuple[int, int, int, int]  # sender, receiver, strand, the receiver's step


class Kind(NamedTuple):
    """The calls that are compared with each other: a method, what ran, on how many ranks, and how many bytes."""

    name: str
    collective: str
    spec: str
    p: int
    root: int
    nbytes: int
    chunk_bytes: int | None

    @property
    def title(self) -> str:
        """Return the kind in words.

        >>> Kind("Bcast", "bcast", "chain", 4, 1, 8, None).title
        'Bcast of 8 B by chain on 4 ranks, root 1'
        """
        root = f", root {self.root}" if self.root else ""
        return f"{self.name} of {self.nbytes:,} B by {self.spec} on {self.p} rank{'s' * (self.p != 1)}{root}"


@dataclass(frozen=True)
class Recording:
    """One recorded call: its parts by rank, the steps of its plans, and how many calls of its kind the file has."""

    kind: Kind
    call: Sequence[Part]
    steps: Sequence[Part]
    calls: int

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """Return the communicator's ranks by those of COMM_WORLD, in ascending order."""
        return {rank: i for i, rank in enumerate(sorted(part.rank for part in self.call))}

    @cached_property
    def began(self) -> list[float]:
        """Return the µs of the merged clock at which each rank began."""
        return [part.began for part in sorted(self.call, key=lambda part: part.rank)]

    @cached_property
    def late(self) -> float:
        """Return the µs from the beginning of the first rank to that of the last."""
        return max(self.began) - min(self.began)

    @cached_property
    def legs(self) -> dict[Leg, list[list[float]]]:
        """Return when each message was posted and when the receiver's step was complete, in µs of the merged clock.

        Messages of one step between the same ranks are in order. Of chunks, the first post and the last arrival count.
        """
        senders = {number: part for part in self.steps for _, _, number in part.facts.get("sends", ()) if number >= 0}
        legs: dict[Leg, list[list[float]]] = defaultdict(list)
        for part in self.steps:
            rank, strand, step = self._step(part)
            counts = Counter[int]()
            for peer, _, number in part.facts.get("receives", ()):
                posted = min(senders.get(number, part).began, part.ended)
                of_step, k = legs[self._rank(peer), rank, strand, step], counts[peer]
                counts[peer] += 1
                if k == len(of_step):
                    of_step.append([posted, part.ended])
                else:
                    of_step[k] = [min(of_step[k][0], posted), max(of_step[k][1], part.ended)]
        return dict(legs)

    @cached_property
    def step_ends(self) -> dict[StepId, float]:
        """Return when the last chunk of each step ended with its local work, in µs of the merged clock."""
        ends: dict[StepId, float] = {}
        for part in self.steps:
            step = self._step(part)
            ends[step] = max(part.ended, ends.get(step, part.ended))
        return ends

    @property
    def window(self) -> int:
        """Return how many chunks of a strand were in flight at once."""
        tracks = defaultdict[tuple[int, int], set[int]](set)
        for part in self.steps:
            tracks[part.rank, part.facts["strand"]].add(part.track)
        return max(map(len, tracks.values()), default=1)

    def _rank(self, world_rank: int) -> int:
        if world_rank not in self.rank_of:
            number = self.call[0].facts["call"]
            raise TimelineError(f"call {number} has a message of rank {world_rank}, which is not in the call")
        return self.rank_of[world_rank]

    def _step(self, part: Part) -> StepId:
        return self._rank(part.rank), part.facts["strand"], part.facts["step"]

    def is_complete(self) -> bool:
        """Return whether the bytes that the ranks received are those of the recorded messages."""
        recorded: int = sum(nbytes for part in self.steps for _, nbytes, _ in part.facts.get("receives", ()))
        received: int = sum(part.facts.get("received", 0) for part in self.call)
        return recorded == received

    def fits(self, schedule: Schedule) -> bool:
        """Return whether all recorded messages are messages of the schedule."""
        sent = Counter[Leg]()
        for rank in range(schedule.p):
            for strand, steps in enumerate(schedule.program(rank)):
                for number, step in enumerate(steps):
                    peers = [op.peer for op in step if not isinstance(op, Local | Send)]
                    sent.update([(peer, rank, strand, number) for peer in peers])
        return all(len(legs) <= sent[leg] for leg, legs in self.legs.items())

    def beside_model(
        self, schedule: Schedule, clock: Clock, messages: Sequence[Message], writes: Sequence[StepId | None]
    ) -> dict[str, Any]:
        """Return what the page shows of the call: its times and the model's, in µs from the first rank's beginning.

        The model begins when the last rank has. messages and writes are those of the schedule, in the page's order.
        """
        simulation = clock.simulate(schedule, self.kind.nbytes, self.kind.chunk_bytes, self.window)
        names = [(message.source, message.destination, message.strand) for message in messages]
        model = times(simulation, names, writes, self.late)
        measured = self._times(messages, writes)
        pace = max(part.ended for part in self.call) - max(self.began)
        steps = [durations(played, [message.start for message in messages], self.late) for played in (measured, model)]
        first = self.call[0].facts
        return {
            "name": self.kind.name,
            "call": first["call"],
            "communicator": first["communicator"],
            "calls": self.calls,
            "nbytes": self.kind.nbytes,
            "chunk_bytes": self.kind.chunk_bytes,
            "varies": base_collective(first["collective"]) != first["collective"],
            "late": short(self.late),
            "took": [short(pace), short(simulation.us)],
            "steps": [[short(us) for us in pair] for pair in zip(*steps)],
            "measured": measured,
            "model": model,
        }

    def _times(self, messages: Sequence[Message], writes: Sequence[StepId | None]) -> dict[str, Any]:
        """Return the recorded times as `timing.times` has those of a simulation; None for messages without bytes."""
        first = min(self.began)
        counts = Counter[Leg]()
        legs: list[list[float] | None] = []
        for message in messages:
            leg = message.source, message.destination, message.strand, message.step
            of_step = self.legs.get(leg, [])
            legs.append([short(us - first) for us in of_step[counts[leg]]] if counts[leg] < len(of_step) else None)
            counts[leg] += 1
        ended = [part.ended for part in sorted(self.call, key=lambda part: part.rank)]
        return {
            "us": short(max(ended) - first),
            "messages": legs,
            "writes": [0.0 if step is None else short(self._end(step) - first) for step in writes],
            "computes": [
                [self._rank(part.rank), short(part.began - first), short(part.ended - first)]
                for part in self.steps
                if "receives" not in part.facts
            ],
            "calls": [[short(begin - first), short(end - first)] for begin, end in zip(self.began, ended)],
        }

    def _end(self, step: StepId) -> float:
        """Return when a step ended; one without a recorded event ends with the step before it."""
        rank, strand, number = step
        before = (self.step_ends.get((rank, strand, i)) for i in range(number, -1, -1))
        return next((end for end in before if end is not None), self.began[rank])


def durations(played: Mapping[str, Any], starts: Sequence[int], begin: float) -> list[float]:
    """Return the µs until the first message is posted, those of each step, and those after the last arrival.

    A step ends when its last message has arrived and all steps before it have ended, so that the sum is the whole time
    from `begin` on. starts: the step of each message, counted from 0.
    """
    legs = [(leg, start) for leg, start in zip(played["messages"], starts) if leg is not None]
    end = max(begin, min((leg[0] for leg, _ in legs), default=begin))
    spans = [end - begin]
    for step in range(max(starts, default=-1) + 1):
        arrived = max([end, *(leg[1] for leg, start in legs if start == step)])
        spans.append(arrived - end)
        end = arrived
    return [*spans, max(0.0, played["us"] - end)]
