"""Parse and check the arguments of a neighbourhood collective, as arguments.py does for a block per neighbour.

The counts of these arguments are a Shares of this rank's blocks; its neighbours may have others. Blocks of
MPI.PROC_NULL neighbours are checked like all others, but neither sent nor received. MPI has no in-place form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mpi4py import MPI

from .. import errors
from ..plans.plan import Shares
from ..schedules.graphs import Edge, Ends
from .arguments import Arguments
from .buffer import Buffer
from .parse import parse_buffer
from .vector import Vector, check_apart, parse_typed_vector, parse_vector

Block = tuple[int, int]  # bytes, offset


def parse_neighbor_allgather(sendbuf: Any, recvbuf: Any, ends: Ends) -> Arguments:
    """Parse a neighbor_allgather: one block to send, and one to receive from each neighbour."""
    _check_not_in_place(sendbuf, recvbuf)
    recv, send = _equal_buffer(recvbuf, True, len(ends.receives)), parse_buffer(sendbuf)
    return _exchange_blocks(send, _repeat_block(send, ends), recv, _equal_blocks(recv, ends.receives), ends)


def parse_neighbor_allgatherv(sendbuf: Any, recvbuf: Any, ends: Ends) -> Arguments:
    """Parse a neighbor_allgatherv: as neighbor_allgather, with counts and displacements to receive."""
    _check_not_in_place(sendbuf, recvbuf)
    recv, send = parse_vector(recvbuf, True, len(ends.receives), "neighbour"), parse_buffer(sendbuf)
    return _exchange_blocks(send, _repeat_block(send, ends), recv, _vector_blocks(recv), ends)


def parse_neighbor_alltoall(sendbuf: Any, recvbuf: Any, ends: Ends) -> Arguments:
    """Parse a neighbor_alltoall: equal blocks, one to and one from each neighbour."""
    _check_not_in_place(sendbuf, recvbuf)
    recv, send = _equal_buffer(recvbuf, True, len(ends.receives)), _equal_buffer(sendbuf, False, len(ends.sends))
    return _exchange_blocks(send, _equal_blocks(send, ends.sends), recv, _equal_blocks(recv, ends.receives), ends)


def parse_neighbor_alltoallv(sendbuf: Any, recvbuf: Any, ends: Ends) -> Arguments:
    """Parse a neighbor_alltoallv: both sides have counts and displacements."""
    _check_not_in_place(sendbuf, recvbuf)
    recv = parse_vector(recvbuf, True, len(ends.receives), "neighbour")
    send = parse_vector(sendbuf, False, len(ends.sends), "neighbour")
    return _exchange_blocks(send, _vector_blocks(send), recv, _vector_blocks(recv), ends)


def parse_neighbor_alltoallw(sendbuf: Any, recvbuf: Any, ends: Ends) -> Arguments:
    """Parse a neighbor_alltoallw: as neighbor_alltoallv, with a datatype per block and displacements in bytes."""
    _check_not_in_place(sendbuf, recvbuf)
    recv = parse_typed_vector(recvbuf, True, len(ends.receives), "neighbour")
    send = parse_typed_vector(sendbuf, False, len(ends.sends), "neighbour")
    return _exchange_blocks(send, _vector_blocks(send), recv, _vector_blocks(recv), ends)


def _check_not_in_place(*messages: Any) -> None:
    if any(message is MPI.IN_PLACE for message in messages):
        raise errors.InPlaceError("neighbourhood collectives have no in-place form; pass a send and a receive buffer")


def _equal_buffer(message: Any, writable: bool, blocks: int) -> Buffer:
    """Return a buffer of equal blocks; without neighbours it is one block, which no message uses."""
    return parse_buffer(message, writable, max(1, blocks))


def _repeat_block(send: Buffer, ends: Ends) -> list[Block]:
    """Return the block to send to each neighbour, which is the same for all."""
    return [(send.packed_nbytes, 0)] * len(ends.sends)


def _equal_blocks(side: Buffer, edges: Sequence[Edge | None]) -> list[Block]:
    size = side.packed_nbytes // side.blocks
    return [(size, i * size) for i in range(len(edges))]


def _vector_blocks(side: Vector) -> list[Block]:
    return list(zip(side.sizes, side.at))


def _exchange_blocks(
    send: Buffer, sent: Sequence[Block], recv: Buffer, received: Sequence[Block], ends: Ends
) -> Arguments:
    """Return the arguments, without blocks of missing neighbours. Raises CountMismatch, OverlapError."""
    sends = {edge: block for edge, block in zip(ends.sends, sent, strict=True) if edge is not None}
    receives = {edge: block for edge, block in zip(ends.receives, received, strict=True) if edge is not None}
    for edge in sends.keys() & receives.keys():
        if sends[edge][0] != receives[edge][0]:
            raise errors.CountMismatch(
                f"rank {edge[0]} is its own neighbour: it sends {sends[edge][0]} bytes to itself and receives "
                f"{receives[edge][0]} bytes from itself; the two must be equal"
            )
    check_apart(send.spans(), recv.spans())
    (send_sizes, send_at), (recv_sizes, recv_at) = (
        (tuple(size for size, _ in blocks.values()), tuple(at for _, at in blocks.values()))
        for blocks in (sends, receives)
    )
    return Arguments(send, recv, False, Shares(send_sizes, recv_sizes, send_at, recv_at))
