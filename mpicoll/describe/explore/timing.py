"""Time a schedule on a network for the page: when each message moves, when each step ends, and the cost over sizes.

The times are those of mpicoll/cost/simulation.py, which `mpicoll simulate` and `mpicoll show --network` print.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...cost.network import Network
from ...cost.simulation import COMPUTES, Lane, Simulation
from ...cost.simulation import Message as Posted
from ...schedules.grouping import BLOCK, Partition, Placement
from ...schedules.schedule import Schedule

SIZES = tuple(8 << 2 * i for i in range(11))  # bytes of calls, of the curves: 8 B to 8 MiB
StepId = tuple[int, int, int]  # rank, strand, step
Legs = dict[tuple[int, int, int], dict[int, list[Posted]]]  # of a sender, receiver and strand: by chunk


class TimedSimulation(Simulation):
    """A simulation that records when each step ended, and when each message left and arrived, in µs."""

    def __init__(self, *arguments: Any) -> None:
        self.step_ends: dict[StepId, float] = {}
        self.legs: Legs = defaultdict(lambda: defaultdict(list))
        super().__init__(*arguments, record=True)

    def _begin(self, at: float, lane: Lane) -> None:
        rank, strand, _ = lane
        if self._at[lane]:
            self.step_ends[rank, strand, self._at[lane] - 1] = at
        super()._begin(at, lane)

    def _leave(self, at: float, message: Posted) -> None:
        _, strand, chunk = message.lanes[True]
        self.legs[message.sender, message.receiver, strand][chunk].append(message)
        super()._leave(at, message)


@dataclass(frozen=True)
class Clock:
    """A network, the bytes of the simulated call, the nodes by number of ranks, and how ranks are placed on them."""

    network: Network
    nbytes: int
    nodes: Mapping[int, Partition]
    placement: Placement = BLOCK

    def simulate(
        self, schedule: Schedule, nbytes: int | None = None, chunk_bytes: int | None = None, window: int = 1
    ) -> TimedSimulation:
        """Simulate a call of the clock's bytes, or of others. Raises ArgumentError for one of too many messages."""
        size = self.nbytes if nbytes is None else nbytes
        return TimedSimulation(schedule, self.network, size, self.nodes[schedule.p], chunk_bytes, window)

    def curve(self, schedule: Schedule) -> list[float]:
        """Return the µs of calls of SIZES."""
        return [short(Simulation(schedule, self.network, size, self.nodes[schedule.p]).us) for size in SIZES]


def short(us: float) -> float:
    """Return a time to four digits.

    >>> short(123.456)
    123.5
    """
    return float(f"{us:.4g}")


def times(
    simulation: TimedSimulation, messages: Sequence[StepId], writes: Sequence[StepId | None], begin: float = 0.0
) -> dict[str, Any]:
    """Return when messages leave and arrive, when writes happen, and when ranks reduce, in µs.

    A message that is cut into chunks leaves with the first of them and arrives with the last.

    messages: sender, receiver and strand of each, in order; writes: the step of each, None for what is there at first;
    begin: the µs at which the call begins.
    """

    def at(us: float) -> float:
        return short(begin + us)

    chunks_in_order = {name: zip(*by_chunk.values()) for name, by_chunk in simulation.legs.items()}
    legs_of_messages = [next(chunks_in_order[name]) for name in messages]
    assert simulation.spans is not None
    return {
        "us": at(simulation.us),
        "messages": [
            [at(min(leg.left for leg in legs)), at(max(leg.arrived for leg in legs))] for legs in legs_of_messages
        ],
        "writes": [0.0 if step is None else at(simulation.step_ends[step]) for step in writes],
        "computes": [[x.rank, at(x.begin), at(x.end)] for x in simulation.spans if x.what == COMPUTES],
    }
