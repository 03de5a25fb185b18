"""The compiled engine: one jitted, GIL-free walker over a plan's table, calling MPI by address.

It posts the same messages as the reference engine. It passes every argument of an MPI function as a 64-bit integer: an
int uses the same register, and a handle is an int on MPICH and Intel MPI and a pointer on Open MPI. mpi4py provides
what differs between libraries: sizes of requests and statuses, and the offsets of a status's error and byte count. A
self-test must pass before the engine is used.
"""

from __future__ import annotations

import ctypes
import time
from functools import lru_cache
from typing import Any

import numpy as np
from mpi4py import MPI

from ..kernels import clock
from ..kernels.cache import jit
from ..kernels.clock import clock_ns
from ..kernels.deferred import njit
from ..kernels.memory import (
    addresses,
    call_double,
    call_int,
    carray,
    halves,
    line,
    load_short,
    table,
)
from ..plans import rolled
from ..plans.plan import MAX_WINDOW, SEND, tag
from ..plans.rolled import BODY, PEER_STRIDE, TURNS, RolledPlan
from . import events, local_ops, patience
from .events import ARRIVED, COLUMNS, ENDED, NO_MESSAGE, RECORDING, Events
from .kernel_args import NO_KERNELS, KernelArgs
from .local_ops import finish, geometry, is_posted, prepare, total
from .protocol import CompiledStep, PendingMessages, mpi_error, pending_messages

name = "compiled"
following = njit(rolled.following)

WAITING, DONE = 0, 1
# columns of a lane's state, indices in `library` and `call`
LANE, STEP, COUNT, TURN, FIRST_EVENT = range(5)
ISEND, IRECV, TESTALL, WTIME, YIELD, USLEEP, CLOCK_GETTIME, BYTE, TRUNCATED = range(9)
REQUEST_SIZE, STATUS_SIZE, STATUS_ERROR, STATUS_COUNT = range(9, 13)
IDLE_SINCE = 3  # index in Execution.counters: when the walker became idle, in microseconds; 0 while it moves
EVENT_COUNT = 4  # index there too: the events of the call so far
# EVENTS: a table of CAPACITY rows; TIMESPEC: two words for clock_gettime
COMM, TAG, REQUESTS, STATUSES, FLAG, MAX_REQUESTS, EVENTS, CAPACITY, TIMESPEC = range(9)
STATE_COLUMNS = 5
_CLOCK = int(time.CLOCK_MONOTONIC)
_SOURCES = local_ops.__file__, patience.__file__, events.__file__, clock.__file__, *local_ops.INLINED
_MARK = 0x5A3C6971  # a byte count that occurs nowhere else in a status
# rows of Execution.table: the walker's parameters in order, and the state before the first step
ROWS, SEGMENTS, STEPS, STRANDS, GEOMETRY, BASES, KERNEL_ARGS, STATE, LIBRARY, CALL, FLAGS, PROGRESS, START = range(13)


@njit
def fits(rows, segments, geometry, top, posts, lane, library, call):  # type: ignore[no-untyped-def]
    """Return whether received messages have the expected lengths; MPI reports only longer ones."""
    count = call[STATUSES] + library[STATUS_COUNT]
    for r in range(top, posts):
        n = total(segments, geometry, rows[r, 2], rows[r, 3], lane)
        if is_posted(rows, r, n):
            if rows[r, 0] != SEND and load_short(count) != n:
                return False
            count += library[STATUS_SIZE]
    return True


@njit
def nanoseconds(library, call):  # type: ignore[no-untyped-def]
    """Return the time of the monotonic clock in nanoseconds."""
    return clock_ns(library[CLOCK_GETTIME], _CLOCK, call[TIMESPEC])


@njit
def record_message(call, library, progress, kind, peer, nbytes, strand, slot, lane, step, turn):  # type: ignore[no-untyped-def]
    """Record a message that is about to be posted, or a step without messages."""
    index = progress[EVENT_COUNT]
    progress[EVENT_COUNT] += 1
    if index < call[CAPACITY]:
        event = line(call[EVENTS] + 8 * COLUMNS * index, COLUMNS)
        event[0], event[1], event[2], event[3], event[4] = kind, peer, nbytes, strand, slot
        event[5], event[6], event[7], event[8], event[9], event[10] = lane, step, turn, nanoseconds(library, call), 0, 0


