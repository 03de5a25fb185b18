"""From the arguments of a collective to checked memory.

One `parse_*` function per collective takes what mpi4py's method takes, refuses what mpi4py refuses (with an
error that is also mpi4py's, see `mpicoll.errors`) and checks all that one rank can know before it sends.
Buffers are described as in mpi4py 4.1: an object, `[object, count, displacement, datatype]` or one of its
shorter forms; `None` or `MPI.IN_PLACE` on the send side (at a scatter's root: the receive side) say in place, and
so do, in a reduction or scan, two buffers that are one, as in mpi4py from 4.2 on.

Stricter than mpi4py in what MPI calls erroneous and the libraries answer with wrong data or an abort: send
and receive memory must not overlap, elements must lie within the object that was passed, and what a rank
sends to itself must be exactly as long as what it receives from itself.  What an operator takes is not
checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from mpi4py import MPI

from .. import errors
from ..plans.plan import Shares
from .buffer import Buffer
from .parse import buffer, integers, kind

_IN_PLACE = MPI.IN_PLACE
_INTS = range(-(1 << 31), 1 << 31)  # what a C int holds


class Arguments:
    """The checked arguments of one call.  A side that this rank does not have, or that is in place, is None.

    `counts`: for reduce_scatter the elements of every rank, for the v-forms this rank's blocks, otherwise None.
    `unsettled`: a rank alone does not know the counts; the ranks exchange them and call `set_counts`.
    `one`: the caller's message, if send and receive side are one buffer without MPI.IN_PLACE or None. mpi4py before
    4.2 does not recognise such a call as in place.
    """

    __slots__ = ("counts", "in_place", "one", "recv", "send", "unsettled")

    def __init__(
        self, send: Buffer | None, recv: Buffer | None, in_place: bool, counts: tuple[int, ...] | Shares | None = None
    ) -> None:
        self.send = send
        self.recv = recv
        self.in_place = in_place
        self.counts = counts
        self.one: Any = None
        self.unsettled = False

    @property
    def contiguous(self) -> bool:
        """Return whether both sides are contiguous, so that nothing has to be packed."""
        send, recv = self.send, self.recv
        return (send is None or send.contiguous) and (recv is None or recv.contiguous)


# One function per collective


def parse_bcast(buf: Any, root: int, rank: int, size: int) -> Arguments:
    """Return the arguments of a bcast: `send` and `recv` are one buffer, which may be read-only at the root."""
    root = check_root(root, size)
    payload = buffer(buf, rank != root)
    return Arguments(payload, payload, False)


def parse_allreduce(sendbuf: Any, recvbuf: Any) -> Arguments:
    """Return both sides whole, of one datatype and count."""
    recv = buffer(recvbuf, True, 1, True)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = buffer(sendbuf, False, 1, True)
    if _are_one(send, recv):
        return _in_place(recv, recvbuf)
    _check_same(send, recv)
    return Arguments(send, recv, False)


def parse_reduce(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Off the root there is only `send`, and nothing looks at `recvbuf`."""
    if check_root(root, size) == rank:
        return parse_allreduce(sendbuf, recvbuf)
    return Arguments(buffer(sendbuf, False, 1, True), None, False)


def parse_reduce_scatter_block(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """`send` has `size` blocks, and `recv` one; in place `recv` has all."""
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, buffer(recvbuf, True, size, True), True)
    recv = buffer(recvbuf, True, 1, True)
    send = buffer(sendbuf, False, size, True)
    if _are_one(send, recv):
        return _in_place(buffer(sendbuf, True, size, True), sendbuf)
    _check_same(send, recv)
    return Arguments(send, recv, False)


def parse_reduce_scatter(
    sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, rank: int, size: int
) -> Arguments:
    """Without `recvcounts` only the ranks together know: exchange `recv.count` and call `set_counts`."""
    recv = buffer(recvbuf, True, 1, True)
    if sendbuf is _IN_PLACE or sendbuf is None:
        arguments = Arguments(None, recv, True)
    elif _are_one(send := buffer(sendbuf, False, 1, True), recv):
        arguments = _in_place(recv, recvbuf)
    else:
        arguments = Arguments(send, recv, False)
        _check_apart(send, recv)
        if recvcounts is None:
            _check_same_type(send, recv)
    if recvcounts is None and not arguments.in_place:
        arguments.unsettled = True
        return arguments
    return set_counts(arguments, integers(recvcounts, size, "recvcounts"), rank)


def set_counts(arguments: Arguments, counts: Sequence[int], rank: int) -> Arguments:
    """Check a reduce_scatter's counts of all ranks against this rank's memory, and keep them."""
    send, recv, total = arguments.send, arguments.recv, sum(counts)
    assert recv is not None
    if send is not None:
        _check_same_type(send, recv)
    whole, side = (recv, "receive") if send is None else (send, "send")
    if whole.count != total:
        raise errors.CountMismatch(
            f"the {side} buffer has {whole.count} elements and recvcounts add up to {total}; they must be equal"
        )
    if send is not None and recv.count != counts[rank]:
        raise errors.CountMismatch(
            f"the receive buffer has {recv.count} elements and recvcounts[{rank}] is {counts[rank]}; they must be equal"
        )
    if min(counts) < 0:
        raise errors.CountMismatch(f"recvcounts are {list(counts)}; none may be negative")
    arguments.counts, arguments.unsettled = tuple(counts), False
    return arguments


