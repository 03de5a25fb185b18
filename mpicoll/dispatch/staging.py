"""The memory of one call: where its plan finds input and leaves output, and how the user's data gets there and back.

Contiguous buffers are used as they are. A layout with holes is packed before and unpacked after.
A result in place that would lie across its own input goes to memory of its own, and is copied back at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.buffer import Buffer
from ..buffers.vector import Vector
from ..kernels import reference
from ..plans.plan import ALIGN, Shares
from ..runtime.comm_state import CommState
from .call import Call


class Memory:
    """Addresses of input, output and scratch; `after` brings results home, `keep` holds what must stay alive."""

    __slots__ = ("after", "keep", "scratch", "scratch_address", "source", "target")

    def __init__(self) -> None:
        self.source = self.target = self.scratch_address = 0
        self.after: Callable[[], None] | None = None
        self.keep: list[Any] | None = None
        self.scratch: np.ndarray | None = None


def place(call: Call, state: CommState, scratch: np.ndarray | None) -> Memory:
    """Return the memory of a call, with scratch for its plan; packs what has to be packed."""
    memory, arguments = Memory(), call.arguments
    memory.scratch = scratch
    if scratch is not None:
        memory.scratch_address = aligned(scratch)
    if arguments is None:
        return memory
    send, recv = arguments.send, arguments.recv
    if call.prepared.staged:
        assert recv is not None
        if isinstance(recv, Vector):
            _stage_blocks(memory, recv)
        else:
            _stage(memory, recv, _result_bytes(call, state.rank))
        if _has_no_result(call, state.rank):
            memory.after = None
    elif call.collective == "bcast":
        assert recv is not None
        _output(memory, recv, with_data=True, read_back=state.rank != call.root)
    else:
        if send is not None:
            memory.source = send.address if send.contiguous else _packed(memory, send)
        if recv is not None and recv.contiguous:
            memory.target = recv.address
        elif recv is not None:
            _output(memory, recv, call.keeps_output, read_back=not _has_no_result(call, state.rank))
    return memory


def aligned(scratch: np.ndarray) -> int:
    """Return the first aligned address in an array that has room for it."""
    return -(-MPI.Get_address(scratch) // ALIGN) * ALIGN


def _has_no_result(call: Call, rank: int) -> bool:
    """Return whether the receive buffer must stay as it is."""
    return call.collective == "exscan" and rank == 0


def _result_bytes(call: Call, rank: int) -> int:
    if call.collective != "reduce_scatter":
        return call.prepared.nbytes
    counts = call.counts
    assert not isinstance(counts, Shares)
    return call.unit * (counts[rank] if isinstance(counts, tuple) else counts)


def divide(call: Call, state: CommState) -> None:
    """Make averages of the sums that MPI's own collective has left on this rank."""
    recv = call.arguments.recv if call.arguments is not None else None
    nbytes = _result_bytes(call, state.rank)
    if recv is None or not nbytes:
        return
    assert call.operator is not None
    result = np.frombuffer(MPI.buffer.fromaddress(recv.address, nbytes), call.operator.dtype)  # type: ignore[call-overload]
    reference.divide(result, result, state.size)


def _packed(memory: Memory, buffer: Buffer) -> int:
    packed = buffer.pack()
    memory.keep = [*(memory.keep or ()), packed]
    return MPI.Get_address(packed)


def _output(memory: Memory, buffer: Buffer, with_data: bool, read_back: bool = True) -> None:
    if buffer.contiguous:
        memory.target = buffer.address
        return
    packed = buffer.pack() if with_data else np.empty(buffer.packed_nbytes, np.uint8)
    memory.keep = [*(memory.keep or ()), packed]
    memory.target = MPI.Get_address(packed)
    if read_back:
        memory.after = lambda: buffer.unpack(packed)


def _stage(memory: Memory, buffer: Buffer, nbytes: int) -> None:
    """Take the receive buffer for the input; the output is an array of nbytes, copied to its beginning in the end."""
    result = np.empty(nbytes, np.uint8)
    packed = None if buffer.contiguous else buffer.pack()
    memory.keep = [result, packed]
    memory.source = buffer.address if packed is None else MPI.Get_address(packed)
    memory.target = MPI.Get_address(result)

    def back() -> None:
        if packed is None:
            np.frombuffer(MPI.buffer.fromaddress(buffer.address, nbytes), np.uint8)[:] = result  # type: ignore[call-overload]
        else:
            packed[:nbytes] = result
            buffer.unpack(packed)

    memory.after = back


def _stage_blocks(memory: Memory, buffer: Vector) -> None:
    """Take the receive buffer for the input; the output is an array of all blocks, copied to its places at last."""
    result = np.empty(buffer.nbytes, np.uint8)
    memory.keep = [result]
    memory.source = buffer.address if buffer.contiguous else _packed(memory, buffer)
    memory.target = MPI.Get_address(result)
    memory.after = lambda: buffer.unpack(result)
