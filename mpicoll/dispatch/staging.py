"""Stage the memory of a call: the input, output and scratch of its plan, and copies from and to the user's buffers.

A plan uses contiguous buffers directly. Buffers with holes are packed before the plan runs and unpacked afterwards. An
in-place result that would overwrite its own input goes to separate memory, and is copied back at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from ..buffers.buffer import Buffer
from ..buffers.vector import Vector
from ..kernels import reference
from ..kernels.serving import copy_bytes
from ..plans.plan import Shares, align
from ..runtime.comm_state import CommState
from .call import Call


class Memory:
    """The addresses of input, output and scratch.

    copy_result copies the output to the user's buffer, None if that is not needed; keep refers to arrays in use.
    """

    __slots__ = ("copy_result", "keep", "scratch", "scratch_address", "source", "target")

    def __init__(self) -> None:
        self.source = self.target = self.scratch_address = 0
        self.copy_result: Callable[[], None] | None = None
        self.keep: list[Any] | None = None
        self.scratch: np.ndarray | None = None


def scratch_bytes(call: Call, rank: int) -> int:
    """Return the bytes of scratch that a call needs: for its plan, and for a result in separate memory."""
    assert call.prepared.plan is not None
    nbytes = call.prepared.plan.scratch_bytes
    return align(nbytes) + staged_bytes(call, rank) if call.prepared.staged else nbytes


def staged_bytes(call: Call, rank: int) -> int:
    """Return the bytes of separate memory that a staged result needs."""
    return max(at + size for at, _, size in result_blocks(call, rank))


def place_buffers(call: Call, state: CommState, scratch: np.ndarray | None) -> Memory:
    """Return the memory of a call, after packing input with holes. scratch: None if scratch_bytes() is 0."""
    memory, arguments = Memory(), call.arguments
    memory.scratch = scratch
    if scratch is not None:
        memory.scratch_address = aligned(scratch)
    if arguments is None:
        return memory
    send, recv = arguments.send, arguments.recv
    if call.prepared.staged:
        _stage_result(memory, call, state.rank)
        if not has_result(call, state.rank):
            memory.copy_result = None
    elif call.collective == "bcast":
        assert recv is not None
        _output(memory, recv, with_data=True, read_back=state.rank != call.root)
    else:
        if send is not None:
            memory.source = send.address if send.contiguous else _packed(memory, send)
        if recv is not None and recv.contiguous:
            memory.target = recv.address
        elif recv is not None:
            _output(memory, recv, call.keeps_output, read_back=has_result(call, state.rank))
    return memory


def aligned(scratch: np.ndarray) -> int:
    """Return the first aligned address in an array, which must be ALIGN bytes longer than its use."""
    return align(MPI.Get_address(scratch))


def has_result(call: Call, rank: int) -> bool:
    """Return whether the call writes to the receive buffer of this rank, which has one."""
    return call.collective != "exscan" or rank != 0


def _result_bytes(call: Call, rank: int) -> int:
    if call.collective != "reduce_scatter":
        return call.prepared.nbytes
    counts = call.counts
    assert not isinstance(counts, Shares)
    return call.unit * (counts[rank] if isinstance(counts, tuple) else counts)


def divide_result(call: Call, state: CommState) -> None:
    """Divide the sums that MPI's own collective has written on this rank by the number of ranks."""
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
        memory.copy_result = lambda: buffer.unpack(packed)


def _stage_result(memory: Memory, call: Call, rank: int) -> None:
    """Use the receive buffer as input. The output is in scratch, after the plan's; it is copied at the end."""
    assert call.arguments is not None and call.arguments.recv is not None and call.prepared.plan is not None
    buffer, blocks = call.arguments.recv, result_blocks(call, rank)
    packed = None if buffer.contiguous else buffer.pack()
    memory.keep = [packed]
    memory.source = base = buffer.address if packed is None else MPI.Get_address(packed)
    memory.target = result = memory.scratch_address + align(call.prepared.plan.scratch_bytes)

    def copy_back() -> None:  # without a reference to `memory`, which would be a cycle
        for at, place, size in blocks:
            copy_bytes(base + place, result + at, size)
        if packed is not None:
            buffer.unpack(packed)

    memory.copy_result = copy_back


def result_blocks(call: Call, rank: int) -> list[tuple[int, int, int]]:
    """Return (offset in the separate memory, offset in the receive buffer, bytes) of each block of a staged result.

    Blocks have the same layout in both; the separate memory begins where the buffer does, or at the first block.
    """
    assert call.arguments is not None and call.arguments.recv is not None
    recv = call.arguments.recv
    if isinstance(recv, Vector):
        first = min(0, *recv.at)
        return [(at - first, at, size) for at, size in zip(recv.at, recv.sizes)]
    return [(0, 0, _result_bytes(call, rank))]
