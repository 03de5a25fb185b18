"""Pack and unpack buffers with holes on the fast path, in compiled code.

Packed data is in scratch, after the scratch of the plan. packed_buffers.py makes an array of words for a row of the
fast path's table: a header, the blocks to pack before the plan runs, and the blocks to unpack after it.
"""

from __future__ import annotations

from ..kernels.deferred import njit
from ..kernels.memory import call_long, line, table

# the header: numbers of blocks to pack and to unpack, functions, offsets in scratch of packed data of either side
# (NOT_PACKED: the side is contiguous), and the addresses of scratch and of both arrays in the current call
BEFORE, AFTER, PACK, UNPACK, SEND_AT, RECV_AT, SCRATCH, SEND_DATA, RECV_DATA, HEADER = range(10)
# a block: offset in its side's packed data, side, offset in the array, elements, extent, layout
PACKED, SIDE, OFFSET, ELEMENTS, EXTENT, LAYOUT, BLOCK = range(7)
NOT_PACKED = -1


@njit
def copy_blocks(at, first, end, function):  # type: ignore[no-untyped-def]
    """Pack or unpack blocks first to end of the words at an address."""
    header = line(at, HEADER)
    blocks = table(at + 8 * HEADER, header[BEFORE] + header[AFTER], BLOCK)
    for i in range(first, end):
        side = blocks[i, SIDE]
        packed = header[SCRATCH] + header[SEND_AT + side] + blocks[i, PACKED]
        base = header[SEND_DATA + side] + blocks[i, OFFSET]
        call_long(function, (packed, base, blocks[i, ELEMENTS], blocks[i, EXTENT], blocks[i, LAYOUT]))


@njit
def pack(at, scratch, send, recv, bases):  # type: ignore[no-untyped-def]
    """Store the call's addresses, pack its input, and set the plan's bases of packed sides."""
    header = line(at, HEADER)
    header[SCRATCH], header[SEND_DATA], header[RECV_DATA] = scratch, send, recv
    for side in range(2):
        if header[SEND_AT + side] != NOT_PACKED:
            bases[side] = scratch + header[SEND_AT + side]
    copy_blocks(at, 0, header[BEFORE], header[PACK])


@njit
def unpack(at):  # type: ignore[no-untyped-def]
    """Unpack the output of the call."""
    header = line(at, HEADER)
    copy_blocks(at, header[BEFORE], header[BEFORE] + header[AFTER], header[UNPACK])
