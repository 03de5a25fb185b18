"""Run plans with mpi4py's Isend and Irecv: the reference engine, which works on any MPI.

Local work is jitted (local_ops.py).
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
from .events import ARRIVED, COLUMNS, ENDED, MAX_EVENTS, NO_MESSAGE, RECORDING, Events
from .kernel_args import NO_KERNELS, KernelArgs
from .local_ops import Tables, finish_step, geometry, prepare_row
from .protocol import PendingMessages, mpi_error, pending_messages

name = "mpi4py"

_BYTE = MPI.BYTE
PERSISTENT_LIMIT = 4096  # rows times lanes of a plan with persistent requests
_IDLE_PASSES = 20  # empty passes before the engine yields the processor


def _message(address: int, nbytes: int) -> list[Any]:
    return [MPI.buffer.fromaddress(address, nbytes), nbytes, _BYTE]


class _Lane:
    """The lanes of one (strand, slot), one after the other; requests is None before the step is posted."""

    __slots__ = ("end", "events", "first", "lane", "pending", "requests", "slot", "step", "strand", "turn")

    def __init__(self, strand: int, slot: int, first: int, end: int) -> None:
        self.strand, self.slot, self.first, self.end = strand, slot, first, end
        self.lane, self.step, self.turn = slot, first, 0
        self.requests: Sequence[MPI.Request] | None = None
        self.events = range(0)  # indices of its step's events
        self.pending: dict[int, int | None] = {}  # incomplete requests by index: bytes to receive, None for a send


class Execution:
    """One plan in progress. Once done, it may be bound again.

    A repeated plan uses persistent requests while its memory and tags stay the same. If a signal handler raises while
    advance() waits for messages, the next advance() continues.
    """

    def __init__(self, plan: RolledPlan, comm: MPI.Comm, repeated: bool = False) -> None:
        self.plan, self.comm, self.bases = plan, comm, np.zeros(3, np.int64)
        self.kernel_args = np.array(NO_KERNELS, np.int64)
        self.tables = Tables(plan.rows, plan.segments, geometry(plan), self.bases, self.kernel_args)
        self.rows, self.steps = plan.rows.tolist(), plan.steps.tolist()
        self.is_persistent = repeated and plan.lanes * plan.all_rows <= PERSISTENT_LIMIT
        self.persistent: dict[tuple[int, int, int], list[MPI.Prequest]] = {}  # by step, turn and lane
        self.bound_to: tuple[int, ...] = ()
        self.recorded: list[list[int]] = []  # the events of the call
        self.lost = 0  # messages of the call that were not recorded
        self.is_recording = False
        RECORDING.add(self)

    def bind(self, sequence: int, bases: tuple[int, int, int], kernel_args: KernelArgs = NO_KERNELS) -> None:
        """Prepare to run with this sequence number, memory and kernels."""
        if (sequence, *bases) != self.bound_to:
            self.free()
            self.bound_to = (sequence, *bases)
        self.bases[:] = bases
        self.sequence, self.kernel_args[:] = sequence, kernel_args
        self.messages = self.bytes = self.finished = 0
        self.posting = False
        self.recorded, self.lost = [], 0
        self.lanes = [
            _Lane(s, slot, first, end)
            for s, (first, end) in enumerate(self.plan.strands.tolist())
            for slot in range(self.plan.window)
            if first < end
        ]

    def advance(self, seconds: float) -> bool:
        """Progress until done, or until nothing moves and `seconds` have passed; return True when done.

        Raises RequestError if an exception interrupted an earlier advance() while it posted messages.
        """
        if self.posting:
            raise RequestError("an exception interrupted this call while it posted messages; it cannot continue")
        until, idle = time.monotonic() + seconds, 0
        while self.lanes:
            moved = [self._advance_lane(lane) for lane in self.lanes]
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

    def _advance_lane(self, lane: _Lane) -> bool:
        """Advance a lane as far as possible without waiting; return whether it moved."""
        moved = False
        while lane.lane < self.plan.lanes:
            if lane.requests is None:
                self.posting = True
                lane.requests = self._post(lane)
                self.posting, moved = False, True
            if lane.requests and not self._is_complete(lane):
                return moved
            plan, (first, posts, bottom, body, turns) = self.plan, self.steps[lane.step]
            position, events = (lane.lane, lane.slot, lane.turn), lane.events
            self._record_time(events, ARRIVED)
            moved = True
            self.finished += 1
            lane.step, lane.turn = following(lane.step, lane.turn, body, turns)
            if lane.step == lane.end:
                lane.step, lane.lane = lane.first, lane.lane + plan.window
            lane.requests = None  # set before the reductions: Python handles an interrupt after them
            finish_step(self.tables.address, first, posts, bottom, *position)
            self._record_time(events, ENDED)
        return True

    @staticmethod
    def _is_complete(lane: _Lane) -> bool:
        """Return whether the messages of a lane's step are complete. Raises MPI.Exception, also for a short message."""
        # one by one, since MPICH's Testsome loses the errors of persistent requests
        status, requests = MPI.Status(), lane.requests or ()
        for i in list(lane.pending):
            try:
                if not requests[i].Test(status):
                    continue
            except MPI.Exception as error:
                raise mpi_error(error.Get_error_code()) from None
            if lane.pending.pop(i) not in (None, status.Get_count(_BYTE)):
                raise mpi_error(MPI.ERR_TRUNCATE)
        return not lane.pending

    def _post(self, lane: _Lane) -> Sequence[MPI.Request]:
        """Pack the messages of a lane's step and post them."""
        messages = self._messages(lane)
        lane.pending = {i: None if kind == SEND else n for i, (kind, _, n, _) in enumerate(messages)}
        self.messages += len(messages)
        self.bytes += sum(n for kind, _, n, _ in messages if kind == SEND)
        lane.events = self._record(lane, messages)
        message_tag = tag(self.sequence, lane.strand, lane.slot)
        if not self.is_persistent:
            return [
                (self.comm.Isend if kind == SEND else self.comm.Irecv)(_message(at, n), peer, message_tag)
                for kind, at, n, peer in messages
            ]
        requests = self.persistent.get((lane.step, lane.turn, lane.lane))
        if requests is None:
            requests = self.persistent[lane.step, lane.turn, lane.lane] = [
                (self.comm.Send_init if kind == SEND else self.comm.Recv_init)(_message(at, n), peer, message_tag)
                for kind, at, n, peer in messages
            ]
        MPI.Prequest.Startall(requests)
        return requests

    def _record(self, lane: _Lane, messages: Sequence[tuple[int, int, int, int]]) -> range:
        """Record messages before they are posted; return the indices of their events."""
        first = len(self.recorded)
        if self.is_recording and first >= MAX_EVENTS:
            self.lost += len(messages)
        elif self.is_recording:
            now = time.monotonic_ns()
            position = lane.strand, lane.slot, lane.lane, lane.step, lane.turn, now, 0, 0
            posted = [(kind, peer, n) for kind, _, n, peer in messages] or [(NO_MESSAGE, -1, 0)]
            self.recorded += [[*message, *position] for message in posted]
        return range(first, len(self.recorded))

    def _record_time(self, indices: range, column: int) -> None:
        for index in indices:
            self.recorded[index][column] = time.monotonic_ns()

    def record_events(self, on: bool) -> None:
        """Start or stop recording events, from the next message on."""
        self.is_recording = on

    def events(self) -> Events | None:
        """Return the events of the completed call; None if they are not recorded."""
        if not self.is_recording:
            return None
        rows = np.array(self.recorded, np.int64).reshape(-1, COLUMNS)
        return Events(self.plan, rows, self.lost, tag(self.sequence, 0, 0))

    def compiled_step(self) -> None:
        """Return None: compiled code cannot advance this plan."""

    def free(self) -> None:
        """Free the persistent requests."""
        nothing: dict[Any, Any] = {}
        persistent, self.persistent = self.persistent, nothing  # taken at once, so that only one thread frees them
        for requests in persistent.values():
            for request in requests:
                request.Free()

    def _messages(self, lane: _Lane) -> list[tuple[int, int, int, int]]:
        """Return (kind, address, bytes, peer) of each message of a lane's step; first do the work that precedes it."""
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
        """Return (messages posted, bytes sent, steps finished) so far."""
        return self.messages, int(self.bytes), self.finished

    def pending(self) -> list[PendingMessages]:
        """Return each unfinished lane's incomplete messages.

        Get_status would not do: in MPICH 5 and Intel MPI it makes a complete persistent request inactive.
        """
        return [
            pending_messages(
                self.plan, x.strand, x.lane, x.step, x.turn, [i not in x.pending for i in range(len(x.requests))]
            )
            for x in self.lanes
            if x.requests is not None
        ]
