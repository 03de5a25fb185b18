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
from ..plans.plan import ALIGN, Shares
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


def place_buffers(call: Call, state: CommState, scratch: np.ndarray | None) -> Memory:
    """Return the memory of a call, with scratch for its plan, after packing input with holes."""
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
            _stage_result(memory, recv, _result_bytes(call, state.rank))
        if _has_no_result(call, state.rank):
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
            _output(memory, recv, call.keeps_output, read_back=not _has_no_result(call, state.rank))
    return memory


def aligned(scratch: np.ndarray) -> int:
    """Return the first aligned address in an array, which must be ALIGN bytes longer than its use."""
    return -(-MPI.Get_address(scratch) // ALIGN) * ALIGN


def _has_no_result(call: Call, rank: int) -> bool:
    """Return whether the receive buffer of this rank must not change."""
    return call.collective == "exscan" and rank == 0


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


def _stage_result(memory: Memory, buffer: Buffer, nbytes: int) -> None:
    """Use the receive buffer as input; the output is an array of nbytes, copied to the buffer's beginning at last."""
    result = np.empty(nbytes, np.uint8)
    packed = None if buffer.contiguous else buffer.pack()
    memory.keep = [result, packed]
    memory.source = buffer.address if packed is None else MPI.Get_address(packed)
    memory.target = MPI.Get_address(result)

    def copy_back() -> None:
        if packed is None:
            np.frombuffer(MPI.buffer.fromaddress(buffer.address, nbytes), np.uint8)[:] = result  # type: ignore[call-overload]
        else:
            packed[:nbytes] = result
            buffer.unpack(packed)

    memory.copy_result = copy_back


def _stage_blocks(memory: Memory, buffer: Vector) -> None:
    """Use the receive buffer as input. The output is an array of all blocks, copied to their places at the end."""
    result = np.empty(buffer.nbytes, np.uint8)
    memory.keep = [result]
    memory.source = buffer.address if buffer.contiguous else _packed(memory, buffer)
    memory.target = MPI.Get_address(result)
    memory.copy_result = lambda: buffer.unpack(result)
