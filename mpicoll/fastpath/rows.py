"""The rows of a table of the fast path: their columns, how a call finds its row, and how a row gets the call's counts.

A row is one kind of call. It begins with the call's key (signature.py).
"""

from __future__ import annotations

from ..kernels.deferred import njit
from ..kernels.memory import line, load
from . import context as field
from . import pack, rebind, spin
from .signature import KEYS, LENGTH, METHOD, RECV_COUNT, ROWS, SEND_COUNT

WAYS = 4  # consecutive rows in which a kind of call may be
# columns of a row after its key
SEND_BYTES, RECV_BYTES, SEND_OFFSET, RECV_OFFSET, SPIN_NS, SCRATCH_NEEDED, TABLES, ROW_DETAILS = range(KEYS, KEYS + 8)
ANY_COUNTS = KEYS + 8  # the address of the words of rebind.py, 0 if the row is for fixed counts
PACKS = KEYS + 9  # the address of the words of pack.py, 0 if no buffer has holes
ERRORS = KEYS + 10  # the address of a word that is 1 if a user's operator raised, 0 for other operators
# words for the call's row in the history
ROW_IDS, ROW_IDS_NONBLOCKING, ROW_COMM, ROW_ROOT, ROW_BYTES = range(KEYS + 11, KEYS + 16)
ROW_KIND = KEYS + 16  # in the ring of timelines: of blocking calls; that of nonblocking ones is the next number
COLUMNS = KEYS + 17


@njit
def matches(context, row):  # type: ignore[no-untyped-def]
    """Return whether a row serves the call whose key is in context."""
    any_counts = row[ANY_COUNTS]
    for i in range(KEYS):
        word, row_word = context[field.KEY + i], row[i]
        if any_counts != 0 and i in (SEND_COUNT, RECV_COUNT):
            word, row_word = min(word, 0), min(row_word, 0)
        if word != row_word:
            return False
    length = row[LENGTH]
    if length > 0:
        details, kept = line(context[field.DETAILS], length), line(row[ROW_DETAILS], length)
        for i in range(length):
            if details[i] != kept[i] and (any_counts == 0 or line(load(any_counts + 8 * rebind.MASK), length)[i] == 0):
                return False
    return any_counts == 0 or rebind.fits(context, any_counts)


@njit
def find_row(context, where):  # type: ignore[no-untyped-def]
    """Search WAYS rows, beginning with the one in context[where], for a row that serves the call.

    Return whether there is one, and store its number in context[where]; else store a row to insert the call in.
    """
    first, free = context[where], -1
    begin = first & ROWS  # rows for any counts follow those for fixed counts
    for offset in range(WAYS):
        at = begin + ((first + offset) & (ROWS - 1))
        row = line(context[field.TABLE] + 8 * COLUMNS * at, COLUMNS)
        if row[METHOD] == 0:
            free = at if free < 0 else free
        elif matches(context, row):
            context[where] = at
            return True
    if free < 0:  # replace a row, not always the same
        free = begin + ((first + context[field.INSERTIONS] % WAYS) & (ROWS - 1))
    context[where] = free
    return False


@njit
def bind_counts(context, row):  # type: ignore[no-untyped-def]
    """Bind the plan of a row to the counts of the call, and set the columns that depend on them."""
    at = row[ANY_COUNTS]
    rebind.rebind(at)
    words = line(at, rebind.WORDS)
    for s in range(2):
        side = rebind.SIDES + s * rebind.SIDE
        nbytes = context[field.KEY + (RECV_COUNT if s else SEND_COUNT)] * words[side + rebind.ITEMSIZE]
        row[SEND_BYTES + s] = max(nbytes, 0) if words[side + rebind.IS_USED] else 0
        row[SEND_OFFSET + s] = words[side + rebind.OFFSET]
    row[SPIN_NS], row[ROW_BYTES] = spin.spin_budget(words[rebind.NBYTES]), words[rebind.NBYTES]
    geometry = line(words[rebind.GEOMETRY], rebind.LANE_SCRATCH + 1)
    row[SCRATCH_NEEDED] = geometry[rebind.LANE_SCRATCH] * min(geometry[rebind.LANES], words[rebind.WINDOW])
    if row[PACKS] != 0:
        row[SCRATCH_NEEDED] = pack.place_result(row[PACKS], at, row[SCRATCH_NEEDED])
