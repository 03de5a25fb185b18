"""The driver: compiled code that advances all plans of the table, in a thread of its own, and in threads that wait."""

from __future__ import annotations

from ..engines import patience
from ..kernels import memory
from ..kernels.background import Request, instead_of
from ..kernels.cache import jit
from ..kernels.deferred import njit
from ..kernels.memory import call_double, call_int, call_long, compare_and_set, line, octets
from . import table
from .table import (
    AWAKE,
    BEGUN,
    BYTES,
    CLOCK,
    CONTENDED,
    CONTROL,
    DELAYED,
    DELAYS,
    DRAIN,
    ENDED,
    IDLE_SINCE,
    LOOKED,
    PASSES,
    POLL,
    POLL_ARGUMENT,
    PREAD,
    READ,
    RESTS,
    SLEEP,
    SLEEPS,
    STOP,
    TAKEN_UNTIL,
    TIME,
    UNDER_WAY,
    USLEEP,
    WAITERS,
    WAKE,
    WORKS_ON,
    WRITE,
    YIELD,
    moves,
    pass_over,
)

LEAST, PATIENT, MOST = 50_000, 1_000_000, 8_000_000  # nanoseconds between two passes, PATIENT at least if contended
LINGER = 50_000_000  # nanoseconds after the last plan in which the thread looks for another by itself
WATCH = 100_000_000  # nanoseconds after which Python is to look for stalls
_SHARE = 10  # processors count as taken if the main thread waits for one for more than this part of the time
_REMEMBERED = 1_000_000_000  # nanoseconds for which they count as taken after that
_TIMES = 100  # nanoseconds between two passes then, for each that the last one took in which anything moved
_WINDOW = 2_000_000  # nanoseconds over which its waiting is measured
_SOURCES = memory.__file__, patience.__file__, table.__file__


@njit
def now(control):  # type: ignore[no-untyped-def]
    """Return the time in nanoseconds."""
    return int(call_double(control[CLOCK], (0,)) * 1e9)


@njit
def sleep(control, nanoseconds):  # type: ignore[no-untyped-def]
    """Sleep so long, for ever if negative, or until a byte is in the pipe."""
    time = line(control[TIME], 2)
    time[0], time[1] = nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000
    if call_int(control[POLL], (control[POLL_ARGUMENT], 1, control[TIME] if nanoseconds >= 0 else 0, 0)) > 0:
        call_long(control[READ], (control[WAKE], control[BYTES], DRAIN))


@njit
def delay_of_main(control):  # type: ignore[no-untyped-def]
    """Return the nanoseconds that the main thread was ready to run and had no processor; 0 where that is unknown."""
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
    """Find out whether processors are taken, by how long the main thread has waited for one; at is the time."""
    if at - control[LOOKED] > _WINDOW:
        delay = delay_of_main(control)
        if (delay - control[DELAYED]) * _SHARE > at - control[LOOKED]:
            control[TAKEN_UNTIL] = at + _REMEMBERED
        control[LOOKED], control[DELAYED] = at, delay
    control[CONTENDED] = at < control[TAKEN_UNTIL]


@njit
def sleep_without_plans(control_at, linger):  # type: ignore[no-untyped-def]
    """Sleep while nothing is in flight: for some time, or until the driver is woken."""
    control = line(control_at, CONTROL)
    if linger:
        control[SLEEP] = RESTS
        sleep(control, MOST)
    else:
        compare_and_set(control_at + 8 * SLEEP, AWAKE, SLEEPS)  # before it looks again: see Row.put
        if pass_over(control, False)[0] == 0 and control[STOP] == 0:
            sleep(control, -1)
    control[SLEEP] = AWAKE


@jit("void(int64)", also=_SOURCES, in_python=False)
def drive(control_at):  # type: ignore[no-untyped-def]
    """Advance all plans until STOP is set, and tell Python of each that ends, by a byte in a pipe.

    After a pass in which nothing moved the next one is later, by half of the time since: this way a wait of any length
    takes few passes, and none ends much later than it could. The same holds while another thread waits, since that
    advances everything, too. Where the main thread has to wait for a processor, passes are 1 to 8 ms apart, by what
    the last one took: they cost the program little, and still hide the time of a network, if no copies.
    """
    control = line(control_at, CONTROL)
    last = now(control)
    control[LOOKED], control[DELAYED], control[TAKEN_UNTIL], control[BEGUN] = last, delay_of_main(control), 0, 1
    pause, cost, idle, active, notified = LEAST, 0, 0, 0, 0
    while control[STOP] == 0:
        at = now(control)
        note_contention(control, at)
        gap = min(MOST, max(PATIENT, _TIMES * cost)) if control[CONTENDED] else pause
        waited_for = control[WAITERS] > 0
        advances = at - last >= (MOST if waited_for else gap)
        alive, moved, ended = pass_over(control, advances)
        if advances:
            last = now(control)
            cost = last - at if moved else cost
            control[PASSES] += alive > 0
            if ended or (alive > 0 and not waited_for and last - notified > WATCH):
                notified = last
                call_long(control[WRITE], (control[ENDED], control[BYTES], 1))
        if alive == 0:
            pause, idle, last = LEAST, 0, at - LEAST
            linger = at - active < LINGER and (control[WORKS_ON] == 0 or control[CONTENDED])
            sleep_without_plans(control_at, linger)
            continue
        active = at
        idle = idle + 1 if advances and not (moved or waited_for) else idle
        if idle > 1:  # the program works, or waits for a list of requests by MPI's own Waitall
            control[WORKS_ON] = 1
        pause = LEAST if moved else min(MOST, pause + pause // 2)
        rest = gap if control[CONTENDED] else pause
        control[SLEEP] = RESTS if rest > 10 * LEAST else AWAKE
        sleep(control, rest)
        control[SLEEP] = AWAKE


@jit("int64(int64, int64, int64, int64, int64)", also=_SOURCES, in_python=False)
def wait(control_at, function, argument, counters, nanoseconds):  # type: ignore[no-untyped-def]  # noqa: C901 - one loop
    """Advance a plan that has no row, and all in the table, until that one has ended, at most so long; return its code.

    Without a function, wait until one of the table has ended. This is for a thread that waits: it yields, and sleeps.
    """
    control = line(control_at, CONTROL)
    if function != 0 and pass_over(control, False)[0] == 0:
        return call_long(function, (argument, nanoseconds))
    until, passes, sleeps, code = now(control) + nanoseconds, 0, False, UNDER_WAY
    since = 0 if function != 0 else control[IDLE_SINCE]
    while True:
        before = 0
        if function != 0:
            before = moves(counters)
            code = call_long(function, (argument, 0))
            if code != UNDER_WAY:
                return code
        alive, moved, ended = pass_over(control, True)
        if function == 0:
            if ended or alive == 0:
                return code
        else:
            moved |= moves(counters) != before
            if ended:  # the caller returns to its program, so the Python thread completes it
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

    Raises NotCompiled instead, if they are compiled in the background.
    """
    with instead_of(Request(__name__, "prepare")):
        for function in (table.put, table.advance, table.hold, table.release, table.remove, wait, drive):
            function.prepare()
