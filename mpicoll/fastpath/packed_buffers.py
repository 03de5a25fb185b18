"""Make the words by which pack.py packs and unpacks buffers with holes."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.buffer import Buffer, ScatteredBuffer
from ..buffers.packing import ByRuns
from ..buffers.vector import Vector
from ..dispatch.call import Call
from ..kernels.memory import address_of
from ..kernels.serving import pack_elements, unpack_elements
from ..plans.plan import ALIGN
from .pack import AFTER, BEFORE, BLOCK, HEADER, NOT_PACKED, PACK, SCRATCH, SEND_AT, SEND_DATA, UNPACK


class PackedBuffers:
    """The words for one kind of call. nbytes is its scratch: `behind` bytes of the plan, then packed data."""

    def __init__(self, call: Call, rank: int, behind: int) -> None:
        assert call.arguments is not None
        send, recv = call.arguments.send, call.arguments.recv
        is_bcast, is_root = call.collective == "bcast", rank == call.root
        has_result = not (call.collective == "exscan" and rank == 0)
        self.keep: list[Any] = []
        header = np.zeros(HEADER, np.int64)
        header[[PACK, UNPACK]] = pack_elements.address, unpack_elements.address
        before: list[tuple[int, ...]] = []
        after: list[tuple[int, ...]] = []
        self.nbytes = -(-behind // ALIGN) * ALIGN
        messages = call.invocation.send, call.invocation.recv
        for side, (buffer, message) in enumerate(zip((None if is_bcast else send, recv), messages)):
            header[SEND_AT + side] = NOT_PACKED
            if buffer is None or buffer.contiguous:
                continue
            header[SEND_AT + side] = self.nbytes
            blocks = [(*block[:1], side, *block[1:]) for block in self._blocks(buffer, message[0])]
            self.nbytes += -(-buffer.packed_nbytes // ALIGN) * ALIGN
            if side == 0 or (is_root if is_bcast else call.keeps_output):
                before += blocks
            if side == 1 and (not is_root if is_bcast else has_result):
                after += blocks
        header[[BEFORE, AFTER]] = len(before), len(after)
        self.words = np.concatenate([header, np.array(before + after, np.int64).reshape(-1)])
        self.at = address_of(self.words)

    def unpack(self) -> None:
        """Unpack the output of a call that left the fast path."""
        header, blocks = self.words[:HEADER], self.words[HEADER:].reshape(-1, BLOCK)
        for at, side, place, *elements in blocks[header[BEFORE] :].tolist():
            packed, base = int(header[SCRATCH] + header[SEND_AT + side]) + at, int(header[SEND_DATA + side]) + place
            unpack_elements(packed, base, *elements)

    def _blocks(self, buffer: Buffer, array: np.ndarray) -> list[tuple[int, ...]]:
        """Return (packed offset, offset, elements, extent, layout) of every block that is not empty."""
        first = buffer.address - MPI.Get_address(array)
        listed: list[tuple[int, int, int, Any]]  # the last is a ByRuns
        if isinstance(buffer, Vector):
            known = zip(buffer.at, buffer.offsets, buffer.counts, buffer.types, buffer.sizes)
            listed = [(at, place, n, buffer.packers[id(facts)]) for at, place, n, facts, size in known if size]
        else:
            assert isinstance(buffer, ScatteredBuffer)
            listed = [(0, 0, buffer.elements, buffer.packer)]
        self.keep += [packer for *_, packer in listed]
        return [(at, first + place, n, packer.extent, packer.runs.layout.address) for at, place, n, packer in listed]


def are_packable(call: Call) -> bool:
    """Return whether compiled code can pack and unpack the buffers of a call."""
    arguments = call.arguments
    return arguments is None or all(
        buffer is None or buffer.contiguous or _is_packable(buffer) for buffer in (arguments.send, arguments.recv)
    )


def _is_packable(buffer: Buffer) -> bool:
    if isinstance(buffer, Vector):
        return all(isinstance(packer, ByRuns) for packer in buffer.packers.values())
    return isinstance(buffer, ScatteredBuffer) and isinstance(buffer.packer, ByRuns)
