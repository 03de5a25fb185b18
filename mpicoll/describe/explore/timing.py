"""Time a schedule on a network for the page: when each message moves, when each step ends, and the cost over sizes.

The times are those of mpicoll/cost/simulation.py, which `mpicoll simulate` and `mpicoll show --network` print.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...cost.network import Network
from ...cost.simulation import COMPUTES, Lane, Simulation
from ...cost.simulation import Message as Posted
from ...schedules.grouping import BLOCK, Partition, Placement
from ...schedules.schedule import Schedule

SIZES = tuple(8 << 2 * i for i in range(11))  # bytes of calls, of the curves: 8 B to 8 MiB
StepId = tuple[int, int, int]  # rank, strand, step


class TimedSimulation(Simulation):
    """A simulation that records when each step ended, and when each message left and arrived, in µs."""

    def __init__(self, *arguments: Any) -> None:
        self.step_ends: dict[StepId, float] = {}
        self.legs: dict[StepId, list[Posted]] = defaultdict(list)  # by sender, receiver, strand
        super().__init__(*arguments, record=True)

    def _begin(self, at: float, lane: Lane) -> None:
        rank, strand, _ = lane
        if self._at[lane]:
            self.step_ends[rank, strand, self._at[lane] - 1] = at
        super()._begin(at, lane)

    def _leave(self, at: float, message: Posted) -> None:
        self.legs[message.sender, message.receiver, message.lanes[True][1]].append(message)
        super()._leave(at, message)


@dataclass(frozen=True)
class Clock:
    """A network, the bytes of the simulated call, the nodes by number of ranks, and how ranks are placed on them."""

    network: Network
    nbytes: int
    nodes: Mapping[int, Partition]
    placement: Placement = BLOCK

    def simulate(self, schedule: Schedule) -> TimedSimulation:
        """Simulate a schedule. Raises ArgumentError for one of too many messages."""
        return TimedSimulation(schedule, self.network, self.nbytes, self.nodes[schedule.p])

    def curve(self, schedule: Schedule) -> list[float]:
        """Return the µs of calls of SIZES."""
        return [short(Simulation(schedule, self.network, size, self.nodes[schedule.p]).us) for size in SIZES]


def short(us: float) -> float:
    """Return a time to four digits.

    >>> short(123.456)
    123.5
    """
    return float(f"{us:.4g}")


def times(simulation: TimedSimulation, messages: list[StepId], writes: list[StepId | None]) -> dict[str, Any]:
    """Return when messages leave and arrive, when writes happen, and when ranks reduce, in µs.

    messages: sender, receiver and strand of each, in order; writes: the step of each, None for what is there at first.
    """
    legs = {name: iter(sent) for name, sent in simulation.legs.items()}
    legs_in_order = [next(legs[name]) for name in messages]
    assert simulation.spans is not None
    return {
        "us": short(simulation.us),
        "messages": [[short(leg.left), short(leg.arrived)] for leg in legs_in_order],
        "writes": [0.0 if step is None else short(simulation.step_ends[step]) for step in writes],
        "computes": [[x.rank, short(x.begin), short(x.end)] for x in simulation.spans if x.what == COMPUTES],
    }