@njit
def record_time(call, first, count, column, now):  # type: ignore[no-untyped-def]
    """Record when the messages of a step arrived, or when its local work ended."""
    for index in range(first, min(first + max(count, 1), call[CAPACITY])):
        event = line(call[EVENTS] + 8 * COLUMNS * index, COLUMNS)
        event[column] = now


@njit
def walk(  # type: ignore[no-untyped-def]  # noqa: C901 - one compiled loop
    rows, segments, steps, strands, geometry, bases, kernel_args, state, library, call, flag, progress, seconds
):
    """Advance every lane until all are done, or none moves and `seconds` have passed.

    Return DONE, WAITING, or minus an MPI error code.
    """
    lanes, window = geometry[1], geometry[2]
    until, idle, sleeps = -1.0, 0, False
    while True:
        moved, alive = False, False
        for unit in range(state.shape[0]):
            strand, slot = unit // window, unit % window
            first, end = strands[strand, 0], strands[strand, 1]
            lane = state[unit, LANE]
            requests = call[REQUESTS] + unit * call[MAX_REQUESTS] * library[REQUEST_SIZE]
            while lane < lanes:
                step, turn = state[unit, STEP], state[unit, TURN]
                top, posts, bottom = steps[step, 0], steps[step, 1], steps[step, 2]
                if state[unit, COUNT] < 0:
                    count = 0
                    state[unit, FIRST_EVENT] = progress[EVENT_COUNT] if call[CAPACITY] != 0 else -1
                    for r in range(top, posts):
                        kind = rows[r, 0]
                        at, n = prepare(rows, segments, geometry, bases, r, lane, slot, turn, kernel_args)
                        if not is_posted(rows, r, n):
                            continue
                        peer = rows[r, 1] + rows[r, PEER_STRIDE] * turn
                        if state[unit, FIRST_EVENT] >= 0:  # before it is posted: it may arrive at once
                            record_message(call, library, progress, kind, peer, n, strand, slot, lane, step, turn)
                        function = library[ISEND] if kind == SEND else library[IRECV]
                        request = requests + count * library[REQUEST_SIZE]
                        code = call_int(
                            function,
                            (
                                at,
                                n,
                                library[BYTE],
                                peer,
                                call[TAG] + strand * MAX_WINDOW + slot,
                                call[COMM],
                                request,
                            ),
                        )
                        if code:
                            return -code
                        count += 1
                        progress[0] += 1
                        progress[1] += n if kind == SEND else 0
                    if count == 0 and state[unit, FIRST_EVENT] >= 0:
                        record_message(call, library, progress, NO_MESSAGE, -1, 0, strand, slot, lane, step, turn)
                    state[unit, COUNT] = count
                    moved = True
                if state[unit, COUNT] > 0:
                    code = call_int(library[TESTALL], (state[unit, COUNT], requests, call[FLAG], call[STATUSES]))
                    if code:
                        return -code
                    if flag[0] == 0:
                        break
                    if not fits(rows, segments, geometry, top, posts, lane, library, call):
                        return -library[TRUNCATED]
                first_event = state[unit, FIRST_EVENT]
                if first_event >= 0:
                    record_time(call, first_event, state[unit, COUNT], ARRIVED, nanoseconds(library, call))
                finish(rows, segments, geometry, bases, top, posts, bottom, lane, slot, turn, kernel_args)
                if first_event >= 0:
                    record_time(call, first_event, state[unit, COUNT], ENDED, nanoseconds(library, call))
                progress[2] += 1
                moved = True
                state[unit, COUNT] = -1
                step, turn = following(step, turn, steps[step, BODY], steps[step, TURNS])
                if step == end:
                    step, lane = first, lane + window
                    state[unit, LANE] = lane
                state[unit, STEP], state[unit, TURN] = step, turn
            alive |= lane < lanes
        if not alive:
            return DONE
        if moved:
            idle, sleeps = 0, False
            progress[IDLE_SINCE] = 0
            continue
        if seconds <= 0.0:
            return WAITING
        idle += 1
        if sleeps:
            call_int(library[USLEEP], (patience.SLEEP,))
        elif idle > patience.PASSES:
            call_int(library[YIELD], (0,))
        if sleeps or idle % patience.CLOCK_PASSES == 0:
            now = call_double(library[WTIME], (0,))
            if progress[IDLE_SINCE] == 0:
                progress[IDLE_SINCE] = int(now * 1e6)
            sleeps = now * 1e9 - progress[IDLE_SINCE] * 1e3 > patience.SPIN
            if until < 0.0:
                until = now + seconds
            elif now >= until:
                return WAITING


