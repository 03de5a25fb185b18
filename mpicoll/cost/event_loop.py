"""The compiled event loop of a simulation on a network without a topology: what simulation.py plays, in arrays.

It takes the same events in the same order as the loop in Python, so that both compute the same times to the bit. Of a
uniform algorithm it simulates one rank for all, if no two ranks share a node's link, or all are on one node.

The loop has three arrays. Each begins with a header, which has scalars and where the sections begin:
    w   words that do not change: strands, steps, ops and messages, see messages.py
    d   words of this simulation: nodes, kinds of messages, lanes, and the heap of events
    f   float64, in µs

A lane is a chunk of a strand in flight: strand * window + chunk % window. A side is a link in one direction, or a rank
that sends or receives at a level: (2 * is far + sends) * ranks + the rank or node.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np

from ..kernels import background
from ..kernels.background import NotCompiled, Request
from ..kernels.cache import native
from ..kernels.deferred import njit
from ..kernels.memory import address_of, carray
from ..schedules.schedule import Schedule
from . import messages as message_columns
from .chunks import MOST_COMPILED, check_messages, most_messages
from .messages import (
    END_STEP,
    FIRST_STEP,
    MESSAGE_COLUMNS,
    MESSAGES,
    OPS,
    RANK,
    RECEIVE_PLACE,
    RECEIVER,
    SEND_PLACE,
    SENDER,
    STEPS,
    STRAND_COLUMNS,
    STRANDS,
    Messages,
    messages_of,
)
from .network import Network
from .shares import UnequalBlocks

FEW_MESSAGES = 50_000  # up to which the loop in Python serves while this is compiled in the background: 2 seconds

# the header of d: scalars, then where the sections of d and of f begin
PUSHED, PENDING, RECEIVED, WINDOW, CHUNKS, RANKS, NEAR_PORTS, FAR_PORTS, MOST_PORTS, COUNT = range(10)
SIZED, SIZED_STEPS = 10, 11  # messages and, in every further chunk, steps that have sizes of their own
NODES, KINDS, LANES, SIDE_COUNTS, STATES, KEYS, EVENTS = range(12, 19)
LOCAL, TRANSFER, LANE_ENDS, FREE, RECENT, RECENT_BEGIN, BUSY, ENDS, ARRIVED, TIMES, D_HEADER = range(19, 30)
DELAYS, GAPS, F_HEADER = 0, 4, 6  # the header of f: latencies by 2 * is far + is long, gaps by is far

BEGIN, LEAVE, ARRIVE, COMPUTE = range(4)  # kinds of events, the lowest bits of an event
NUMBER_BITS = 42  # of a key: the number of the event; its place is above
STEP, CHUNK, MISSING, LANE_COLUMNS = range(4)  # columns of lanes
LONG, FAR, EMPTY = 1, 2, 4  # bits of the kind of a message; plans send no empty ones
HAS_SENDER, HAS_RECEIVER, RECEIVER_FIRST, HAS_ARRIVED = 1, 2, 4, 8  # bits of its state


@njit
def push(d, f, at, place, event):  # type: ignore[no-untyped-def]
    """Add an event to the heap, in the order of time, place and number."""
    times, keys, events = d[TIMES], d[KEYS], d[EVENTS]
    key = (place + 1 << NUMBER_BITS) | d[PUSHED]
    i = d[PENDING]
    d[PUSHED] += 1
    d[PENDING] += 1
    while i:
        above = (i - 1) >> 1
        if f[times + above] < at or (f[times + above] == at and d[keys + above] < key):
            break
        f[times + i], d[keys + i], d[events + i] = f[times + above], d[keys + above], d[events + above]
        i = above
    f[times + i], d[keys + i], d[events + i] = at, key, event


@njit
def pop(d, f):  # type: ignore[no-untyped-def]
    """Take the first event off the heap."""
    times, keys, events = d[TIMES], d[KEYS], d[EVENTS]
    end = d[PENDING] - 1
    d[PENDING] = end
    at, key, event = f[times + end], d[keys + end], d[events + end]
    i, below = 0, 1
    while below < end:
        left, right = f[times + below], f[times + below + 1] if below + 1 < end else np.inf
        if right < left or (right == left and d[keys + below + 1] < d[keys + below]):
            below, left = below + 1, right
        if at < left or (at == left and key < d[keys + below]):
            break
        f[times + i], d[keys + i], d[events + i] = left, d[keys + below], d[events + below]
        i, below = below, 2 * below + 1
    f[times + i], d[keys + i], d[events + i] = at, key, event


@njit
def through(d, f, side, ports, at, transfer):  # type: ignore[no-untyped-def]
    """Return when a message that waits at a link from a time on has passed it, by the port that is free first."""
    first = base = d[FREE] + side * d[MOST_PORTS]
    for port in range(base + 1, base + ports):
        if f[port] < f[first]:
            first = port
    f[first] = max(f[first], at) + transfer
    return f[first]


@njit
def after(d, f, side, ports, gap):  # type: ignore[no-untyped-def]
    """Return when a rank may begin to send or receive a message that is not the first of a step."""
    count = d[d[SIDE_COUNTS] + side]
    if count == 0:
        return 0.0
    free = 0.0
    if count >= ports:
        base = d[RECENT] + side * d[MOST_PORTS]
        free = f[base]
        for port in range(base + 1, base + ports):
            free = min(free, f[port])
    return max(f[d[RECENT_BEGIN] + side], free) + gap


@njit
def pass_link(w, d, f, i, sends, at, place):  # type: ignore[no-untyped-def]
    """Return when a message has passed the link of its sender or receiver, at which it is from a time on."""
    message = i % d[COUNT]
    sized = i % d[SIZED]
    far = d[d[KINDS] + sized] >> 1
    transfer, ports = f[d[TRANSFER] + sized], d[NEAR_PORTS + far]
    strand = w[w[MESSAGES] + message * MESSAGE_COLUMNS + (SENDER if sends else RECEIVER)]
    rank = w[w[STRANDS] + strand * STRAND_COLUMNS + RANK]
    first = (2 * far + sends) * d[RANKS]
    passed = through(d, f, first + (d[d[NODES] + rank] if far else rank), ports, at, transfer)
    side = first + rank
    if place:
        passed = max(passed, after(d, f, side, ports, f[GAPS + far]) + transfer)
    count = d[d[SIDE_COUNTS] + side]
    f[d[RECENT] + side * d[MOST_PORTS] + count % ports] = passed
    f[d[RECENT_BEGIN] + side] = passed - transfer
    d[d[SIDE_COUNTS] + side] = count + 1
    return passed


@njit
def done(w, d, f, i, column, at):  # type: ignore[no-untyped-def]
    """End a message of a chunk in the step that sends or receives it; the last one ends the messages of the step."""
    chunk, message = i // d[COUNT], i % d[COUNT]
    lane = w[w[MESSAGES] + message * MESSAGE_COLUMNS + column] * d[WINDOW] + chunk % d[WINDOW]
    missing, end = d[LANES] + lane * LANE_COLUMNS + MISSING, d[LANE_ENDS] + lane
    d[missing] -= 1
    f[end] = max(f[end], at)
    if d[missing] == 0:
        push(d, f, f[end], -1, lane << 2 | COMPUTE)


@njit
def leave(w, d, f, i, at):  # type: ignore[no-untyped-def]
    """Send a message through the link of its sender."""
    message, sized = i % d[COUNT], i % d[SIZED]
    kind = d[d[KINDS] + sized]
    left = pass_link(w, d, f, i, 1, at, w[w[MESSAGES] + message * MESSAGE_COLUMNS + SEND_PLACE])
    push(d, f, left - f[d[TRANSFER] + sized] + f[DELAYS + kind], -1, i << 2 | ARRIVE)
    if not kind & LONG:
        done(w, d, f, i, SENDER, left)


@njit
def arrive(w, d, f, i, at):  # type: ignore[no-untyped-def]
    """Receive a message, whose first byte is there, through the link of its receiver."""
    message = i % d[COUNT]
    state, long = d[d[STATES] + i], d[d[KINDS] + i % d[SIZED]] & LONG
    place = w[w[MESSAGES] + message * MESSAGE_COLUMNS + RECEIVE_PLACE] if state & HAS_RECEIVER else 0
    arrived = f[d[ARRIVED] + i] = pass_link(w, d, f, i, 0, at, place)
    d[d[STATES] + i] = state | HAS_ARRIVED
    d[RECEIVED] += 1
    if long and not state & RECEIVER_FIRST:
        done(w, d, f, i, SENDER, arrived)
    if state & HAS_RECEIVER:
        done(w, d, f, i, RECEIVER, arrived)
    if long and state & RECEIVER_FIRST:
        done(w, d, f, i, SENDER, arrived)


@njit
def post(w, d, f, i, sends, at):  # type: ignore[no-untyped-def]
    """Post one side of a message: a short one leaves with its sender, a long one when both sides are posted."""
    message = i % d[COUNT]
    state = d[d[STATES] + i]
    posted = HAS_SENDER if sends else HAS_RECEIVER if state else HAS_RECEIVER | RECEIVER_FIRST
    d[d[STATES] + i] = state | posted
    if state if d[d[KINDS] + i % d[SIZED]] & LONG else sends:
        place = w[w[MESSAGES] + message * MESSAGE_COLUMNS + SEND_PLACE]
        if place:
            push(d, f, at, place, i << 2 | LEAVE)
        else:
            leave(w, d, f, i, at)
    elif state & HAS_ARRIVED:
        done(w, d, f, i, RECEIVER, f[d[ARRIVED] + i])


@njit
def begin(w, d, f, lane, at):  # type: ignore[no-untyped-def]
    """Begin a lane's next step, or end it; another chunk begins where one has ended."""
    strand, row = w[STRANDS] + lane // d[WINDOW] * STRAND_COLUMNS, d[LANES] + lane * LANE_COLUMNS
    step = d[row + STEP]
    if step == w[strand + END_STEP]:
        end = d[ENDS] + w[strand + RANK]
        f[end] = max(f[end], at)
        d[row + CHUNK] += d[WINDOW]
        if d[row + CHUNK] < d[CHUNKS]:
            d[row + STEP] = w[strand + FIRST_STEP]
            push(d, f, at, -1, lane << 2 | BEGIN)
        return
    d[row + STEP] = step + 1
    first, end = w[w[STEPS] + step], w[w[STEPS] + step + 1]
    f[d[LANE_ENDS] + lane] = at
    before, missing = d[row + CHUNK] * d[COUNT], 0
    for op in range(w[OPS] + first, w[OPS] + end):
        missing += d[d[KINDS] + (before + (w[op] >> 1)) % d[SIZED]] & EMPTY == 0
    d[row + MISSING] = missing
    for op in range(w[OPS] + first, w[OPS] + end):
        i = before + (w[op] >> 1)
        if d[d[KINDS] + i % d[SIZED]] & EMPTY == 0:
            post(w, d, f, i, w[op] & 1, at)
    if missing == 0:
        push(d, f, at, -1, lane << 2 | COMPUTE)


