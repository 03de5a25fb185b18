"""Parse and check the arguments of a collective on one rank, before any message is sent.

Each `parse_*` function accepts what mpi4py's method accepts and rejects what mpi4py rejects. Its errors are also
mpi4py's, see `mpicoll.errors`. A buffer is described as in mpi4py 4.1: an object, `[object, count, displacement,
datatype]` or one of its shorter forms. A call is in place if its send side (at a scatter's root: its receive side) is
`None` or `MPI.IN_PLACE`. A reduction or scan is also in place if both sides are one buffer, as in mpi4py from 4.2 on.

These checks are stricter than mpi4py's. They raise for erroneous calls that MPI libraries answer with wrong data or an
abort: send and receive memory overlap, elements exceed the object passed, or a rank's message to itself and its
receive differ in length. `operators` checks whether an operator accepts a datatype.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from mpi4py import MPI

from .. import errors
from ..plans.plan import Shares
from .buffer import Buffer
from .memory import describe_type
from .parse import parse_buffer, parse_integers

_IN_PLACE = MPI.IN_PLACE
_INTS = range(-(1 << 31), 1 << 31)  # the values of a C int


class Arguments:
    """The checked arguments of one call. A side that this rank lacks, or that is in place, is None.

    - `counts`: every rank's elements (reduce_scatter), this rank's Shares (v-forms, neighbourhoods), otherwise None.
    - `lacks_counts`: this rank does not know all counts; the ranks exchange them and call `set_counts`.
    - `shared_buffer`: the caller's argument if both sides are one buffer without MPI.IN_PLACE or None. mpi4py before
      4.2 does not recognise such a call as in place.
    """

    __slots__ = ("counts", "in_place", "lacks_counts", "recv", "send", "shared_buffer")

    def __init__(
        self, send: Buffer | None, recv: Buffer | None, in_place: bool, counts: tuple[int, ...] | Shares | None = None
    ) -> None:
        self.send = send
        self.recv = recv
        self.in_place = in_place
        self.counts = counts
        self.shared_buffer: Any = None
        self.lacks_counts = False

    @property
    def contiguous(self) -> bool:
        """Return whether both sides are contiguous, so that no packing is needed."""
        send, recv = self.send, self.recv
        return (send is None or send.contiguous) and (recv is None or recv.contiguous)


# One function per collective


def parse_bcast(buf: Any, root: int, rank: int, size: int) -> Arguments:
    """Parse a bcast: `send` and `recv` are one buffer, which may be read-only at the root."""
    root = check_root(root, size)
    payload = parse_buffer(buf, rank != root)
    return Arguments(payload, payload, False)


def parse_allreduce(sendbuf: Any, recvbuf: Any) -> Arguments:
    """Parse an allreduce: both sides have one datatype and count."""
    recv = parse_buffer(recvbuf, True, 1, True)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = parse_buffer(sendbuf, False, 1, True)
    if _is_one_buffer(send, recv):
        return _one_buffer_in_place(recv, recvbuf)
    _check_same(send, recv)
    return Arguments(send, recv, False)


def parse_reduce(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Parse a reduce: ranks other than the root have only `send` and ignore `recvbuf`."""
    if check_root(root, size) == rank:
        return parse_allreduce(sendbuf, recvbuf)
    return Arguments(parse_buffer(sendbuf, False, 1, True), None, False)


def parse_reduce_scatter_block(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """Parse a reduce_scatter_block: `send` has `size` blocks and `recv` one; in place `recv` has all."""
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, parse_buffer(recvbuf, True, size, True), True)
    recv = parse_buffer(recvbuf, True, 1, True)
    send = parse_buffer(sendbuf, False, size, True)
    if _is_one_buffer(send, recv):
        return _one_buffer_in_place(parse_buffer(sendbuf, True, size, True), sendbuf)
    _check_same(send, recv)
    return Arguments(send, recv, False)


def parse_reduce_scatter(
    sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None, rank: int, size: int
) -> Arguments:
    """Parse a reduce_scatter; if the result lacks counts, exchange `recv.count` and call `set_counts`."""
    recv = parse_buffer(recvbuf, True, 1, True)
    if sendbuf is _IN_PLACE or sendbuf is None:
        arguments = Arguments(None, recv, True)
    elif _is_one_buffer(send := parse_buffer(sendbuf, False, 1, True), recv):
        arguments = _one_buffer_in_place(recv, recvbuf)
    else:
        arguments = Arguments(send, recv, False)
        _check_apart(send, recv)
        if recvcounts is None:
            _check_same_type(send, recv)
    if recvcounts is None and not arguments.in_place:
        arguments.lacks_counts = True
        return arguments
    return set_counts(arguments, parse_integers(recvcounts, size, "recvcounts"), rank)


