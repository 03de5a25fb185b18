"""From the arguments of a collective with counts for every rank to checked memory: as arguments.py, for the v-forms.

What these know of their blocks is a Shares: their sizes in bytes and where they lie. It is this rank's own: other
ranks may have other datatypes, displacements and, where only the root says them, no counts at all.
"""

from __future__ import annotations

from typing import Any

from mpi4py import MPI

from .. import errors
from ..plans.plan import Shares
from .arguments import Arguments, check_root
from .buffer import Buffer
from .parse import buffer
from .vector import Vector, check_apart, vector, vector_of_types

_IN_PLACE = MPI.IN_PLACE


def parse_gatherv(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Off the root there is only `send`, and nothing looks at `recvbuf`."""
    if check_root(root, size) == rank:
        return _gathered(sendbuf, recvbuf, rank, size)
    send = buffer(sendbuf)
    return Arguments(send, None, False, Shares((send.size,), (), (0,), ()))


def parse_allgatherv(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Arguments:
    """`recv` has a block for every rank, and every rank says the same counts; in place the own block is there."""
    arguments = _gathered(sendbuf, recvbuf, rank, size)
    known = arguments.counts
    assert isinstance(known, Shares)
    arguments.counts = Shares(known.sends, known.receives, known.send_at, known.recv_at, every=known.receives)
    return arguments


def _gathered(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Arguments:
    recv = vector(recvbuf, True, size)
    in_place = sendbuf is _IN_PLACE or sendbuf is None
    send = None if in_place else buffer(sendbuf)
    if send is not None:
        _check_own(send, send.size, recv, recv.sizes[rank], rank)
    return Arguments(send, recv, in_place, Shares((recv.sizes[rank],), recv.sizes, (0,), recv.at))


def parse_scatterv(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Off the root there is only `recv`.  At the root `recvbuf` may be in place: its own block stays put."""
    if check_root(root, size) != rank:
        recv = buffer(recvbuf, True)
        return Arguments(None, recv, False, Shares((), (recv.size,), (), (0,)))
    send = vector(sendbuf, False, size)
    own = send.sizes[rank]
    known = Shares(send.sizes, (own,), send.at, (0,))
    if recvbuf is _IN_PLACE or recvbuf is None:
        return Arguments(send, None, True, known)
    recv = buffer(recvbuf, True)
    _check_own(send, own, recv, recv.size, rank)
    return Arguments(send, recv, False, known)


def parse_alltoallv(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Arguments:
    """Return the arguments of an alltoallv: both sides have a block for every rank; in place `recv` says both."""
    recv = vector(recvbuf, True, size)
    in_place = sendbuf is _IN_PLACE or sendbuf is None
    return _exchanged(None if in_place else vector(sendbuf, False, size), recv, rank)


def parse_alltoallw(sendbuf: Any, recvbuf: Any, rank: int, size: int) -> Arguments:
    """As parse_alltoallv, with a datatype for every block and displacements in bytes."""
    recv = vector_of_types(recvbuf, True, size)
    in_place = sendbuf is _IN_PLACE or sendbuf is None
    return _exchanged(None if in_place else vector_of_types(sendbuf, False, size), recv, rank)


def _exchanged(send: Vector | None, recv: Vector, rank: int) -> Arguments:
    if send is None:
        return Arguments(None, recv, True, Shares(recv.sizes, recv.sizes, recv.at, recv.at))
    _check_own(send, send.sizes[rank], recv, recv.sizes[rank], rank)
    return Arguments(send, recv, False, Shares(send.sizes, recv.sizes, send.at, recv.at))


def _check_own(send: Buffer, sent: int, recv: Buffer, received: int, rank: int) -> None:
    """Check that what a rank sends to itself is what it receives from itself, and lies elsewhere."""
    if sent != received:
        raise errors.CountMismatch(
            f"rank {rank} sends {sent} bytes to itself and receives {received} bytes from itself; "
            f"they must be equally many"
        )
    check_apart(send.spans(), recv.spans())
