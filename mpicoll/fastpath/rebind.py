"""Bind the plan of a cached call with any counts to the counts of one call, in compiled code.

A row of the fast path's table for any counts has words by which the sizes and offsets of blocks follow from a call:
from the lengths of its arrays, or from counts and displacements among its details (see signature.py). any_counts.py
makes the words, from a call that the slow path served.

A side is the send or the receive buffer. It has equal blocks, whose size follows from the array's length or a count, or
blocks of different sizes, as in the vector forms; if IS_FULL these fill the array. A vector is divided into parts of
whole units: see plan.layout.
Lengths are bytes of blocks, and offsets are bytes from the beginning of an array.
"""

from __future__ import annotations

from ..engines.compiled import line_of
from ..kernels.deferred import njit
from ..kernels.memory import call_long, line, table
from . import context as field

# words of the call; then, from SIDES on, SIDE words for the send side and SIDE words for the receive side
(MASK, HAS_VECTORS, IS_SENT_ONLY, UNIT, PARTS, SHARES, MIN_BYTES, MAX_BYTES, MIN_BLOCK, MAX_BLOCK) = range(10)
(SLICE, WINDOW, NBYTES, LONGEST, UNITS, BOUND, GEOMETRY, BIND, BINDING, OWN_SENT, OWN_RECEIVED) = range(10, 21)
(LOW_PEAK, HIGH_PEAK, PEAK_RANKS, RESULT_BLOCKS, SIDES) = range(21, 26)
(IS_USED, IS_VECTOR, ITEMSIZE, EXTENT, BLOCKS, FIRST, COUNT_AT, PLACE_AT, OFFSET) = range(9)
(IS_FULL, PLACE_EXTENT, LENGTH_AT, SIZE, SIDE) = range(9, 14)
WORDS = SIDES + 2 * SIDE
# SHARES: how often NBYTES, as selection counts bytes, has a block's; NONE if it has one block's
# PEAK_RANKS: twice p if the class of shares matters, between LOW_PEAK and HIGH_PEAK; 0 for any class
# RESULT_BLOCKS: how many of the receive side's blocks the result has
# LENGTH_AT: the word of the key with the length of a side's array; PLACE_EXTENT: the bytes of a unit of displacements
# arrays, as (address, length), from WORDS on. For all blocks of both sides: extents of elements, indices of counts and
# of displacements in the details, lengths, offsets. For the template: sizes, places, entries of the blocks that the
# plan uses; then, for every size and every such entry, the index of its block among both sides' blocks (times PARTS,
# plus its part), or of its part of the vector; last, for all blocks of both sides, 0 if the neighbour does not exist,
# else 1
(EXTENTS, COUNTS_AT, PLACES_AT, LENGTHS, OFFSETS, SIZES, PLACES, ENTRIES, SIZE_FROM, PLACE_FROM, EXISTS) = range(11)
ARRAYS = 11
LANES, LANE_SCRATCH = 1, 3  # indices in a plan's geometry (see engines/local_ops.py)
MAX_COMPARED = 64  # blocks to receive that are compared for overlap if they are not in order
NONE = -1  # no integer: the count follows from the array; blocks without displacements are contiguous


@njit
def locate_equal_blocks(words, side, nbytes, details):  # type: ignore[no-untyped-def]
    """Set SIZE and OFFSET of a side with equal blocks; return whether the blocks are within its array of nbytes."""
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
def locate_vector(words, side, arrays, nbytes, details):  # type: ignore[no-untyped-def]
    """Set lengths and offsets of a side with blocks of different sizes; return whether they are within its array."""
    first, place_extent, extent, most, end = words[side + FIRST], words[side + PLACE_EXTENT], 0, 0, 0
    last_place = nbytes // place_extent
    extents, counts_at, places_at = line_of(arrays, EXTENTS), line_of(arrays, COUNTS_AT), line_of(arrays, PLACES_AT)
    lengths, offsets = line_of(arrays, LENGTHS), line_of(arrays, OFFSETS)
    words[side + OFFSET] = 0
    for i in range(first, first + words[side + BLOCKS]):
        n = details[counts_at[i]]
        if extents[i] != extent:
            extent = extents[i]
            most = nbytes // extent
        if n < 0 or n > most:
            return False
        lengths[i], offsets[i] = n * extent, end
        if places_at[i] != NONE and n > 0:
            place = details[places_at[i]]
            if place < 0 or place > last_place:
                return False
            offsets[i] = place * place_extent
        end = offsets[i] + lengths[i]
        if end > nbytes:
            return False
    return end == nbytes or not words[side + IS_FULL]


@njit
def are_disjoint(lengths, offsets, first, end):  # type: ignore[no-untyped-def]
    """Return whether blocks share no memory; False for many blocks that are not in order, which are not compared."""
    behind = 0
    for i in range(first, end):
        if lengths[i] > 0 and offsets[i] < behind:
            if end - first > MAX_COMPARED:
                return False
            for j in range(first, i):
                if lengths[j] > 0 and offsets[i] < offsets[j] + lengths[j] and offsets[j] < offsets[i] + lengths[i]:
                    return False
        behind = max(behind, offsets[i] + lengths[i])
    return True