def parse_allgather(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """`recv` has `size` blocks, and `send` one; in place the own block is already there."""
    recv = buffer(recvbuf, True, size)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = buffer(sendbuf)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


def parse_gather(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Off the root there is only `send`, and nothing looks at `recvbuf`."""
    if check_root(root, size) == rank:
        return parse_allgather(sendbuf, recvbuf, size)
    return Arguments(buffer(sendbuf), None, False)


def parse_scatter(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Off the root there is only `recv`.  At the root `recvbuf` may be in place: its own block stays put."""
    if check_root(root, size) != rank:
        return Arguments(None, buffer(recvbuf, True), False)
    send = buffer(sendbuf, False, size)
    if recvbuf is _IN_PLACE or recvbuf is None:
        return Arguments(send, None, True)
    recv = buffer(recvbuf, True)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


def parse_alltoall(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """Return the arguments of an alltoall: both sides have `size` blocks."""
    recv = buffer(recvbuf, True, size)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = buffer(sendbuf, False, size)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


# What one rank's arguments must satisfy together


def check_root(root: Any, size: int) -> int:
    """Return the root as an int. Raises RootRangeError, RootError."""
    number: int | None = root if type(root) is int else _integer(root)
    if number is None:
        raise errors.ArgumentError(
            f"root is {root!r}, {kind(root)}; pass a rank, an integer from 0 to {size - 1}"
        )
    if 0 <= number < size:
        return number
    what = {MPI.PROC_NULL: "MPI.PROC_NULL", MPI.ROOT: "MPI.ROOT"}.get(number, str(number))
    wrong = errors.RootError if number in _INTS else errors.RootRangeError
    raise wrong(f"root is {what}; the communicator has ranks 0 to {size - 1}, pass one of them")


def _integer(root: Any) -> int | None:
    """As mpi4py converts a root: whatever has an integer value, floats truncated. None where there is none."""
    convert = int if hasattr(type(root), "__int__") else index
    try:
        return convert(root)
    except TypeError:
        return None
    except (OverflowError, ValueError):
        raise errors.RootRangeError(f"root is {root!r}; pass a rank, an integer") from None


def _are_one(send: Buffer, recv: Buffer) -> bool:
    """Return whether a reduction's two sides are one: as many elements, of one datatype, at one address."""
    return send.address == recv.address and send.count == recv.count > 0 and send.datatype == recv.datatype


def _in_place(recv: Buffer, message: Any) -> Arguments:
    """Return one buffer for both sides, which the caller passed as that message."""
    arguments = Arguments(None, recv, True)
    arguments.one = message
    return arguments


def _check_same(send: Buffer, recv: Buffer) -> None:
    """Check a reduction's two sides: one datatype, one count."""
    if send.facts is not recv.facts:
        _check_same_type(send, recv)
    if send.count != recv.count:
        raise errors.CountMismatch(
            f"{_a_block(send)} to send has {send.count} elements and {_a_block(recv)} to receive "
            f"{recv.count}; a reduction needs as many on both sides"
        )
    _check_apart(send, recv)


def _check_same_type(send: Buffer, recv: Buffer) -> None:
    if send.datatype != recv.datatype:
        raise errors.DatatypeError(
            f"the send buffer is of {send.facts.name} and the receive buffer of {recv.facts.name}; "
            f"a reduction needs one datatype, convert one of them"
        )


def _check_fit(send: Buffer, recv: Buffer) -> None:
    """Check that what a rank sends to itself is what it receives from itself."""
    sent, received = send.facts.size * send.count, recv.facts.size * recv.count
    if sent != received:
        raise errors.CountMismatch(
            f"{_a_block(send)} to send is {send.count} of {send.facts.name}, {sent} bytes, and "
            f"{_a_block(recv)} to receive is {recv.count} of {recv.facts.name}, {received} bytes; "
            f"they must be equally long"
        )
    _check_apart(send, recv)


def _check_apart(send: Buffer, recv: Buffer) -> None:
    """Only spans without holes are compared: the columns of one matrix interleave, and do not overlap."""
    start, end = recv.address, recv.address + recv.nbytes
    if send.address < end and start < send.address + send.nbytes and start < end and send.nbytes:
        if not (send.contiguous and recv.contiguous):
            return
        common = min(end, send.address + send.nbytes) - max(start, send.address)
        raise errors.OverlapError(
            f"send and receive buffer share {common} bytes of memory; pass MPI.IN_PLACE for the one that MPI "
            f"lets you omit, or copy one of them"
        )


def _a_block(buffer: Buffer) -> str:
    return "a block" if buffer.blocks > 1 else "the buffer"
