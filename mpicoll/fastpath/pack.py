"""Pack and unpack buffers with holes on the fast path, and copy in-place results, in compiled code.

Packed data is in scratch, after the scratch of the plan; so is the result of an in-place call that would overwrite its
own input. packed_buffers.py makes an array of words for a row of the fast path's table: a header, the blocks to pack
before the plan runs, and the blocks to unpack after it.
"""

from __future__ import annotations

from ..engines.compiled import line_of
from ..kernels.deferred import njit
from ..kernels.memory import call_long, line, table
from ..kernels.pack import copy_bytes
from ..plans.template import round_up
from . import rebind

# the header: numbers of blocks to pack and to unpack, functions, offsets in scratch of packed data of either side
# (NOT_PACKED: the side is contiguous), the addresses of scratch and of both arrays in the current call, and the offset
# of the input in the receive array (IN_SEND_ARRAY: it is in the other)
BEFORE, AFTER, PACK, UNPACK, SEND_AT, RECV_AT, SCRATCH, SEND_DATA, RECV_DATA, INPUT_AT, HEADER = range(11)
# a block: offset in its side's packed data, side, offset in the array, elements, extent, layout (0: elements are bytes)
PACKED, SIDE, OFFSET, ELEMENTS, EXTENT, LAYOUT, BLOCK = range(7)
NOT_PACKED = IN_SEND_ARRAY = -1


@njit
def copy_blocks(at, first, end, function):  # type: ignore[no-untyped-def]
    """Pack or unpack blocks first to end of the words at an address; those of bytes are only unpacked."""
    header = line(at, HEADER)
    blocks = table(at + 8 * HEADER, header[BEFORE] + header[AFTER], BLOCK)
    for i in range(first, end):
        side = blocks[i, SIDE]
        packed = header[SCRATCH] + header[SEND_AT + side] + blocks[i, PACKED]
        base = header[SEND_DATA + side] + blocks[i, OFFSET]
        if blocks[i, LAYOUT] == 0:
            copy_bytes(base, packed, blocks[i, ELEMENTS])
        else:
            call_long(function, (packed, base, blocks[i, ELEMENTS], blocks[i, EXTENT], blocks[i, LAYOUT]))


@njit
def pack(at, scratch, send, recv, bases):  # type: ignore[no-untyped-def]
    """Store the call's addresses, pack its input, and set the plan's bases of packed sides."""
    header = line(at, HEADER)
    header[SCRATCH], header[SEND_DATA], header[RECV_DATA] = scratch, send, recv
    pack_again(at, bases)


@njit
def pack_again(at, bases):  # type: ignore[no-untyped-def]
    """Pack the input at the addresses that were stored, and set the plan's bases of packed sides."""
    header = line(at, HEADER)
    if header[INPUT_AT] != IN_SEND_ARRAY:
        bases[0] = header[RECV_DATA] + header[INPUT_AT]
    for side in range(2):
        if header[SEND_AT + side] != NOT_PACKED:
            bases[side] = header[SCRATCH] + header[SEND_AT + side]
    copy_blocks(at, 0, header[BEFORE], header[PACK])


@njit
def place_result(at, any_counts, behind):  # type: ignore[no-untyped-def]
    """Set input and result of an in-place call to what rebind.fits() computed; return the scratch that the call needs.

    behind: the scratch of the plan.
    """
    header, words, side = line(at, HEADER), line(any_counts, rebind.WORDS), rebind.SIDES + rebind.SIDE
    blocks = table(at + 8 * HEADER, header[AFTER], BLOCK)
    header[INPUT_AT], header[RECV_AT] = words[side + rebind.OFFSET], round_up(behind)
    if words[side + rebind.IS_VECTOR]:  # each block has the same offset in the array and in scratch
        arrays, first = table(any_counts + 8 * rebind.WORDS, rebind.ARRAYS, 2), words[side + rebind.FIRST]
        lengths, offsets = line_of(arrays, rebind.LENGTHS), line_of(arrays, rebind.OFFSETS)
        result = 0
        for i in range(len(blocks)):
            blocks[i, PACKED] = blocks[i, OFFSET] = offsets[first + i]
            blocks[i, ELEMENTS] = lengths[first + i]
            result = max(result, offsets[first + i] + lengths[first + i])
        return header[RECV_AT] + result
    result = words[side + rebind.SIZE] * words[rebind.RESULT_BLOCKS]
    for i in range(len(blocks)):
        blocks[i, OFFSET], blocks[i, ELEMENTS] = header[INPUT_AT], result
    return header[RECV_AT] + result


@njit
def unpack(at):  # type: ignore[no-untyped-def]
    """Unpack the output of the call."""
    header = line(at, HEADER)
    copy_blocks(at, header[BEFORE], header[BEFORE] + header[AFTER], header[UNPACK])
