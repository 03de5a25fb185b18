"""From the arguments of a neighbourhood collective to checked memory: as arguments.py, for a block per neighbour.

What a rank knows of its blocks is a Shares: it knows its own sizes, and its neighbours may have others. Places of a
buffer whose neighbour does not exist are checked as all others, and nothing is sent from or received into them. MPI
has no form in place.
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
from .parse import buffer
from .vector import Vector, check_apart, vector, vector_of_types

Block = tuple[int, int]  # bytes, and where they lie


def parse_neighbor_allgather(sendbuf: Any, recvbuf: Any, near: Ends) -> Arguments:
    """Return the arguments of a neighbor_allgather: one block to send, and one to receive from each neighbour."""
    _check_two(sendbuf, recvbuf)
    recv, send = _equal(recvbuf, True, len(near.receives)), buffer(sendbuf)
    return _exchanged(send, _one(send, near), recv, _equal_blocks(recv, near.receives), near)


def parse_neighbor_allgatherv(sendbuf: Any, recvbuf: Any, near: Ends) -> Arguments:
    """Return the arguments of a neighbor_allgatherv: as parse_neighbor_allgather, with counts and places to receive."""
    _check_two(sendbuf, recvbuf)
    recv, send = vector(recvbuf, True, len(near.receives), "neighbour"), buffer(sendbuf)
    return _exchanged(send, _one(send, near), recv, _own_blocks(recv), near)


def parse_neighbor_alltoall(sendbuf: Any, recvbuf: Any, near: Ends) -> Arguments:
    """Return the arguments of a neighbor_alltoall: equal blocks, one to and one from each neighbour."""
    _check_two(sendbuf, recvbuf)
    recv, send = _equal(recvbuf, True, len(near.receives)), _equal(sendbuf, False, len(near.sends))
    return _exchanged(send, _equal_blocks(send, near.sends), recv, _equal_blocks(recv, near.receives), near)


def parse_neighbor_alltoallv(sendbuf: Any, recvbuf: Any, near: Ends) -> Arguments:
    """Return the arguments of a neighbor_alltoallv: both sides have counts and places."""
    _check_two(sendbuf, recvbuf)
    recv = vector(recvbuf, True, len(near.receives), "neighbour")
    send = vector(sendbuf, False, len(near.sends), "neighbour")
    return _exchanged(send, _own_blocks(send), recv, _own_blocks(recv), near)


def parse_neighbor_alltoallw(sendbuf: Any, recvbuf: Any, near: Ends) -> Arguments:
    """Return the arguments of a neighbor_alltoallw: a datatype for every block too, and displacements in bytes."""
    _check_two(sendbuf, recvbuf)
    recv = vector_of_types(recvbuf, True, len(near.receives), "neighbour")
    send = vector_of_types(sendbuf, False, len(near.sends), "neighbour")
    return _exchanged(send, _own_blocks(send), recv, _own_blocks(recv), near)


def _check_two(*messages: Any) -> None:
    if any(message is MPI.IN_PLACE for message in messages):
        raise errors.InPlaceError("neighbourhood collectives have no form in place; pass a send and a receive buffer")


def _equal(message: Any, writable: bool, blocks: int) -> Buffer:
    """Return a buffer of equal blocks; without neighbours it is taken whole, and not used."""
    return buffer(message, writable, max(1, blocks))


def _one(send: Buffer, near: Ends) -> list[Block]:
    """Return the one block that goes to every neighbour."""
    return [(send.packed_nbytes, 0)] * len(near.sends)


def _equal_blocks(side: Buffer, edges: Sequence[Edge | None]) -> list[Block]:
    size = side.packed_nbytes // side.blocks
    return [(size, i * size) for i in range(len(edges))]


def _own_blocks(side: Vector) -> list[Block]:
    return list(zip(side.sizes, side.at))


def _exchanged(send: Buffer, sent: Sequence[Block], recv: Buffer, received: Sequence[Block], near: Ends) -> Arguments:
    """Return the arguments, with the blocks whose neighbours exist. Raises CountMismatch, OverlapError."""
    sends = {edge: block for edge, block in zip(near.sends, sent, strict=True) if edge is not None}
    receives = {edge: block for edge, block in zip(near.receives, received, strict=True) if edge is not None}
    for edge in sends.keys() & receives.keys():
        if sends[edge][0] != receives[edge][0]:
            raise errors.CountMismatch(
                f"rank {edge[0]} is its own neighbour: it sends {sends[edge][0]} bytes to itself and receives "
                f"{receives[edge][0]} bytes from itself; they must be equally many"
            )
    check_apart(send.spans(), recv.spans())
    (send_sizes, send_at), (recv_sizes, recv_at) = (
        (tuple(size for size, _ in blocks.values()), tuple(at for _, at in blocks.values()))
        for blocks in (sends, receives)
    )
    return Arguments(send, recv, False, Shares(send_sizes, recv_sizes, send_at, recv_at))
