"""The memory of one call: where its plan finds input and leaves output, and how the user's data gets there and back.

Contiguous buffers are used as they are. A layout with holes is packed by its datatype before and unpacked after.
A result in place that would lie across its own input goes to memory of its own, and is copied back at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .buffers import Buffer
from .channel import Channel
from .plan import ALIGN
from .prepared import Call, Prepared


class Memory:
    """Addresses of input, output and scratch; `after` brings results home, `keep` holds what must stay alive."""

    __slots__ = ("after", "keep", "scratch", "scratch_address", "source", "target")

    def __init__(self) -> None:
        self.source = self.target = self.scratch_address = 0
        self.after: Callable[[], None] | None = None
        self.keep: list[Any] | None = None
        self.scratch: np.ndarray | None = None


def place(call: Call, prepared: Prepared, channel: Channel) -> Memory:
    """The memory of a call; packs what has to be packed."""
    memory, arguments = Memory(), call.arguments
    assert prepared.plan is not None
    if nbytes := prepared.plan.scratch_bytes:
        memory.scratch = channel.take_scratch(nbytes)
        memory.scratch_address = -(-MPI.Get_address(memory.scratch) // ALIGN) * ALIGN
    if arguments is None:
        return memory
    send, recv = arguments.send, arguments.recv
    if prepared.staged:
        assert recv is not None
        _stage(memory, recv, _result_bytes(call, channel.rank, prepared.nbytes))
    elif call.collective == "bcast":
        assert recv is not None
        _output(memory, recv, with_data=True, read_back=channel.rank != call.root)
    else:
        if send is not None:
            memory.source = send.address if send.contiguous else _packed(memory, send)
        if recv is not None:
            _output(memory, recv, with_data=arguments.in_place)
    return memory


def _result_bytes(call: Call, rank: int, nbytes: int) -> int:
    if call.collective != "reduce_scatter":
        return nbytes
    return call.unit * (call.counts[rank] if isinstance(call.counts, tuple) else call.counts)


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
    """The receive buffer is the input, the output an array of nbytes that goes to its beginning in the end."""
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
