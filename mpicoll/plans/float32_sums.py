"""Lower reductions of elements with fewer than 32 bits so that partial sums stay in float32 and are rounded once.

Partial sums use the scratch that other plans use for codes. Contributions and complete sums are elements. The schedule
determines which blocks of a message are partial sums (see schedules/partial_sums.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..schedules.ir import Copy, Local, Recv, RecvReduce, Reduce, Strand
from ..schedules.liveness import Place
from ..schedules.partial_sums import partial_sums
from ..schedules.schedule import Schedule
from . import lowering
from .lowering import Lowering
from .places import Home, segment
from .plan import CODED, OUT, REDUCE, REDUCE_SCALE, Coding, Counts, Float32, Plan
from .rows import Row, merged


def lower(
    schedule: Schedule, rank: int, counts: Counts, itemsize: int, *, sums: Coding | None = None, **options: Any
) -> Plan:
    """Return the plan of one rank, as lowering.lower does; sums: the format of partial sums (default: Float32)."""
    return lowering.lower(schedule, rank, counts, itemsize, codec=sums or Float32(), kind=SumsInFloat32, **options)


class SumsInFloat32(Lowering):
    """A lowering whose partial sums are float32."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sums = partial_sums(self.schedule)
        self.strands = 0
        self.received: dict[int, int] = {}  # by peer: index of the last message in this strand

    def _due(self, strand: Strand) -> dict[int, list[Place]]:
        """Return the results to round (and for an average, divide) at the end of each step of a strand.

        The reduction that completes a sum rounds it. A sum received or forwarded in float32 is rounded after its last
        use.
        """
        number, self.strands, self.received = self.strands, self.strands + 1, {}
        self.rounding: dict[Place, int] = {}  # by place: the step whose reduction rounds
        places_by_step: dict[int, list[Place]] = {}
        for place, at in self.last_write.items():
            if place not in self.kept:
                continue
            is_partial = self.sums.writes(self.rank, number, place)
            due = max(at, self.last_read.get(place, -1)) if is_partial else at
            if not any(isinstance(op, Local) and place in (op.src, op.dst) for op in strand[due]):
                self.rounding[place] = due
            places_by_step.setdefault(due, []).append(place)
        return places_by_step

    def _coded(self, op: Recv | RecvReduce) -> Sequence[bool]:
        nth = self.received[op.peer] = self.received.get(op.peer, -1) + 1
        return self.sums.of_message(op.peer, self.rank, self.strands - 1, nth)

    def _reduce_received(self, place: Place, sources: list[Home]) -> None:
        if self.rounding.get(place) == self.index:
            self._write(place, sources, self._output(place[1]))
        else:
            own = self.homes[place]
            landed = next((home for home in sources if home[0] == CODED and home is not own), None)
            self._write(place, sources, landed or self._in_float32(place))

    def _reduce(self, op: Reduce) -> None:
        src, dst = self.homes[op.src], self.homes.get(op.dst)
        self._store(op.dst, [src] if dst is None else [src, dst] if op.side == "left" else [dst, src])

    def _copy(self, op: Copy) -> None:
        self._store(op.dst, [self.homes[op.src]])

    def _store(self, place: Place, sources: list[Home]) -> None:
        """Write a sum, or a copy of a block, to a place."""
        if len(sources) > 1 or sources[0][0] == CODED:
            self._write(place, sources, self._in_float32(place))
        else:
            was_sum = self.homes.get(place, (OUT,))[0] == CODED and place not in self.kept
            self._write(place, sources, self._allocate_block(place[1]) if was_sum else self._target(place))

    def _in_float32(self, place: Place) -> Home:
        """Return the scratch of a partial sum; allocate it if the place has none."""
        home = self.homes.get(place)
        return home if home is not None and home[0] == CODED else self._allocate_block(place[1], True)

    def _merged(self, rows: list[Row]) -> list[Row]:
        return merged(rows, with_codes=True) if self.single else rows

    def _divide(self, places: Sequence[Place], local: Sequence[Local]) -> None:
        """Round results that are still in float32; for an average, divide all that this step rounds."""
        kind = REDUCE_SCALE if self.averaged else REDUCE
        for place in places:
            home, row = self.homes[place], self.wrote.get(place)
            if home[0] == CODED:
                to = self._output(place[1])
                self.finish.append((kind, 0, [segment(to), segment(home)], -1))
                self._move(place, to)
            elif row is not None and len(self.finish[row][2]) > 2:
                self.finish[row] = (kind, *self.finish[row][1:])
