"""Recognise a datatype that was made anew by how it was made, in compiled code.

A datatype that no call had before has no attribute. If it was made of one of MPI's own by numbers that were seen before
its layout is the same, and `alike_of` returns the facts on the first such datatype. buffers/datatypes.py has recipe(),
which asks MPI the same in Python.
"""

from __future__ import annotations

from ..kernels.deferred import njit
from ..kernels.memory import call_int, line, load, load_short, table
from . import context as field
from .recipe_table import FACTS, LENGTH, NUMBERS, SLOT, SLOTS, WRITTEN, find

# where MPI writes, in words: how many numbers of each sort there are, the combiner, numbers, the handle, a position
COMBINER, INTEGERS, ADDRESSES, LARGE, PART, POSITION = 4, 5, 17, 41, 65, 66


@njit
def handle_at(context, at):  # type: ignore[no-untyped-def]
    """Return the handle of MPI's at an address."""
    return load(at) if context[field.WIDE] else load_short(at)


@njit
def envelope(context, handle):  # type: ignore[no-untyped-def]
    """Ask MPI how a datatype was made; return whether it said so."""
    at = context[field.CONTENTS_AT]
    line(at, COMBINER + 1)[:] = 0
    if context[field.IS_LARGE]:
        return call_int(context[field.ENVELOPE], (handle, at, at + 8, at + 16, at + 24, at + 8 * COMBINER)) == 0
    return call_int(context[field.ENVELOPE], (handle, at, at + 8, at + 24, at + 8 * COMBINER)) == 0


@njit
def contents(context, handle, counts):  # type: ignore[no-untyped-def]
    """Ask MPI for the numbers and the datatype that it was made of; return whether it said them."""
    at = context[field.CONTENTS_AT]
    integers, addresses, large, part = at + 8 * INTEGERS, at + 8 * ADDRESSES, at + 8 * LARGE, at + 8 * PART
    line(part, 1)[0] = 0
    if context[field.IS_LARGE]:
        arguments = handle, counts[0], counts[1], counts[2], 1, integers, addresses, large, part
        return call_int(context[field.CONTENTS], arguments) == 0
    return call_int(context[field.CONTENTS], (handle, counts[0], counts[1], 1, integers, addresses, part)) == 0


@njit
def is_committed(context, handle):  # type: ignore[no-untyped-def]
    """Return whether MPI packs no element of a datatype."""
    at = context[field.CONTENTS_AT]
    line(at + 8 * POSITION, 1)[0] = 0
    arguments = at, 0, handle, at, 0, at + 8 * POSITION, context[field.COMM_SELF]
    return call_int(context[field.MPI_PACK], arguments) == 0


@njit
def alike_of(context, handle):  # type: ignore[no-untyped-def]
    """Return the address of the facts on the first datatype that was made by the same recipe, 0 if none is known."""
    if not envelope(context, handle):
        return 0
    at = context[field.CONTENTS_AT]
    counts, words = line(at, WRITTEN), line(context[field.RECIPE], NUMBERS + 2)
    integers, addresses, large, combiner = counts[0], counts[1], counts[2], load_short(at + 8 * COMBINER)
    if counts[3] != 1 or integers + addresses + large > NUMBERS or not contents(context, handle, counts):
        return 0
    part = at + 8 * PART
    of_part = handle_at(context, part)
    words[0], n = combiner, 1
    for i in range(integers):
        words[n] = load_short(at + 8 * INTEGERS + 4 * i)
        n += 1
    for i in range(addresses):
        words[n] = counts[ADDRESSES + i]
        n += 1
    for i in range(large):
        words[n] = counts[LARGE + i]
        n += 1
    words[n] = of_part
    made_by = load_short(at + 8 * COMBINER) if envelope(context, of_part) else -1
    if made_by != context[field.NAMED]:
        if made_by not in (context[field.F90_REAL], context[field.F90_COMPLEX], context[field.F90_INTEGER]):
            call_int(context[field.TYPE_FREE], (part,))  # MPI has made a handle of it
        return 0
    slots = table(context[field.RECIPES], SLOTS, SLOT)
    slot = slots[find(words, n + 1, slots)]
    return slot[FACTS] if slot[LENGTH] != 0 and is_committed(context, handle) else 0