def set_counts(arguments: Arguments, counts: Sequence[int], rank: int) -> Arguments:
    """Check all ranks' counts of a reduce_scatter against this rank's memory, and store them in its arguments."""
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
    arguments.counts, arguments.lacks_counts = tuple(counts), False
    return arguments


def parse_allgather(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """Parse an allgather: `recv` has `size` blocks and `send` one; in place `recv` already contains it."""
    recv = parse_buffer(recvbuf, True, size)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = parse_buffer(sendbuf)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


def parse_gather(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Parse a gather: ranks other than the root have only `send` and ignore `recvbuf`."""
    if check_root(root, size) == rank:
        return parse_allgather(sendbuf, recvbuf, size)
    return Arguments(parse_buffer(sendbuf), None, False)


def parse_scatter(sendbuf: Any, recvbuf: Any, root: int, rank: int, size: int) -> Arguments:
    """Parse a scatter: ranks other than the root have only `recv`; in place the root keeps its own block in `send`."""
    if check_root(root, size) != rank:
        return Arguments(None, parse_buffer(recvbuf, True), False)
    send = parse_buffer(sendbuf, False, size)
    if recvbuf is _IN_PLACE or recvbuf is None:
        return Arguments(send, None, True)
    recv = parse_buffer(recvbuf, True)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


def parse_alltoall(sendbuf: Any, recvbuf: Any, size: int) -> Arguments:
    """Parse an alltoall: both sides have `size` blocks."""
    recv = parse_buffer(recvbuf, True, size)
    if sendbuf is _IN_PLACE or sendbuf is None:
        return Arguments(None, recv, True)
    send = parse_buffer(sendbuf, False, size)
    _check_fit(send, recv)
    return Arguments(send, recv, False)


# Checks of one rank's arguments against each other


def check_root(root: Any, size: int) -> int:
    """Return the root as an int. Raises RootRangeError, RootError."""
    number: int | None = root if type(root) is int else _integer(root)
    if number is None:
        raise errors.ArgumentError(
            f"root is {root!r}, {describe_type(root)}; pass a rank, an integer from 0 to {size - 1}"
        )
    if 0 <= number < size:
        return number
    text = {MPI.PROC_NULL: "MPI.PROC_NULL", MPI.ROOT: "MPI.ROOT"}.get(number, str(number))
    error = errors.RootError if number in _INTS else errors.RootRangeError
    raise error(f"root is {text}; the communicator has ranks 0 to {size - 1}, pass one of them")


def _integer(root: Any) -> int | None:
    """Convert a root as mpi4py does, truncating floats; return None if it is not a number."""
    convert = int if hasattr(type(root), "__int__") else index
    try:
        return convert(root)
    except TypeError:
        return None
    except (OverflowError, ValueError):
        raise errors.RootRangeError(f"root is {root!r}; pass a rank, an integer") from None


def _is_one_buffer(send: Buffer, recv: Buffer) -> bool:
    """Return whether a reduction's two sides have one address, count and datatype."""
    return send.address == recv.address and send.count == recv.count > 0 and send.datatype == recv.datatype


def _one_buffer_in_place(recv: Buffer, message: Any) -> Arguments:
    """Return in-place arguments; `message` is the caller's description of the buffer."""
    arguments = Arguments(None, recv, True)
    arguments.shared_buffer = message
    return arguments


def _check_same(send: Buffer, recv: Buffer) -> None:
    """Check that a reduction's two sides have one datatype and count, and do not overlap."""
    if send.facts is not recv.facts:
        _check_same_type(send, recv)
    if send.count != recv.count:
        raise errors.CountMismatch(
            f"{_describe_side(send)} to send has {send.count} elements and {_describe_side(recv)} to receive "
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
    """Check that the block a rank sends to itself has the length of the one it receives, and does not overlap it."""
    sent, received = send.facts.size * send.count, recv.facts.size * recv.count
    if sent != received:
        raise errors.CountMismatch(
            f"{_describe_side(send)} to send is {send.count} of {send.facts.name}, {sent} bytes, and "
            f"{_describe_side(recv)} to receive is {recv.count} of {recv.facts.name}, {received} bytes; "
            f"they must be equally long"
        )
    _check_apart(send, recv)


def _check_apart(send: Buffer, recv: Buffer) -> None:
    """Raise OverlapError if two contiguous buffers share memory.

    Layouts with holes are not compared: two columns of one matrix interleave without overlapping.
    """
    start, end = recv.address, recv.address + recv.nbytes
    if send.address < end and start < send.address + send.nbytes and start < end and send.nbytes:
        if not (send.contiguous and recv.contiguous):
            return
        common = min(end, send.address + send.nbytes) - max(start, send.address)
        raise errors.OverlapError(
            f"send and receive buffer share {common} bytes of memory; pass MPI.IN_PLACE for the one that MPI "
            f"lets you omit, or copy one of them"
        )


def _describe_side(buffer: Buffer) -> str:
    return "a block" if buffer.blocks > 1 else "the buffer"
