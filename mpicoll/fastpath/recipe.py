"""Recognize a new datatype by its envelope and contents, in compiled code.

A datatype that no call has used has no attribute with facts. If it was constructed from a predefined datatype with the
same numbers as an earlier one, its layout is the same. The recipe is the combiner, the numbers and the base datatype;
facts_of_recipe() returns the facts on the first datatype of that recipe. buffers/datatypes.py has recipe(), the same
query in Python.
"""

from __future__ import annotations

from ..kernels.deferred import njit
from ..kernels.memory import call_int, line, load, load_short, table
from . import context as field
from .recipe_table import FACTS, LENGTH, NUMBERS, SLOT, SLOTS, WRITTEN, find_slot

# indices of the words to which MPI writes: four counts, the combiner, three arrays of numbers, a handle, a position
COMBINER, INTEGERS, ADDRESSES, LARGE, BASE_TYPE, POSITION = 4, 5, 17, 41, 65, 66


@njit
def handle_at(context, at):  # type: ignore[no-untyped-def]
    """Return the MPI handle at an address."""
    return load(at) if context[field.HANDLE_IS_64_BIT] else load_short(at)


@njit
def envelope(context, handle):  # type: ignore[no-untyped-def]
    """Call MPI_Type_get_envelope; return whether it succeeded."""
    at = context[field.CONTENTS_AT]
    line(at, COMBINER + 1)[:] = 0
    if context[field.IS_LARGE]:
        return call_int(context[field.ENVELOPE], (handle, at, at + 8, at + 16, at + 24, at + 8 * COMBINER)) == 0
    return call_int(context[field.ENVELOPE], (handle, at, at + 8, at + 24, at + 8 * COMBINER)) == 0


@njit
def contents(context, handle, counts):  # type: ignore[no-untyped-def]
    """Call MPI_Type_get_contents; return whether it succeeded."""
    at = context[field.CONTENTS_AT]
    integers, addresses, large, base_at = at + 8 * INTEGERS, at + 8 * ADDRESSES, at + 8 * LARGE, at + 8 * BASE_TYPE
    line(base_at, 1)[0] = 0
    if context[field.IS_LARGE]:
        arguments = handle, counts[0], counts[1], counts[2], 1, integers, addresses, large, base_at
        return call_int(context[field.CONTENTS], arguments) == 0
    return call_int(context[field.CONTENTS], (handle, counts[0], counts[1], 1, integers, addresses, base_at)) == 0


@njit
def is_committed(context, handle):  # type: ignore[no-untyped-def]
    """Return whether a datatype is committed: whether MPI_Pack of 0 elements succeeds."""
    at = context[field.CONTENTS_AT]
    line(at + 8 * POSITION, 1)[0] = 0
    arguments = at, 0, handle, at, 0, at + 8 * POSITION, context[field.COMM_SELF]
    return call_int(context[field.MPI_PACK], arguments) == 0


@njit
def facts_of_recipe(context, handle):  # type: ignore[no-untyped-def]
    """Return the address of the facts on the first datatype with the same recipe; 0 if there is none."""
    if not envelope(context, handle):
        return 0
    at = context[field.CONTENTS_AT]
    counts, words = line(at, WRITTEN), line(context[field.RECIPE], NUMBERS + 2)
    integers, addresses, large, combiner = counts[0], counts[1], counts[2], load_short(at + 8 * COMBINER)
    if counts[3] != 1 or integers + addresses + large > NUMBERS or not contents(context, handle, counts):
        return 0
    base_at = at + 8 * BASE_TYPE
    base = handle_at(context, base_at)
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
    words[n] = base
    base_combiner = load_short(at + 8 * COMBINER) if envelope(context, base) else -1
    if base_combiner != context[field.NAMED]:
        if base_combiner not in (context[field.F90_REAL], context[field.F90_COMPLEX], context[field.F90_INTEGER]):
            call_int(context[field.TYPE_FREE], (base_at,))  # MPI_Type_get_contents has made a new handle
        return 0
    slots = table(context[field.RECIPES], SLOTS, SLOT)
    slot = slots[find_slot(words, n + 1, slots)]
    return slot[FACTS] if slot[LENGTH] != 0 and is_committed(context, handle) else 0