@njit
def line_of(tables, which):  # type: ignore[no-untyped-def]
    """Return one of an execution's arrays as a line of words."""
    return line(tables[which, 0], tables[which, 1])


@njit
def walk_tables(tables, seconds):  # type: ignore[no-untyped-def]
    """Call walk() on the arrays listed in Execution.table."""
    return walk(
        table(tables[ROWS, 0], tables[ROWS, 1], 6),
        table(tables[SEGMENTS, 0], tables[SEGMENTS, 1], 4),
        table(tables[STEPS, 0], tables[STEPS, 1], 5),
        table(tables[STRANDS, 0], tables[STRANDS, 1], 2),
        line_of(tables, GEOMETRY),
        line_of(tables, BASES),
        line_of(tables, KERNEL_ARGS),
        table(tables[STATE, 0], tables[STATE, 1], STATE_COLUMNS),
        line_of(tables, LIBRARY),
        line_of(tables, CALL),
        carray(halves(tables[FLAGS, 0]), (1,)),
        line_of(tables, PROGRESS),
        seconds,
    )


@jit("int64(int64, int64)", also=_SOURCES, in_python=False)
def advance(tables, nanoseconds):  # type: ignore[no-untyped-def]
    """Call walk_tables() on the Execution.table at an address; the fast path also calls this, by its address."""
    return walk_tables(table(tables, START + 1, 2), nanoseconds * 1e-9)


@lru_cache(maxsize=1)
def library() -> np.ndarray:
    """Return the addresses, constants and sizes of the MPI library, at the indices ISEND to STATUS_COUNT."""
    mpi, c = ctypes.CDLL(MPI.__file__), ctypes.CDLL(None)
    functions = [mpi.MPI_Isend, mpi.MPI_Irecv, mpi.MPI_Testall, mpi.MPI_Wtime, c.sched_yield, c.usleep, c.clock_gettime]
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
    codes = [handle_of(MPI.BYTE), MPI.ERR_TRUNCATE]
    sizes = [MPI._sizeof(MPI.Request), MPI._sizeof(MPI.Status)]
    marked = MPI.Status()
    marked.Set_error(MPI.ERR_TRUNCATE)
    counted = MPI.Status()
    counted.Set_elements(MPI.BYTE, _MARK)
    return np.array([*addresses, *codes, *sizes, _offset(marked, MPI.ERR_TRUNCATE), _offset(counted, _MARK)], np.int64)


def handle_of(mpi_object: Any) -> int:
    """Return a handle as a signed 64-bit integer."""
    return ctypes.c_int64(MPI._handleof(mpi_object)).value


def _offset(status: MPI.Status, value: int) -> int:
    """Return the byte offset of a 32-bit value in a status, which must contain it once."""
    words = np.frombuffer(ctypes.string_at(MPI._addressof(status), MPI._sizeof(status)), np.int32)
    (index,) = np.flatnonzero(words == value)
    return int(index) * 4


