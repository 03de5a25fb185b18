"""The reference engine: Isend and Irecv of mpi4py, a window of chunks in flight.

Every algorithm runs here, on any MPI; the definition of done. Local work is jitted (local_ops.py).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import RequestError
from ..plans.plan import REDUCE, SEND, tag
from ..plans.rolled import RolledPlan, following
from .events import ARRIVED, COLUMNS, ENDED, MOST, NO_MESSAGE, RECORDING, Events
from .kernel_args import NO_KERNELS, KernelArgs
from .local_ops import Tables, finish_step, geometry, prepare_row
from .protocol import Waiting, refused, waiting

name = "mpi4py"

_BYTE = MPI.BYTE
MOST_KEPT = 4096  # rows times lanes up to which a repeated plan keeps persistent requests
_IDLE_PASSES = 20  # empty passes before the processor is offered to others


def _message(address: int, nbytes: int) -> list[Any]:
    return [MPI.buffer.fromaddress(address, nbytes), nbytes, _BYTE]


class _Lane:
    """A (strand, slot) working through its lanes; requests is None before its step is posted."""

    __slots__ = ("end", "events", "first", "lane", "left", "requests", "slot", "step", "strand", "turn")

    def __init__(self, strand: int, slot: int, first: int, end: int) -> None:
        self.strand, self.slot, self.first, self.end = strand, slot, first, end
        self.lane, self.step, self.turn = slot, first, 0
        self.requests: Sequence[MPI.Request] | None = None
        self.events = range(0)  # of its step
        self.left: dict[int, int | None] = {}  # requests that are not complete: by their place, bytes to receive


class Execution:
    """One plan under way. May be bound again once done.

    Repeated, on the same memory with the same tags, its messages are persistent requests. What a signal handler raises
    while it waits ends nothing: advance goes on another time.
    """

    def __init__(self, plan: RolledPlan, comm: MPI.Comm, repeated: bool = False) -> None:
        self.plan, self.comm, self.bases = plan, comm, np.zeros(3, np.int64)
        self.kernel_args = np.array(NO_KERNELS, np.int64)
        self.tables = Tables(plan.rows, plan.segments, geometry(plan), self.bases, self.kernel_args)
        self.rows, self.steps = plan.rows.tolist(), plan.steps.tolist()
        self.repeats = repeated and plan.lanes * plan.all_rows <= MOST_KEPT
        self.kept: dict[tuple[int, int, int], list[MPI.Prequest]] = {}  # by step, turn and lane
        self.place: tuple[int, ...] = ()
        self.recorded: list[list[int]] = []  # the events of the call
        self.records = False
        RECORDING.add(self)

    def bind(self, sequence: int, bases: tuple[int, int, int], kernel_args: KernelArgs = NO_KERNELS) -> None:
        """Make ready to run on this memory."""
        if (sequence, *bases) != self.place:
            self.free()
            self.place = (sequence, *bases)
        self.bases[:] = bases
        self.sequence, self.kernel_args[:] = sequence, kernel_args
        self.messages = self.bytes = self.finished = 0
        self.posting = False
        self.recorded = []
        self.lanes = [
            _Lane(s, slot, first, end)
            for s, (first, end) in enumerate(self.plan.strands.tolist())
            for slot in range(self.plan.window)
            if first < end
        ]

    def advance(self, seconds: float) -> bool:
        """Go on for at most `seconds`; True when done. Raises RequestError after an interrupt that lost messages."""
        if self.posting:
            raise RequestError("an interrupt came while messages were posted; which of them are under way is not known")
        until, idle = time.monotonic() + seconds, 0
        while self.lanes:
            moved = [self._run(lane) for lane in self.lanes]
            self.lanes = [lane for lane in self.lanes if lane.lane < self.plan.lanes]
            if any(moved):
                idle = 0
            elif time.monotonic() >= until:
                return False
            else:
                idle += 1
                if idle > _IDLE_PASSES:
                    os.sched_yield()
        return True

    def _run(self, lane: _Lane) -> bool:
        """Take one lane as far as it goes; whether that was anywhere."""
        moved = False
        while lane.lane < self.plan.lanes:
            if lane.requests is None:
                self.posting = True
                lane.requests = self._post(lane)
                self.posting, moved = False, True
            if lane.requests and not self._is_over(lane):
                return moved
            plan, (first, posts, bottom, body, turns) = self.plan, self.steps[lane.step]
            where, events = (lane.lane, lane.slot, lane.turn), lane.events
            self._record_time(events, ARRIVED)
            moved = True
            self.finished += 1
            lane.step, lane.turn = following(lane.step, lane.turn, body, turns)
            if lane.step == lane.end:
                lane.step, lane.lane = lane.first, lane.lane + plan.window
            lane.requests = None  # set before the reductions: Python handles an interrupt after them
            finish_step(self.tables.address, first, posts, bottom, *where)
            self._record_time(events, ENDED)
        return True

    @staticmethod
    def _is_over(lane: _Lane) -> bool:
        """Return whether the messages of a lane's step are. Raises MPI.Exception, where one is too short as well."""
        # one by one, for MPICH's Testsome loses the errors of persistent requests
        status, requests = MPI.Status(), lane.requests or ()
        for i in list(lane.left):
            try:
                if not requests[i].Test(status):
                    continue
            except MPI.Exception as error:
                raise refused(error.Get_error_code()) from None
            if lane.left.pop(i) not in (None, status.Get_count(_BYTE)):
                raise refused(MPI.ERR_TRUNCATE)
        return not lane.left

    def _post(self, lane: _Lane) -> Sequence[MPI.Request]:
        """Get the messages of a lane's step ready and post them."""
        messages = self._messages(lane)
        lane.left = {i: None if kind == SEND else n for i, (kind, _, n, _) in enumerate(messages)}
        self.messages += len(messages)
        self.bytes += sum(n for kind, _, n, _ in messages if kind == SEND)
        lane.events = self._record(lane, messages)
        mark = tag(self.sequence, lane.strand, lane.slot)
        if not self.repeats:
            return [
                (self.comm.Isend if kind == SEND else self.comm.Irecv)(_message(at, n), peer, mark)
                for kind, at, n, peer in messages
            ]
        requests = self.kept.get((lane.step, lane.turn, lane.lane))
        if requests is None:
            requests = self.kept[lane.step, lane.turn, lane.lane] = [
                (self.comm.Send_init if kind == SEND else self.comm.Recv_init)(_message(at, n), peer, mark)
                for kind, at, n, peer in messages
            ]
        MPI.Prequest.Startall(requests)
        return requests

    def _record(self, lane: _Lane, messages: Sequence[tuple[int, int, int, int]]) -> range:
        """Record messages that are about to be posted; return which events they are."""
        first = len(self.recorded)
        if self.records and first < MOST:
            now = int(MPI.Wtime() * 1e9)
            place = lane.strand, lane.slot, lane.lane, lane.step, lane.turn, now, 0, 0
            posted = [(kind, peer, n) for kind, _, n, peer in messages] or [(NO_MESSAGE, -1, 0)]
            self.recorded += [[*message, *place] for message in posted]
        return range(first, len(self.recorded))

    def _record_time(self, which: range, column: int) -> None:
        for event in which:
            self.recorded[event][column] = int(MPI.Wtime() * 1e9)

    def record_events(self, on: bool) -> None:
        """Record events from the next message on, or no more."""
        self.records = on

    def events(self) -> Events | None:
        """Return the events of the call, which is over; None if they are not recorded."""
        if not self.records:
            return None
        rows = np.array(self.recorded, np.int64).reshape(-1, COLUMNS)
        return Events(self.plan, rows, 0, tag(self.sequence, 0, 0))

    def compiled_step(self) -> None:
        """Return None: Python advances it."""

    def free(self) -> None:
        """Free the persistent requests."""
        nothing: dict[Any, Any] = {}
        kept, self.kept = self.kept, nothing  # so that one thread alone frees them
        for requests in kept.values():
            for request in requests:
                request.Free()

    def _messages(self, lane: _Lane) -> list[tuple[int, int, int, int]]:
        """(kind, address, bytes, peer) of what a lane's step posts; its local work before that is done here."""
        messages = []
        first, posts = self.steps[lane.step][:2]
        for r in range(first, posts):
            kind, peer, a, b, _, stride = self.rows[r]
            prepare_row(self.tables.address, r, lane.lane, lane.slot, lane.turn)
            at, n = self.tables.message.tolist()
            if kind == REDUCE or (a < b and not n):
                continue
            messages.append((kind, at, n, peer + lane.turn * stride))
        return messages

    @property
    def progress(self) -> tuple[int, int, int]:
        """(messages posted, bytes sent, steps finished) so far."""
        return self.messages, int(self.bytes), self.finished

    def waiting(self) -> list[Waiting]:
        """Return what each unfinished lane waits for.

        Get_status is not for persistent requests: MPICH 5 and Intel MPI make a complete one inactive in it.
        """
        return [
            waiting(self.plan, x.strand, x.lane, x.step, x.turn, [i not in x.left for i in range(len(x.requests))])
            for x in self.lanes
            if x.requests is not None
        ]
