"""Advance all plans of the table in compiled code: in a thread of its own, the driver, and in threads that wait."""

from __future__ import annotations

from ..engines import patience
from ..kernels import clock, memory
from ..kernels.background import Request, instead_of
from ..kernels.cache import jit
from ..kernels.deferred import njit
from ..kernels.memory import call_double, call_int, call_long, compare_and_set, line, octets
from . import table, turns
from .table import (
    ASLEEP,
    AWAKE,
    BEGUN,
    BYTES,
    CLOCK,
    COMPUTES,
    CONTENDED,
    CONTENDED_UNTIL,
    CONTROL,
    DELAY,
    DELAY_READ_AT,
    DELAYS,
    DOZING,
    DRAIN,
    ENDED,
    IDLE_SINCE,
    IN_PROGRESS,
    PASSES,
    POLL,
    POLL_ARGUMENT,
    PREAD,
    READ,
    SLEEP,
    STOP,
    TIME,
    USLEEP,
    WAITERS,
    WAKE,
    WRITE,
    YIELD,
    moves,
    pass_over,
)

MIN_PAUSE, MIN_CONTENDED_PAUSE, MAX_PAUSE = 50_000, 1_000_000, 8_000_000  # nanoseconds between passes
LINGER = 50_000_000  # nanoseconds after the last plan in which the driver looks for another without being woken
STALL_CHECK = 100_000_000  # nanoseconds after which the driver wakes the Python thread to check for stalls
_CONTENDED_SHARE = 10  # contended: the main thread waits for a processor for more than 1 / 10 of the time
_CONTENDED_FOR = 1_000_000_000  # nanoseconds for which processors count as contended after that
_PAUSE_PER_COST = 100  # if contended: nanoseconds between passes for each that the last pass with a move took
_DELAY_WINDOW = 2_000_000  # nanoseconds over which the main thread's delay is measured
_SOURCES = memory.__file__, clock.__file__, patience.__file__, table.__file__, turns.__file__


@njit
def now(control):  # type: ignore[no-untyped-def]
    """Return the time of MPI_Wtime in nanoseconds."""
    return int(call_double(control[CLOCK], (0,)) * 1e9)


@njit
def sleep(control, nanoseconds):  # type: ignore[no-untyped-def]
    """Sleep until a byte is in the pipe, or so many nanoseconds have passed; a negative number is no limit."""
    time = line(control[TIME], 2)
    time[0], time[1] = nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000
    if call_int(control[POLL], (control[POLL_ARGUMENT], 1, control[TIME] if nanoseconds >= 0 else 0, 0)) > 0:
        call_long(control[READ], (control[WAKE], control[BYTES], DRAIN))


@njit
def delay_of_main(control):  # type: ignore[no-untyped-def]
    """Return the nanoseconds in which the main thread was ready to run without a processor; 0 if unknown."""
    if control[DELAYS] < 0:
        return 0
    n = call_long(control[PREAD], (control[DELAYS], control[BYTES], DRAIN, 0))
    text, value, field = octets(control[BYTES], DRAIN), 0, 0
    for i in range(n):
        if text[i] == 32:  # a space: the second number is the delay
            field += 1
        elif field == 1:
            value = 10 * value + text[i] - 48
    return value


@njit
def note_contention(control, at):  # type: ignore[no-untyped-def]
    """Set CONTENDED if the main thread has waited for a processor for long; `at` is the time."""
    if at - control[DELAY_READ_AT] > _DELAY_WINDOW:
        delay = delay_of_main(control)
        if (delay - control[DELAY]) * _CONTENDED_SHARE > at - control[DELAY_READ_AT]:
            control[CONTENDED_UNTIL] = at + _CONTENDED_FOR
        control[DELAY_READ_AT], control[DELAY] = at, delay
    control[CONTENDED] = at < control[CONTENDED_UNTIL]


@njit
def sleep_without_plans(control_at, linger):  # type: ignore[no-untyped-def]
    """Sleep while no plan is in the table: for MAX_PAUSE if `linger`, else until the driver is woken."""
    control = line(control_at, CONTROL)
    if linger:
        control[SLEEP] = DOZING
        sleep(control, MAX_PAUSE)
    else:
        compare_and_set(control_at + 8 * SLEEP, AWAKE, ASLEEP)  # before the last look at the table: see Row.put
        if pass_over(control, False, False)[0] == 0 and control[STOP] == 0:
            sleep(control, -1)
    control[SLEEP] = AWAKE