class Execution:
    """One plan in progress, as arrays for the walker. Once done, it may be bound again."""

    def __init__(self, plan: RolledPlan, comm: MPI.Comm, repeated: bool = False) -> None:
        self.plan, self.library, self.geometry = plan, library(), geometry(plan)
        self.bases, self.counters, self.flag = np.zeros(3, np.int64), np.zeros(5, np.int64), np.zeros(1, np.int32)
        self.start = self._start()
        self.state = self.start.copy()
        max_requests = max(1, plan.most_messages)
        self.requests = np.empty(len(self.state) * max_requests * int(self.library[REQUEST_SIZE]), np.uint8)
        self.statuses = np.zeros(max_requests * int(self.library[STATUS_SIZE]), np.uint8)
        self.timespec = np.zeros(2, np.int64)
        *buffers, timespec = map(MPI.Get_address, (self.requests, self.statuses, self.flag, self.timespec))
        self.call = np.array([handle_of(comm), 0, *buffers, max_requests, 0, 0, timespec], np.int64)
        self.kernel_args = np.array(NO_KERNELS, np.int64)
        arrays = plan.rows, plan.segments, plan.steps, plan.strands, self.geometry, self.bases, self.kernel_args
        self.table = addresses(*arrays, self.state, self.library, self.call, self.flag, self.counters, self.start)
        self.at = int(MPI.Get_address(self.table))
        self.events_table: np.ndarray | None = None
        RECORDING.add(self)

    def _start(self) -> np.ndarray:
        """Return every lane's state before its first step."""
        plan = self.plan
        spans = np.repeat(plan.strands, plan.window, axis=0)
        state = np.zeros((len(spans), STATE_COLUMNS), np.int64)
        state[:, LANE] = np.tile(np.arange(plan.window), len(plan.strands))
        state[spans[:, 0] == spans[:, 1], LANE] = plan.lanes
        state[:, STEP], state[:, COUNT], state[:, FIRST_EVENT] = spans[:, 0], -1, -1
        return state

    def bind(self, sequence: int, bases: tuple[int, int, int], kernel_args: KernelArgs = NO_KERNELS) -> None:
        """Prepare to run with this sequence number, memory and kernels."""
        self.bases[:] = bases
        self.call[TAG], self.kernel_args[:] = tag(sequence, 0, 0), kernel_args
        self.state[:] = self.start
        self.counters[:] = 0

    def advance(self, seconds: float) -> bool:
        """Progress until done, or until nothing moves and `seconds` have passed; return True when done."""
        code: int = advance(self.at, int(seconds * 1e9))
        if code < 0:
            raise self.error(-code)
        return code == DONE

    def compiled_step(self) -> CompiledStep:
        """Return the addresses by which compiled code advances this plan."""
        return CompiledStep(advance.address, self.at, int(MPI.Get_address(self.counters)), self.error)

    def error(self, code: int) -> Exception:
        """Return the exception for an error code of the walker."""
        offset, size = int(self.library[STATUS_ERROR]), int(self.library[STATUS_SIZE])
        in_statuses = (int(self.statuses[k : k + 4].view(np.int32)[0]) for k in range(offset, len(self.statuses), size))
        return mpi_error(code, in_statuses)

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (messages posted, bytes sent, steps finished) so far."""
        return tuple(self.counters[:IDLE_SINCE].tolist())

    def free(self) -> None:
        """Free persistent requests; this engine has none."""

    def record_events(self, on: bool) -> None:
        """Start or stop recording events. The table is never freed, since the walker may run meanwhile."""
        if on and self.events_table is None:
            self.events_table = np.empty((events.capacity(self.plan), COLUMNS), np.int64)
            self.call[EVENTS] = MPI.Get_address(self.events_table)
        self.call[CAPACITY] = len(self.events_table) if on and self.events_table is not None else 0

    def events(self) -> Events | None:
        """Return the events of the completed call; None if they are not recorded."""
        if self.events_table is None or not self.call[CAPACITY]:
            return None
        count, capacity = int(self.counters[EVENT_COUNT]), len(self.events_table)
        rows = self.events_table[: min(count, capacity)].copy()
        return Events(self.plan, rows, max(0, count - capacity), int(self.call[TAG]))

    def pending(self) -> list[PendingMessages]:
        """Return each unfinished lane's incomplete messages."""
        return [
            pending_messages(self.plan, unit // self.plan.window, lane, step, turn, self._completed(unit, count))
            for unit, (lane, step, count, turn, _) in enumerate(self.state.tolist())
            if lane < self.plan.lanes and count >= 0
        ]

    def _completed(self, unit: int, count: int) -> list[bool]:
        size = int(self.library[REQUEST_SIZE])
        handles = self.requests.view(np.uint32 if size == 4 else np.uint64)
        first = unit * max(1, self.plan.most_messages)
        return [MPI.Request.fromhandle(int(h)).Get_status() for h in handles[first : first + count]]
