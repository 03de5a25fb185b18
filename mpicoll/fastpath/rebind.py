"""Bind the plan of a kind of call to the counts of one call, in compiled code.

A row of the fast path's table that serves calls of any counts has words, which say how sizes and places of blocks
follow from a call: from the lengths of its arrays, or from counts and displacements among its details (see
signature.py). any_counts.py makes them, from a call that the slow path served.

A side is the send or the receive buffer. It has equal blocks, whose size is that of the array or a count, or blocks of
its own sizes, as in the vector forms. A vector is divided into parts of whole units: see plan.layout. Lengths are the
bytes of blocks, and offsets are bytes from where an array begins.
"""

from __future__ import annotations

from ..engines.compiled import line_of
from ..kernels.deferred import njit
from ..kernels.memory import call_long, line, table
from . import context as field
from .signature import RECV_COUNT, SEND_COUNT

# words: of both sides, then of either, from SIDES on
(MASK, HAS_VECTORS, IS_SENT_ONLY, UNIT, PARTS, SHARES, LEAST, MOST, SMALLEST, LARGEST, SLICE, WINDOW) = range(12)
(NBYTES, LONGEST, UNITS, BOUND, GEOMETRY, BIND, BINDING, OWN_SENT, OWN_RECEIVED, SIDES) = range(12, 22)
IS_USED, IS_VECTOR, ITEMSIZE, EXTENT, BLOCKS, FIRST, COUNT_AT, PLACE_AT, OFFSET, SIZE, SIDE = range(11)
WORDS = SIDES + 2 * SIDE
# arrays, as (address, length), from WORDS on. Of all blocks of both sides: where in the details counts and
# displacements are, lengths, offsets. Of the template: sizes, places, entries of blocks that the plan uses, and for
# every size and every such entry, which block of both sides or which part of the vector it is
(COUNTS_AT, PLACES_AT, LENGTHS, OFFSETS, SIZES, PLACES, ENTRIES, SIZE_FROM, PLACE_FROM) = range(9)
ARRAYS = 9
LANES, LANE_SCRATCH = 1, 3  # places in a plan's geometry (see engines/local_ops.py)
MOST_COMPARED = 64  # blocks to receive, where they are not in order
NONE = -1  # for a count: that of the array; for a displacement: blocks lie one behind the other


@njit
def has_equal(words, side, nbytes, details):  # type: ignore[no-untyped-def]
    """Set SIZE and OFFSET of a side with equal blocks; return False unless they lie in its array of nbytes."""
    extent, blocks = words[side + EXTENT], words[side + BLOCKS]
    words[side + OFFSET] = 0
    if words[side + COUNT_AT] == NONE:
        words[side + SIZE] = nbytes // (extent * blocks) * extent
        return words[side + SIZE] * blocks == nbytes
    n, place = details[words[side + COUNT_AT]], 0
    if words[side + PLACE_AT] != NONE:
        place = details[words[side + PLACE_AT]]
    if n < 0 or place < 0 or n > nbytes // extent or place > nbytes // extent:
        return False
    words[side + SIZE], words[side + OFFSET] = n * extent, place * extent
    return words[side + OFFSET] + words[side + SIZE] * blocks <= nbytes


@njit
def has_vector(words, side, arrays, nbytes, details):  # type: ignore[no-untyped-def]
    """Set lengths and offsets of a side with counts of its own; return False unless they lie in its array."""
    first, extent, end = words[side + FIRST], words[side + EXTENT], 0
    most = nbytes // extent
    counts_at, places_at = line_of(arrays, COUNTS_AT), line_of(arrays, PLACES_AT)
    lengths, offsets = line_of(arrays, LENGTHS), line_of(arrays, OFFSETS)
    words[side + OFFSET] = 0
    for i in range(first, first + words[side + BLOCKS]):
        n = details[counts_at[i]]
        if n < 0 or n > most:
            return False
        lengths[i], offsets[i] = n * extent, end
        if places_at[i] != NONE and n > 0:
            place = details[places_at[i]]
            if place < 0 or place > most:
                return False
            offsets[i] = place * extent
        end = offsets[i] + lengths[i]
        if end > nbytes:
            return False
    return True


@njit
def are_apart(lengths, offsets, first, end):  # type: ignore[no-untyped-def]
    """Return whether blocks share no memory: in order, or so few that each is compared with all before it."""
    behind = 0
    for i in range(first, end):
        if lengths[i] > 0 and offsets[i] < behind:
            if end - first > MOST_COMPARED:
                return False
            for j in range(first, i):
                if lengths[j] > 0 and offsets[i] < offsets[j] + lengths[j] and offsets[j] < offsets[i] + lengths[i]:
                    return False
        behind = max(behind, offsets[i] + lengths[i])
    return True