@njit
def fits(context, at):  # type: ignore[no-untyped-def]
    """Compute sizes and offsets from a call; return whether they are valid and the slow path would use this plan."""
    words, arrays = line(at, WORDS), table(at + 8 * WORDS, ARRAYS, 2)
    details = line(context[field.DETAILS], context[field.CAPACITY])
    for s in range(2):
        side = SIDES + s * SIDE
        if words[side + IS_USED]:
            nbytes = context[field.KEY + words[side + LENGTH_AT]] * words[side + ITEMSIZE]
            if words[side + IS_VECTOR]:
                right = locate_vector(words, side, arrays, nbytes, details)
            else:
                right = locate_equal_blocks(words, side, nbytes, details)
            if not right:
                return False
    if words[HAS_VECTORS]:
        right = total_vectors(words, arrays)
    else:
        right = divide_equal_blocks(words)
    nbytes, longest = words[NBYTES], words[LONGEST]
    if words[HAS_VECTORS]:
        peak = longest * words[PEAK_RANKS]
        longest = words[LONGEST] = (longest + words[PARTS] - 1) // words[PARTS]
    else:
        peak = 0
    if peak < words[LOW_PEAK] * nbytes or (peak > 0 and peak >= words[HIGH_PEAK] * nbytes):
        return False  # of another class: see selection/uneven.py
    return right and words[MIN_BYTES] <= nbytes <= words[MAX_BYTES] and words[MIN_BLOCK] <= longest <= words[MAX_BLOCK]


@njit
def divide_equal_blocks(words):  # type: ignore[no-untyped-def]
    """Set UNITS, LONGEST and NBYTES for equal blocks; return False if the sides' blocks differ."""
    send, recv = SIDES, SIDES + SIDE
    size = words[send + SIZE] if words[send + IS_USED] else words[recv + SIZE]
    if words[recv + IS_USED] and words[recv + SIZE] != size:
        return False
    words[UNITS] = size // words[UNIT]
    words[LONGEST] = (words[UNITS] + words[PARTS] - 1) // words[PARTS] * words[UNIT]
    words[NBYTES] = size * words[SHARES]
    return True


@njit
def total_vectors(words, arrays):  # type: ignore[no-untyped-def]
    """Set LONGEST, of whole shares, and NBYTES for blocks of different sizes; return whether the blocks are valid.

    They are not if blocks to receive overlap, or if the block that a rank sends to itself has two sizes.
    """
    lengths, offsets, exists = line_of(arrays, LENGTHS), line_of(arrays, OFFSETS), line_of(arrays, EXISTS)
    totals, longest = (0, 0), 0
    for s in range(2):
        side, total = SIDES + s * SIDE, 0
        if words[side + IS_USED]:
            first = words[side + FIRST]
            for i in range(first, first + words[side + BLOCKS]):
                if not words[side + IS_VECTOR]:
                    lengths[i], offsets[i] = words[side + SIZE], (i - first) * words[side + SIZE]
                total += lengths[i] * exists[i]
                longest = max(longest, lengths[i] * exists[i])
        totals = totals[1], total
    recv = SIDES + SIDE
    if words[recv + IS_VECTOR]:
        first = words[recv + FIRST]
        if not are_disjoint(lengths, offsets, first, first + words[recv + BLOCKS]):
            return False
    words[LONGEST] = longest
    words[NBYTES] = totals[0] * words[SHARES] if words[IS_SENT_ONLY] else max(totals[0], totals[1])
    if words[SHARES] == NONE:  # of one block, where all are equal
        words[NBYTES] = longest
    return words[OWN_SENT] == NONE or lengths[words[OWN_SENT]] == lengths[words[OWN_RECEIVED]]


@njit
def set_equal_blocks(words, arrays):  # type: ignore[no-untyped-def]
    """Set the template's sizes and places for equal blocks."""
    sizes, places, entries = line_of(arrays, SIZES), line_of(arrays, PLACES), line_of(arrays, ENTRIES)
    size_from, place_from = line_of(arrays, SIZE_FROM), line_of(arrays, PLACE_FROM)
    share, rest, unit = words[UNITS] // words[PARTS], words[UNITS] % words[PARTS], words[UNIT]
    for i in range(len(sizes)):
        sizes[i] = (share + (size_from[i] < rest)) * unit
    for i in range(len(entries)):
        block, part = divmod(place_from[i], words[PARTS])
        places[entries[i]] = (block * words[UNITS] + part * share + min(part, rest)) * unit


@njit
def part_of(lengths, index, parts):  # type: ignore[no-untyped-def]
    """Return the block of a part of blocks that are cut in so many parts, its offset in the block, and its size."""
    if parts == 1:
        return index, 0, lengths[index]
    block, part = divmod(index, parts)
    size, rest = divmod(lengths[block], parts)
    return block, part * size + min(part, rest), size + (part < rest)


@njit
def set_vectors(words, arrays):  # type: ignore[no-untyped-def]
    """Set the template's sizes and places for blocks of different sizes, or parts of them."""
    sizes, places, entries = line_of(arrays, SIZES), line_of(arrays, PLACES), line_of(arrays, ENTRIES)
    size_from, place_from = line_of(arrays, SIZE_FROM), line_of(arrays, PLACE_FROM)
    lengths, offsets = line_of(arrays, LENGTHS), line_of(arrays, OFFSETS)
    for i in range(len(sizes)):
        sizes[i] = part_of(lengths, size_from[i], words[PARTS])[2]
    for i in range(len(entries)):
        block, place, _ = part_of(lengths, place_from[i], words[PARTS])
        places[entries[i]] = offsets[block] + place


@njit
def rebind(at):  # type: ignore[no-untyped-def]
    """Bind the plan to the sizes and offsets that fits() computed."""
    words, arrays = line(at, WORDS), table(at + 8 * WORDS, ARRAYS, 2)
    if words[HAS_VECTORS]:
        set_vectors(words, arrays)
    elif words[BOUND] == words[UNITS]:
        return
    else:
        set_equal_blocks(words, arrays)
    geometry = line(words[GEOMETRY], LANE_SCRATCH + 1)
    geometry[LANES] = max(1, (words[LONGEST] + words[SLICE] - 1) // words[SLICE])
    geometry[LANE_SCRATCH] = call_long(words[BIND], (words[BINDING],))
    words[BOUND] = words[UNITS]