@njit
def compute(w, d, f, lane, at):  # type: ignore[no-untyped-def]
    """Reduce and copy what a step received, after the other chunks and strands that the rank is busy with."""
    row = d[LANES] + lane * LANE_COLUMNS
    local = f[d[LOCAL] + d[row + CHUNK] * d[SIZED_STEPS] + d[row + STEP] - 1]
    if local:
        busy = d[BUSY] + w[w[STRANDS] + lane // d[WINDOW] * STRAND_COLUMNS + RANK]
        at = f[busy] = max(f[busy], at) + local
    push(d, f, at, -1, lane << 2 | BEGIN)


def play(words, state, times, sizes, lanes):  # type: ignore[no-untyped-def]
    """Play all messages; sizes: the lengths of the three arrays."""
    sizes = carray(sizes, (3,))
    w, d, f = carray(words, (sizes[0],)), carray(state, (sizes[1],)), carray(times, (sizes[2],))
    for lane in range(lanes):
        row, strand = d[LANES] + lane * LANE_COLUMNS, w[STRANDS] + lane // d[WINDOW] * STRAND_COLUMNS
        d[row + STEP], d[row + CHUNK] = w[strand + FIRST_STEP], lane % d[WINDOW]
        push(d, f, 0.0, -1, lane << 2 | BEGIN)
    while d[PENDING]:
        at, event = f[d[TIMES]], d[d[EVENTS]]
        pop(d, f)
        kind, i = event & 3, event >> 2
        if kind == BEGIN:
            begin(w, d, f, i, at)
        elif kind == COMPUTE:
            compute(w, d, f, i, at)
        elif kind == ARRIVE:
            arrive(w, d, f, i, at)
        else:
            leave(w, d, f, i, at)


def _types() -> tuple[Any, ...]:
    from numba import types

    words, reals = types.CPointer(types.int64), types.CPointer(types.float64)
    return words, words, reals, words, types.int64


@cache
def prepare() -> Callable[..., None]:
    """Load or compile the loop. Raises ImportError where it has to be compiled, and there is no numba."""
    arguments = "int64*", "int64*", "float64*", "int64*", "int64"
    address = native(play, arguments, types=_types, also=(str(message_columns.__file__),))
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(arguments))(address)


