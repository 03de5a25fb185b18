"""Pack and unpack the buffers of a call on the fast path whose datatypes leave holes, in compiled code.

What is packed lies in scratch behind the plan's own. A row of the fast path's table names an array of words: a header,
then the blocks to pack before the plan runs, then those to unpack after it. packs.py makes it.
"""

from __future__ import annotations

from ..kernels.deferred import njit
from ..kernels.memory import call_long, line, table

# the header: numbers of blocks, functions, where in scratch what is sent and received is packed (NOWHERE: it is not),
# and of the current call the addresses of scratch and of the two arrays
BEFORE, AFTER, PACK, UNPACK, SEND_AT, RECV_AT, SCRATCH, SEND_DATA, RECV_DATA, HEADER = range(10)
# a block: bytes from where its side is packed, its side, bytes from the array's beginning, elements, extent, layout
PACKED, SIDE, PLACE, ELEMENTS, EXTENT, LAYOUT, BLOCK = range(7)
NOWHERE = -1


@njit
def move(at, first, end, function):  # type: ignore[no-untyped-def]
    """Pack or unpack some of the blocks of an array of words at an address."""
    header = line(at, HEADER)
    blocks = table(at + 8 * HEADER, header[BEFORE] + header[AFTER], BLOCK)
    for i in range(first, end):
        side = blocks[i, SIDE]
        packed = header[SCRATCH] + header[SEND_AT + side] + blocks[i, PACKED]
        base = header[SEND_DATA + side] + blocks[i, PLACE]
        call_long(function, (packed, base, blocks[i, ELEMENTS], blocks[i, EXTENT], blocks[i, LAYOUT]))


@njit
def pack(at, scratch, send, recv, bases):  # type: ignore[no-untyped-def]
    """Note where the call's memory is, pack what it sends, and set the bases of what is packed."""
    header = line(at, HEADER)
    header[SCRATCH], header[SEND_DATA], header[RECV_DATA] = scratch, send, recv
    for side in range(2):
        if header[SEND_AT + side] != NOWHERE:
            bases[side] = scratch + header[SEND_AT + side]
    move(at, 0, header[BEFORE], header[PACK])


@njit
def unpack(at):  # type: ignore[no-untyped-def]
    """Unpack what the call received."""
    header = line(at, HEADER)
    move(at, header[BEFORE], header[BEFORE] + header[AFTER], header[UNPACK])
