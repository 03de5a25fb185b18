"""Write a schedule as GOAL text, the language of the simulator LogGOPSim.

The text has the messages, the order and the reductions that `simulation.py` plays: every operation of a step requires
the step before, and the first step of a chunk requires the end of the chunk that is `window` before it.

Source: T. Hoefler, T. Schneider, A. Lumsdaine, LogGOPSim: simulating large-scale applications in the LogGOPS model,
2010. Its times and G are whole numbers, so they are in picoseconds here: nanoseconds would round G to 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..schedules.ir import Local, Recv, RecvReduce, Send, Step, Strands
from ..schedules.schedule import Schedule
from .chunks import check_messages, cut, local_us
from .network import Level, Network

PS = 1_000_000  # picoseconds in a µs


class Arguments(NamedTuple):
    """The options of LogGOPSim for a network, in picoseconds, and S in bytes."""

    L: int
    o: int
    g: int
    G: int
    S: int

    def __str__(self) -> str:
        return " ".join(f"-{name} {value}" for name, value in self._asdict().items())


class Goal:
    """One call of nbytes on all ranks as GOAL text.

    chunk_bytes: None for whole blocks; window: chunks in flight. The network gives the times of reductions and copies.
    Raises ArgumentError for a schedule of more than chunks.MOST_MESSAGES.
    """

    def __init__(
        self, schedule: Schedule, network: Network, nbytes: float, chunk_bytes: int | None = None, window: int = 1
    ) -> None:
        self.schedule, self.network, self.nbytes, self.window = schedule, network, nbytes, window
        self.block, self.chunks = cut(schedule, nbytes, chunk_bytes)
        check_messages(schedule, self.chunks, verb="written")
        self.programs = [schedule.program(rank) for rank in range(schedule.p)]
        steps = (step for strands in self.programs for strand in strands for step in strand)
        sizes = [self._bytes(op) for step in steps for op in step if isinstance(op, Send)]
        self.messages, self.longest = len(sizes) * self.chunks, max(sizes, default=0)  # number, bytes

    def lines(self) -> Iterator[str]:
        """Yield the lines of the text."""
        yield f"num_ranks {self.schedule.p}"
        for rank, strands in enumerate(self.programs):
            yield f"rank {rank} {{"
            yield from self._rank(strands)
            yield "}"

    def arguments(self, level: Level) -> Arguments:
        """Return LogGOPSim's options for a level of the network.

        LogGOPSim has one latency and one G: those of the longest message.
        """
        long = self.longest > self.network.short_bytes
        latency = level.latency + (level.rendezvous if long else 0.0)
        rate = level.rate if long else level.short_rate
        most = min(int(self.network.short_bytes), (1 << 31) - 1)
        return Arguments(round(latency * PS), 0, round(level.gap * PS), round(PS / rate), most)

    def _rank(self, strands: Strands) -> Iterator[str]:
        numbers: Counter[tuple[bool, int]] = Counter()  # messages so far, by direction and peer
        label = 0
        for steps in strands:
            tags = [_tags(step, numbers, self.chunks) for step in steps]
            ends: list[tuple[int, ...]] = []  # for every chunk, the labels of its last operations
            for chunk in range(self.chunks):
                before = ends[chunk - self.window] if chunk >= self.window else ()
                for i, step in enumerate(steps):
                    first = label
                    for line in self._messages(step, tags[i], chunk):
                        label += 1
                        yield from _operation(label, line, before)
                    before = tuple(range(first + 1, label + 1)) or before
                    picoseconds = round(local_us(step, self.block, self.network) * PS)
                    if picoseconds or len(before) > 1:
                        label += 1
                        yield from _operation(label, f"calc {picoseconds}", before)
                        before = (label,)
                ends.append(before)

    def _messages(self, step: Step, tags: Sequence[int], chunk: int) -> Iterator[str]:
        """Yield the sends and receives of a step."""
        messages = [op for op in step if not isinstance(op, Local)]
        for op, tag in zip(messages, tags, strict=True):
            words = "send {}b to {} tag {}" if isinstance(op, Send) else "recv {}b from {} tag {}"
            yield words.format(self._bytes(op), op.peer, tag + chunk)

    def _bytes(self, op: Send | Recv | RecvReduce) -> int:
        """Return the bytes of a message in a chunk. LogGOPSim computes with bytes - 1, so an empty message has 1."""
        return max(1, round(self.schedule.blocks_moved(op) * self.block))


def _tags(step: Step, numbers: Counter[tuple[bool, int]], chunks: int) -> list[int]:
    """Return the tag that each message of a step has in the first chunk; each further chunk adds 1.

    Both sides of a message count the messages between them in the same order, so they find the same tag.
    """
    tags = []
    for op in step:
        if not isinstance(op, Local):
            key = isinstance(op, Send), op.peer
            tags.append(numbers[key] * chunks)
            numbers[key] += 1
    return tags


def _operation(label: int, words: str, before: Sequence[int]) -> Iterator[str]:
    yield f"l{label}: {words}"
    yield from (f"l{label} requires l{other}" for other in before)