def run(
    schedule: Schedule,
    network: Network,
    block: float,
    chunks: int,
    window: int,
    home: Mapping[int, int],
    unequal: UnequalBlocks | None = None,
) -> tuple[list[float], int] | None:
    """Return when each rank ends, in µs, and how many messages arrived; None if the loop cannot be called.

    block: bytes of a chunk of a block, unless blocks are unequal; home: the node of each rank. Raises ArgumentError for
    more than MOST_COMPILED messages, and RuntimeError for messages that wait for each other.
    """
    p, count, nodes = schedule.p, len(set(home.values())), np.array([home[rank] for rank in range(schedule.p)])
    folded = schedule.algorithm.uniform and count in (1, p) and unequal is None
    ranks = 1 if folded else p  # that are simulated
    if not is_ready(wait=most_messages(schedule) * chunks * ranks > FEW_MESSAGES):
        return None
    check_messages(schedule, chunks, MOST_COMPILED, ranks=ranks)
    messages = messages_of(schedule, folded)
    far = nodes[messages.ranks(SENDER)] != nodes[messages.ranks(RECEIVER)]
    if folded:
        nodes, far = nodes[:1], np.full(len(far), count > 1)
    if unequal is None:
        nbytes, is_posted = (messages.blocks * block)[None], np.ones((chunks, len(far)), bool)
        reduced, copied = messages.local.T
        local = (block * (reduced / network.fold_rate + copied / network.copy_rate))[None]
    else:
        nbytes, is_posted, reduced, copied = unequal.volumes(messages)
        local = reduced / network.fold_rate + copied / network.copy_rate
    ends, received = simulate(messages, network, nbytes, is_posted, local, window, nodes, far)
    if missing := np.count_nonzero(is_posted) - received:
        raise RuntimeError(f"{missing} messages of the schedule wait for each other")
    return ends.tolist() * (p // ranks), received * (p // ranks)


def is_ready(wait: bool) -> bool:
    """Return whether the loop can be called: wait for the compiler if need be, or have it compile in the background."""
    try:
        with nullcontext() if wait else background.instead_of(Request(__name__, "prepare")):
            prepare()
    except NotCompiled:
        background.poll()
        return False
    except Exception:  # there is no numba, or it cannot compile here; the loop in Python serves
        return False
    return True


def simulate(
    messages: Messages,
    network: Network,
    nbytes: np.ndarray,
    is_posted: np.ndarray,
    local: np.ndarray,
    window: int,
    nodes: np.ndarray,
    far: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Return when each rank ends, in µs, shape (ranks,), and how many messages arrived.

    nbytes: of each message, shape (chunks, messages), or (1, messages) if the same for all chunks; is_posted: whether
    each message is sent, shape (chunks, messages); local: µs for which each step reduces and copies, shape (chunks or
    1, steps); nodes: the node of each rank, from 0 to ranks - 1, shape (ranks,); far: whether each message is between
    nodes, shape (messages,).
    """
    (chunks, count), p = is_posted.shape, len(nodes)
    window = min(chunks, window)
    lanes, levels = len(messages.strands) * window, (network.node, network.links)
    sides, copies, pending = 4 * p, count * chunks, lanes + count * chunks
    ports = [min(level.ports, max(1, copies)) for level in levels]  # more would never be used
    long = nbytes > network.short_bytes
    words = [p, nbytes.size, lanes * LANE_COLUMNS, sides, copies, pending, pending]
    times = [local.size, nbytes.size, lanes, sides * max(ports), sides * max(ports), sides, p, p, copies, pending]
    d_begins, f_begins = np.cumsum([D_HEADER, *words]), np.cumsum([F_HEADER, *times])
    d, f = np.zeros(d_begins[-1], np.int64), np.zeros(f_begins[-1])
    d[PENDING:SIZED] = 0, 0, window, chunks, p, *ports, max(ports), max(1, count)
    d[SIZED:NODES] = max(1, nbytes.size), local.shape[1] if len(local) > 1 else 0
    d[NODES:D_HEADER] = [*d_begins[:-1], *f_begins[:-1]]
    f[:GAPS] = [level.latency + more for level in levels for more in (0.0, level.rendezvous)]
    f[GAPS:F_HEADER] = [level.gap for level in levels]
    d[d[NODES] : d[NODES] + p] = nodes
    kinds = FAR * far + LONG * long + EMPTY * ~is_posted[: len(nbytes)]
    d[d[KINDS] : d[KINDS] + nbytes.size] = kinds.ravel()
    f[f_begins[0] : f_begins[1]] = local.ravel()
    rates = np.array([[level.short_rate, level.rate] for level in levels])
    f[f_begins[1] : f_begins[2]] = (nbytes / rates[far.astype(int), long.astype(int)]).ravel()
    sizes = np.array([len(messages.words), len(d), len(f)])
    prepare()(*map(address_of, (messages.words, d, f, sizes)), lanes)
    return f[d[ENDS] : d[ENDS] + p].copy(), int(d[RECEIVED])