@njit
def fits(context, at):  # type: ignore[no-untyped-def]
    """Compute sizes and places from a call; return False unless it is right and its plan would be this one."""
    words, arrays = line(at, WORDS), table(at + 8 * WORDS, ARRAYS, 2)
    details = line(context[field.DETAILS], context[field.CAPACITY])
    for s in range(2):
        side = SIDES + s * SIDE
        if words[side + IS_USED]:
            nbytes = context[field.KEY + (RECV_COUNT if s else SEND_COUNT)] * words[side + ITEMSIZE]
            if words[side + IS_VECTOR]:
                right = has_vector(words, side, arrays, nbytes, details)
            else:
                right = has_equal(words, side, nbytes, details)
            if not right:
                return False
    if words[HAS_VECTORS]:
        right = sum_up(words, arrays)
    else:
        right = share_out(words)
    nbytes, longest = words[NBYTES], words[LONGEST]
    return right and words[LEAST] <= nbytes <= words[MOST] and words[SMALLEST] <= longest <= words[LARGEST]


@njit
def share_out(words):  # type: ignore[no-untyped-def]
    """Set how many units equal blocks have, and what follows; return False where the sides differ."""
    send, recv = SIDES, SIDES + SIDE
    size = words[send + SIZE] if words[send + IS_USED] else words[recv + SIZE]
    if words[recv + IS_USED] and words[recv + SIZE] != size:
        return False
    words[UNITS] = size // words[UNIT]
    words[LONGEST] = (words[UNITS] + words[PARTS] - 1) // words[PARTS] * words[UNIT]
    words[NBYTES] = size * words[SHARES]
    return True


@njit
def sum_up(words, arrays):  # type: ignore[no-untyped-def]
    """Set the bytes of blocks of own sizes; return False where they are wrong.

    That is where blocks to receive share memory, or a rank sends itself more or less than it receives.
    """
    lengths, offsets = line_of(arrays, LENGTHS), line_of(arrays, OFFSETS)
    totals, longest = (0, 0), 0
    for s in range(2):
        side, total = SIDES + s * SIDE, 0
        if words[side + IS_USED]:
            first = words[side + FIRST]
            if not words[side + IS_VECTOR]:
                lengths[first], offsets[first] = words[side + SIZE], 0
            for i in range(first, first + words[side + BLOCKS]):
                total += lengths[i]
                longest = max(longest, lengths[i])
        totals = totals[1], total
    recv = SIDES + SIDE
    if words[recv + IS_VECTOR]:
        first = words[recv + FIRST]
        if not are_apart(lengths, offsets, first, first + words[recv + BLOCKS]):
            return False
    words[LONGEST] = longest
    words[NBYTES] = totals[0] if words[IS_SENT_ONLY] else max(totals[0], totals[1])
    return words[OWN_SENT] == NONE or lengths[words[OWN_SENT]] == lengths[words[OWN_RECEIVED]]


@njit
def place_equal(words, arrays):  # type: ignore[no-untyped-def]
    """Set the template's sizes and places of equal blocks."""
    sizes, places, entries = line_of(arrays, SIZES), line_of(arrays, PLACES), line_of(arrays, ENTRIES)
    size_from, place_from = line_of(arrays, SIZE_FROM), line_of(arrays, PLACE_FROM)
    share, rest, unit = words[UNITS] // words[PARTS], words[UNITS] % words[PARTS], words[UNIT]
    for i in range(len(sizes)):
        sizes[i] = (share + (size_from[i] < rest)) * unit
    for i in range(len(entries)):
        places[entries[i]] = (place_from[i] * share + min(place_from[i], rest)) * unit


@njit
def place_vectors(arrays):  # type: ignore[no-untyped-def]
    """Set the template's sizes and places of blocks of own sizes."""
    sizes, places, entries = line_of(arrays, SIZES), line_of(arrays, PLACES), line_of(arrays, ENTRIES)
    size_from, place_from = line_of(arrays, SIZE_FROM), line_of(arrays, PLACE_FROM)
    lengths, offsets = line_of(arrays, LENGTHS), line_of(arrays, OFFSETS)
    for i in range(len(sizes)):
        sizes[i] = lengths[size_from[i]]
    for i in range(len(entries)):
        places[entries[i]] = offsets[place_from[i]]


@njit
def rebind(at):  # type: ignore[no-untyped-def]
    """Bind the plan to what `fits` computed."""
    words, arrays = line(at, WORDS), table(at + 8 * WORDS, ARRAYS, 2)
    if words[HAS_VECTORS]:
        place_vectors(arrays)
    elif words[BOUND] == words[UNITS]:
        return
    else:
        place_equal(words, arrays)
    geometry = line(words[GEOMETRY], LANE_SCRATCH + 1)
    geometry[LANES] = max(1, (words[LONGEST] + words[SLICE] - 1) // words[SLICE])
    geometry[LANE_SCRATCH] = call_long(words[BIND], (words[BINDING],))
    words[BOUND] = words[UNITS]
