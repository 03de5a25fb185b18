"""Parse and check the arguments of the v-forms (Gatherv, Alltoallw, ...), as arguments.py does for other collectives.

Their counts are a Shares: sizes and offsets of this rank's blocks, in bytes. Other ranks may have other datatypes and
displacements. If only the root passes counts, the others have none.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import errors
from ..plans.plan import Shares
from .arguments import Arguments, check_root
from .buffer import Buffer
from .parse import parse_buffer
from .vector import Vector, check_apart, parse_typed_vector, parse_vector

_IN_PLACE = MPI.IN_PLACE


def parse_gatherv(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Parse a gatherv: ranks other than the root have only `send` and ignore `recvbuf`."""
    if check_root(root, size) == rank:
        return _receive_blocks(sendbuf, recvbuf, rank, size)
    send = parse_buffer(sendbuf)
    return Arguments(send, None, False, Shares((send.size,), (), (0,), ()))


def parse_allgatherv(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Arguments:
    """Parse an allgatherv: `recv` has a block per rank, with equal counts on all; in place it contains this rank's."""
    arguments = _receive_blocks(sendbuf, recvbuf, rank, size)
    shares = arguments.counts
    assert isinstance(shares, Shares)
    arguments.counts = Shares(shares.sends, shares.receives, shares.send_at, shares.recv_at, every=shares.receives)
    return arguments


def _receive_blocks(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Arguments:
    recv = parse_vector(recvbuf, True, size)
    in_place = sendbuf is _IN_PLACE or sendbuf is None
    send = None if in_place else parse_buffer(sendbuf)
    if send is not None:
        _check_own(send, send.size, recv, recv.sizes[rank], rank)
    return Arguments(send, recv, in_place, Shares((recv.sizes[rank],), recv.sizes, (0,), recv.at))


def parse_scatterv(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Parse a scatterv: ranks other than the root have only `recv`; in place the root keeps its own block in `send`."""
    if check_root(root, size) != rank:
        recv = parse_buffer(recvbuf, True)
        return Arguments(None, recv, False, Shares((), (recv.size,), (), (0,)))
    send = parse_vector(sendbuf, False, size)
    own = send.sizes[rank]
    shares = Shares(send.sizes, (own,), send.at, (0,))
    if recvbuf is _IN_PLACE or recvbuf is None:
        return Arguments(send, None, True, shares)
    recv = parse_buffer(recvbuf, True)
    _check_own(send, own, recv, recv.size, rank)
    return Arguments(send, recv, False, shares)


def parse_alltoallv(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Arguments:
    """Parse an alltoallv: both sides have a block per rank; in place `recv` describes both."""
    recv = parse_vector(recvbuf, True, size)
    in_place = sendbuf is _IN_PLACE or sendbuf is None
    return _exchange_blocks(None if in_place else parse_vector(sendbuf, False, size), recv, rank)


def parse_alltoallw(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Arguments:
    """Parse an alltoallw: as an alltoallv, with a datatype per block and displacements in bytes."""
    recv = parse_typed_vector(recvbuf, True, size)
    in_place = sendbuf is _IN_PLACE or sendbuf is None
    return _exchange_blocks(None if in_place else parse_typed_vector(sendbuf, False, size), recv, rank)


def _exchange_blocks(send: Vector | None, recv: Vector, rank: int) -> Arguments:
    if send is None:
        return Arguments(None, recv, True, Shares(recv.sizes, recv.sizes, recv.at, recv.at))
    _check_own(send, send.sizes[rank], recv, recv.sizes[rank], rank)
    return Arguments(send, recv, False, Shares(send.sizes, recv.sizes, send.at, recv.at))


def _check_own(send: Buffer, sent: int, recv: Buffer, received: int, rank: int) -> None:
    """Check that the block a rank sends to itself has the length of the one it receives, and no buffers overlap."""
    if sent != received:
        raise errors.CountMismatch(
            f"rank {rank} sends {sent} bytes to itself and receives {received} bytes from itself; "
            f"the two must be equal"
        )
    check_apart(send.spans(), recv.spans())