@jit("void(int64)", also=_SOURCES, in_python=False)
def drive(control_at):  # type: ignore[no-untyped-def]
    """Advance all plans until STOP is set; write a byte to a pipe whenever a plan ends.

    After a pass without a move, the pause before the next pass grows by half, up to MAX_PAUSE. So a long wait takes few
    passes, and a plan ends little later than it could. While another thread waits, that thread advances everything, and
    the driver makes a pass every MAX_PAUSE. If processors are contended, passes are 1 to 8 ms apart, in proportion to
    the duration of the last pass with a move. They cost the program little and still overlap the time of a network.
    """
    control = line(control_at, CONTROL)
    last = now(control)
    control[DELAY_READ_AT], control[DELAY] = last, delay_of_main(control)
    control[CONTENDED_UNTIL], control[BEGUN] = 0, 1
    pause, cost, idle, active, notified = MIN_PAUSE, 0, 0, 0, 0
    while control[STOP] == 0:
        at = now(control)
        note_contention(control, at)
        gap = min(MAX_PAUSE, max(MIN_CONTENDED_PAUSE, _PAUSE_PER_COST * cost)) if control[CONTENDED] else pause
        waited_for = control[WAITERS] > 0
        advances = at - last >= (MAX_PAUSE if waited_for else gap)
        alive, moved, ended = pass_over(control, advances, True)
        if advances:
            last = now(control)
            cost = last - at if moved else cost
            control[PASSES] += alive > 0
            if ended or (alive > 0 and not waited_for and last - notified > STALL_CHECK):
                notified = last
                call_long(control[WRITE], (control[ENDED], control[BYTES], 1))
        if alive == 0:
            pause, idle, last = MIN_PAUSE, 0, at - MIN_PAUSE
            linger = at - active < LINGER and (control[COMPUTES] == 0 or control[CONTENDED])
            sleep_without_plans(control_at, linger)
            continue
        active = at
        idle = idle + 1 if advances and not (moved or waited_for) else idle
        if idle > 1:  # the program computes, or waits in MPI's own Waitall
            control[COMPUTES] = 1
        pause = MIN_PAUSE if moved else min(MAX_PAUSE, pause + pause // 2)
        rest = gap if control[CONTENDED] else pause
        control[SLEEP] = DOZING if rest > 10 * MIN_PAUSE else AWAKE
        sleep(control, rest)
        control[SLEEP] = AWAKE


@jit("int64(int64, int64, int64, int64, int64)", also=_SOURCES, in_python=False)
def wait(control_at, function, argument, counters, nanoseconds):  # type: ignore[no-untyped-def]  # noqa: C901 - one loop
    """Advance a plan without a row, and all plans in the table, until the former has ended; return its code.

    Return IN_PROGRESS after so many nanoseconds. With function == 0, wait until a plan in the table has ended. A thread
    that waits calls this: it yields, and later sleeps, between passes without a move.
    """
    control = line(control_at, CONTROL)
    if function != 0 and pass_over(control, False, False)[0] == 0:
        return call_long(function, (argument, nanoseconds))
    until, passes, sleeps, code = now(control) + nanoseconds, 0, False, IN_PROGRESS
    since = 0 if function != 0 else control[IDLE_SINCE]
    while True:
        before = 0
        if function != 0:
            before = moves(counters)
            code = call_long(function, (argument, 0))
            if code != IN_PROGRESS:
                return code
        alive, moved, ended = pass_over(control, True, False)
        if function == 0:
            if ended or alive == 0:
                return code
        else:
            moved |= moves(counters) != before
            if ended:  # the caller may return to its program, so the Python thread completes that call
                call_long(control[WRITE], (control[ENDED], control[BYTES], 1))
        if moved:
            passes, sleeps, since = 0, False, 0
            continue
        passes += 1
        if sleeps:
            call_int(control[USLEEP], (patience.SLEEP,))
        elif passes > patience.PASSES:
            call_int(control[YIELD], (0,))
        if sleeps or function != 0 or passes % patience.CLOCK_PASSES == 0:
            at = now(control)
            if since == 0:
                since = at
            sleeps = at - since > patience.SPIN
            if at >= until:
                if function == 0:
                    control[IDLE_SINCE] = since
                return code


def prepare() -> None:
    """Compile the functions of the table and of the driver, or load them.

    Raises NotCompiled if they are compiled in the background instead.
    """
    with instead_of(Request(__name__, "prepare")):
        for function in (table.put, table.advance, table.hold, table.release, table.remove, wait, drive):
            function.prepare()
