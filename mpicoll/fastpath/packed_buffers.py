"""Make the words by which pack.py packs and unpacks buffers with holes, and copies in-place results."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.buffer import Buffer, ScatteredBuffer
from ..buffers.packing import ByRuns
from ..buffers.vector import Vector
from ..dispatch.call import Call
from ..dispatch.staging import aligned, has_result, result_blocks, staged_bytes
from ..kernels.memory import address_of
from ..kernels.serving import copy_bytes, pack_elements, unpack_elements
from ..plans.plan import ALIGN, align
from .pack import (
    AFTER,
    BEFORE,
    BLOCK,
    HEADER,
    IN_SEND_ARRAY,
    INPUT_AT,
    NOT_PACKED,
    PACK,
    RECV_AT,
    RECV_DATA,
    SCRATCH,
    SEND_AT,
    SEND_DATA,
    UNPACK,
)


class PackedBuffers:
    """The words for one kind of call. nbytes is its scratch: `behind` bytes of the plan, then packed data.

    arrays: the addresses of the arrays in which the buffers are.
    """

    def __init__(self, call: Call, rank: int, behind: int, arrays: tuple[int, int]) -> None:
        assert call.arguments is not None
        send, recv = call.arguments.send, call.arguments.recv
        is_bcast, is_root = call.collective == "bcast", rank == call.root
        is_written = has_result(call, rank)
        self.keep: list[Any] = []
        header = np.zeros(HEADER, np.int64)
        header[[PACK, UNPACK]] = pack_elements.address, unpack_elements.address
        before: list[tuple[int, ...]] = []
        after: list[tuple[int, ...]] = []
        header[[INPUT_AT, SEND_AT, RECV_AT]] = IN_SEND_ARRAY, NOT_PACKED, NOT_PACKED
        self.nbytes = align(behind)
        if call.prepared.staged:
            assert recv is not None
            first = recv.address - arrays[1]
            header[INPUT_AT], header[RECV_AT] = first, self.nbytes
            results = result_blocks(call, rank) if is_written else ()
            after = [(at, 1, first + place, size, 1, 0) for at, place, size in results]
            self.nbytes += staged_bytes(call, rank)
        for side, (buffer, array) in enumerate(zip((None if is_bcast else send, recv), arrays)):
            if buffer is None or buffer.contiguous:
                continue
            header[SEND_AT + side] = self.nbytes
            words = self._words(side, buffer, buffer.address - array)
            self.nbytes += align(buffer.packed_nbytes)
            if side == 0 or (is_root if is_bcast else call.keeps_output):
                before += words
            if side == 1 and (not is_root if is_bcast else is_written):
                after += words
        header[[BEFORE, AFTER]] = len(before), len(after)
        self.words = np.concatenate([header, np.array(before + after, np.int64).reshape(-1)])
        self.at = address_of(self.words)

    @classmethod
    def of_arrays(cls, call: Call, rank: int, behind: int) -> PackedBuffers:
        """Return the words for calls with other arrays; pack.pack() gets their addresses."""
        messages = call.invocation.send, call.invocation.recv
        arrays = (message[0] if isinstance(message, (list, tuple)) else message for message in messages)
        send, recv = (MPI.Get_address(array) if isinstance(array, np.ndarray) else 0 for array in arrays)
        return cls(call, rank, behind, (send, recv))

    @classmethod
    def of_starts(cls, call: Call, rank: int) -> PackedBuffers:
        """Return the words for all starts of a persistent call, which has memory of its own for packed data.

        Raises NotCompiled.
        """
        for kernel in (pack_elements, unpack_elements):
            kernel.prepare()
        assert call.arguments is not None
        buffers = call.arguments.send, call.arguments.recv
        send, recv = (buffer.address if buffer is not None else 0 for buffer in buffers)
        packed = cls(call, rank, 0, (send, recv))
        memory = np.empty(packed.nbytes + ALIGN, np.uint8)
        packed.keep.append(memory)
        packed.words[[SCRATCH, SEND_DATA, RECV_DATA]] = aligned(memory), send, recv
        return packed

    def unpack(self) -> None:
        """Unpack the output of a call that left the fast path."""
        header, blocks = self.words[:HEADER], self.words[HEADER:].reshape(-1, BLOCK)
        for at, side, place, *elements in blocks[header[BEFORE] :].tolist():
            packed, base = int(header[SCRATCH] + header[SEND_AT + side]) + at, int(header[SEND_DATA + side]) + place
            if elements[-1] == 0:
                copy_bytes(base, packed, elements[0])
            else:
                unpack_elements(packed, base, *elements)

    def _words(self, side: int, buffer: Buffer, first: int) -> list[tuple[int, ...]]:
        """Return the words of the blocks that are not empty; the buffer begins `first` bytes from its array."""
        blocks: list[tuple[int, int, int, Any]]  # the last is a ByRuns
        if isinstance(buffer, Vector):
            known = zip(buffer.at, buffer.offsets, buffer.counts, buffer.types, buffer.sizes)
            blocks = [(at, place, n, buffer.packers[id(facts)]) for at, place, n, facts, size in known if size]
        else:
            assert isinstance(buffer, ScatteredBuffer)
            blocks = [(0, 0, buffer.elements, buffer.packer)]
        self.keep += [packer for *_, packer in blocks]
        return [(at, side, first + place, n, by.extent, by.runs.layout.address) for at, place, n, by in blocks]


def needs_packing(call: Call) -> bool:
    """Return whether a call has buffers with holes, or a result in separate memory."""
    return call.prepared.staged or (call.arguments is not None and not call.arguments.contiguous)


def are_packable(call: Call) -> bool:
    """Return whether compiled code can pack and unpack the buffers of a call, and copy its result if it is staged."""
    arguments = call.arguments
    if call.prepared.staged:
        return arguments is not None and arguments.contiguous
    return arguments is None or all(
        buffer is None or buffer.contiguous or _is_packable(buffer) for buffer in (arguments.send, arguments.recv)
    )


def _is_packable(buffer: Buffer) -> bool:
    if isinstance(buffer, Vector):
        return all(isinstance(packer, ByRuns) for packer in buffer.packers.values())
    return isinstance(buffer, ScatteredBuffer) and isinstance(buffer.packer, ByRuns)
