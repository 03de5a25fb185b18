"""Messages from rank to rank: send, recv and the barrier that says who is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI
from torch import Tensor

from ..comm.comm import Comm
from ..errors import ArgumentError, MessageLengthError
from ..progress.operation import Operation
from ..progress.stages import RequestStage
from ..schedules.collectives import NONBLOCKING
from ..selection.select import native_choice
from .tensors import Finish
from .work import Work

ANY_SOURCE = MPI.ANY_SOURCE
_ARRIVED, _LEAVE, _OWN = 0, 1, 2  # tags of the barrier, and their number: those of tensors come behind
_NO_RANK = -1
_MOST, _PIECE = (1 << 31) - 1, 1 << 30  # bytes
Post = Callable[[MPI.Intracomm, Any, int, int], MPI.Request]


class Transfer(RequestStage):
    """A stage: one message, sent or received."""

    def __init__(self, request: MPI.Request, what: str, peer: int, expected: int | None) -> None:
        super().__init__(request, what)
        self.peer, self.expected, self.status = peer, expected, MPI.Status()

    def advance(self, seconds: float) -> bool:
        """Look whether it is over. Raises MessageLengthError where more or less arrived than the tensor holds."""
        try:
            if not self.request.Test(self.status):
                return False
        except MPI.Exception as error:
            self.is_over = True
            if error.Get_error_class() == MPI.ERR_TRUNCATE:
                raise MessageLengthError(f"{self.what}: the message has more than {self.expected} bytes") from None
            raise
        self.is_over = True
        if self.expected is not None and (arrived := self.status.Get_elements(MPI.BYTE)) != self.expected:
            raise MessageLengthError(f"{self.what}: the message has {arrived} bytes, and the tensor {self.expected}")
        return True

    def describe(self) -> list[str]:
        """Return what it waits for."""
        return [f"waits for {'any rank' if self.peer == ANY_SOURCE else f'rank {self.peer}'}"]

    def waited_for(self) -> tuple[int, ...]:
        """Return the other rank, unless any will do."""
        return () if self.peer == ANY_SOURCE else (self.peer,)


class Message(Work):
    """A message in flight."""

    def __init__(self, comm: Comm, transfer: Transfer, keep: Any, result: list[Tensor], finish: Finish | None) -> None:
        operation = Operation(
            native_choice("message", "a message"), _NO_RANK, [lambda: transfer], lambda: None, (transfer, keep),
            NONBLOCKING, transfer.what,
        )  # fmt: skip
        operation.is_message = True
        super().__init__(comm._open(), operation, result, finish)
        self.transfer = transfer

    def source_rank(self) -> int:
        """Return the rank of the group that sent the message, once it is here."""
        return self.transfer.status.source

    _source_rank = source_rank


def send(comm: Comm, array: np.ndarray[Any, Any], rank: int, tag: int, result: list[Tensor]) -> Message:
    """Return the work of sending an array's bytes to a rank, to be launched."""
    request = _posted(MPI.Intracomm.Isend, comm, array, rank, tag)
    return Message(comm, Transfer(request, f"send to rank {rank}, tag {tag}", rank, None), array, result, None)


def receive(
    comm: Comm, array: np.ndarray[Any, Any], rank: int, tag: int, result: list[Tensor], finish: Finish | None
) -> Message:
    """Return the work of receiving an array's bytes from a rank, or ANY_SOURCE, to be launched."""
    request = _posted(MPI.Intracomm.Irecv, comm, array, rank, tag)
    what = f"recv from {'any rank' if rank == ANY_SOURCE else f'rank {rank}'}, tag {tag}"
    return Message(comm, Transfer(request, what, rank, array.nbytes), array, result, finish)


def _posted(post: Post, comm: Comm, array: np.ndarray[Any, Any], rank: int, tag: int) -> MPI.Request:
    """Return the request of a message of an array's bytes.

    More bytes than a C int counts are one element of a datatype, since not every MPI takes larger counts.
    """
    nbytes = array.nbytes
    if nbytes <= _MOST:
        return post(comm, [array, nbytes, MPI.BYTE], rank, _tag(tag))
    piece = MPI.BYTE.Create_contiguous(_PIECE)
    whole, rest = divmod(nbytes, _PIECE)
    datatype = MPI.Datatype.Create_struct([whole, rest], [0, whole * _PIECE], [piece, MPI.BYTE]).Commit()
    piece.Free()
    try:
        return post(comm, [array, 1, datatype], rank, _tag(tag))
    finally:
        datatype.Free()  # MPI keeps it as long as it needs it


def _tag(tag: int) -> int:
    largest: Any = MPI.COMM_WORLD.Get_attr(MPI.TAG_UB)
    if not 0 <= tag <= largest - _OWN:
        raise ArgumentError(f"the tag is {tag}; this MPI has tags from 0 to {largest - _OWN}")
    return tag + _OWN


def monitored_barrier(
    comm: MPI.Intracomm, seconds: float, wait_all_ranks: bool, tags: tuple[int, int] = (_ARRIVED, _LEAVE)
) -> None:
    """Wait for every rank. Raises RuntimeError on ranks that wait too long. The error of rank 0 names the late ranks.

    As torch's for Gloo: every rank sends a message to rank 0, which then sends one to every rank.
    """
    until, nothing = time.monotonic() + seconds, np.empty(0, np.uint8)
    arrived, leave = tags
    milliseconds = round(seconds * 1000)
    if comm.rank:
        requests = [MPI.Intracomm.Isend(comm, [nothing, MPI.BYTE], 0, arrived)]
        requests.append(MPI.Intracomm.Irecv(comm, [nothing, MPI.BYTE], 0, leave))
        if not _by(requests, until):
            raise RuntimeError(
                f"Rank {comm.rank} successfully reached monitoredBarrier, but received errors while waiting for "
                f"send/recv from rank 0. Please check rank 0 logs for faulty rank: it did not answer in "
                f"{milliseconds} ms."
            )
        return
    if seconds <= 0:
        raise RuntimeError(f"[Rank 0]: Rank 0 timed out in monitoredBarrier after {milliseconds} ms")
    arriving = {r: MPI.Intracomm.Irecv(comm, [nothing, MPI.BYTE], r, arrived) for r in range(1, comm.size)}
    missing = []
    for rank, request in arriving.items():
        if not _by([request], until):
            missing.append(rank)
            if not wait_all_ranks:
                break
    if missing:
        for rank in missing:
            arriving[rank].Cancel()
        ranks = ", ".join(map(str, missing))
        what = f"Ranks {ranks} failed" if wait_all_ranks else f"Rank {ranks} failed"
        raise RuntimeError(f"[Rank 0]: {what} to pass monitoredBarrier in {milliseconds} ms")
    for rank in arriving:
        MPI.Intracomm.Isend(comm, [nothing, MPI.BYTE], rank, leave).Free()


def _by(requests: list[MPI.Request], until: float) -> bool:
    """Return whether the requests are complete before that time."""
    while not MPI.Request.Testall(requests):
        if time.monotonic() > until:
            return False
        time.sleep(1e-4)
    return True
