"""Every collective method of MPI.Intracomm, with mpi4py's signatures, in its three forms.

Each says only what was asked for: `_call` carries a method out, `_start` begins it and returns its request, `_init`
returns a request that can be started again and again. `_fast_call` is tried first: it returns 0 if it has carried the
call out, by what it knows from before, and made the request complete. Comm has these four. All get a method and its
arguments in one order: send buffer, receive buffer, operator, root (the recvcounts of Reduce_scatter).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI

from ..dispatch import methods
from ..dispatch.methods import Method
from .requests import Request


class Collectives(MPI.Intracomm):
    """The collectives of an intracommunicator.

    The nonblocking forms (Iallreduce) return at once; the buffers are mpicoll's until the request completes. The
    persistent ones (Allreduce_init) return a request that is not started; making one is collective, and whatever the
    buffers hold at each Start is what travels. Errors are mpicoll.errors, raised before anything is sent.
    """

    _fast_call: Callable[..., int] = staticmethod(lambda *arguments: 1)
    _call: Callable[..., None]
    _start: Callable[..., MPI.Request]
    _init: Callable[..., MPI.Prequest]

    def _begin(self, method: Method, send: Any, recv: Any, op: MPI.Op | None, root: Any) -> MPI.Request:
        """Begin a method, on the fast path if that serves it."""
        request = Request()
        if self._fast_call(method, send, recv, op, root, request):
            return self._start(method, send, recv, op, root)
        return request

    def Barrier(self) -> None:
        """Block until all ranks have entered."""
        if self._fast_call(methods.BARRIER, None, None, None, 0):
            self._call(methods.BARRIER, None, None, None, 0)

    def Ibarrier(self) -> MPI.Request:
        """Start Barrier."""
        return self._begin(methods.BARRIER, None, None, None, 0)

    def Barrier_init(self, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Barrier, to be started repeatedly."""
        return self._init(info, methods.BARRIER, None, None, None, 0)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Broadcast from one rank to all others."""
        if self._fast_call(methods.BCAST, None, buf, None, root):
            self._call(methods.BCAST, None, buf, None, root)

    def Ibcast(self, buf: Any, root: int = 0) -> MPI.Request:
        """Start Bcast."""
        return self._begin(methods.BCAST, None, buf, None, root)

    def Bcast_init(self, buf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Bcast, to be started repeatedly."""
        return self._init(info, methods.BCAST, None, buf, None, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter the root's blocks, one to every rank."""
        if self._fast_call(methods.SCATTER, sendbuf, recvbuf, None, root):
            self._call(methods.SCATTER, sendbuf, recvbuf, None, root)

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Start Scatter."""
        return self._begin(methods.SCATTER, sendbuf, recvbuf, None, root)

    def Scatter_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Scatter, to be started repeatedly."""
        return self._init(info, methods.SCATTER, sendbuf, recvbuf, None, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather one block of every rank at the root."""
        if self._fast_call(methods.GATHER, sendbuf, recvbuf, None, root):
            self._call(methods.GATHER, sendbuf, recvbuf, None, root)

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Start Gather."""
        return self._begin(methods.GATHER, sendbuf, recvbuf, None, root)

    def Gather_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Gather, to be started repeatedly."""
        return self._init(info, methods.GATHER, sendbuf, recvbuf, None, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather one block of every rank everywhere."""
        if self._fast_call(methods.ALLGATHER, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLGATHER, sendbuf, recvbuf, None, 0)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Allgather."""
        return self._begin(methods.ALLGATHER, sendbuf, recvbuf, None, 0)

    def Allgather_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Allgather, to be started repeatedly."""
        return self._init(info, methods.ALLGATHER, sendbuf, recvbuf, None, 0)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block from every rank to every rank."""
        if self._fast_call(methods.ALLTOALL, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLTOALL, sendbuf, recvbuf, None, 0)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Alltoall."""
        return self._begin(methods.ALLTOALL, sendbuf, recvbuf, None, 0)

    def Alltoall_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Alltoall, to be started repeatedly."""
        return self._init(info, methods.ALLTOALL, sendbuf, recvbuf, None, 0)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter the root's blocks, of any sizes and from any places, one to every rank."""
        if self._fast_call(methods.SCATTERV, sendbuf, recvbuf, None, root):
            self._call(methods.SCATTERV, sendbuf, recvbuf, None, root)

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Start Scatterv."""
        return self._begin(methods.SCATTERV, sendbuf, recvbuf, None, root)

    def Scatterv_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Scatterv, to be started repeatedly."""
        return self._init(info, methods.SCATTERV, sendbuf, recvbuf, None, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather one block of every rank at the root, of any sizes and to any places."""
        if self._fast_call(methods.GATHERV, sendbuf, recvbuf, None, root):
            self._call(methods.GATHERV, sendbuf, recvbuf, None, root)

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Start Gatherv."""
        return self._begin(methods.GATHERV, sendbuf, recvbuf, None, root)

    def Gatherv_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Gatherv, to be started repeatedly."""
        return self._init(info, methods.GATHERV, sendbuf, recvbuf, None, root)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather one block of every rank everywhere, of any sizes and to any places."""
        if self._fast_call(methods.ALLGATHERV, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Allgatherv."""
        return self._begin(methods.ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Allgatherv_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Allgatherv, to be started repeatedly."""
        return self._init(info, methods.ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block from every rank to every rank, of any sizes and places."""
        if self._fast_call(methods.ALLTOALLV, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Alltoallv."""
        return self._begin(methods.ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Alltoallv_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Alltoallv, to be started repeatedly."""
        return self._init(info, methods.ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block from every rank to every rank, each with a datatype of its own; displacements are in bytes."""
        if self._fast_call(methods.ALLTOALLW, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLTOALLW, sendbuf, recvbuf, None, 0)

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Alltoallw."""
        return self._begin(methods.ALLTOALLW, sendbuf, recvbuf, None, 0)

    def Alltoallw_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Alltoallw, to be started repeatedly."""
        return self._init(info, methods.ALLTOALLW, sendbuf, recvbuf, None, 0)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Combine everybody's vectors at the root."""
        if self._fast_call(methods.REDUCE, sendbuf, recvbuf, op, root):
            self._call(methods.REDUCE, sendbuf, recvbuf, op, root)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> MPI.Request:
        """Start Reduce."""
        return self._begin(methods.REDUCE, sendbuf, recvbuf, op, root)

    def Reduce_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Reduce, to be started repeatedly."""
        return self._init(info, methods.REDUCE, sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine everybody's vectors everywhere."""
        if self._fast_call(methods.ALLREDUCE, sendbuf, recvbuf, op, 0):
            self._call(methods.ALLREDUCE, sendbuf, recvbuf, op, 0)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start Allreduce."""
        return self._begin(methods.ALLREDUCE, sendbuf, recvbuf, op, 0)

    def Allreduce_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Allreduce, to be started repeatedly."""
        return self._init(info, methods.ALLREDUCE, sendbuf, recvbuf, op, 0)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine everybody's vectors, a block of the result at every rank; blocks are equal."""
        if self._fast_call(methods.REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0):
            self._call(methods.REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0)

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start Reduce_scatter_block."""
        return self._begin(methods.REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0)

    def Reduce_scatter_block_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Reduce_scatter_block, to be started repeatedly."""
        return self._init(info, methods.REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """Combine everybody's vectors, recvcounts[r] elements of the result at rank r."""
        if self._fast_call(methods.REDUCE_SCATTER, sendbuf, recvbuf, op, recvcounts):
            self._call(methods.REDUCE_SCATTER, sendbuf, recvbuf, op, recvcounts)

    def Ireduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> MPI.Request:
        """Start Reduce_scatter."""
        return self._begin(methods.REDUCE_SCATTER, sendbuf, recvbuf, op, recvcounts)

    def Reduce_scatter_init(
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: MPI.Op = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> MPI.Prequest:
        """Reduce_scatter, to be started repeatedly."""
        return self._init(info, methods.REDUCE_SCATTER, sendbuf, recvbuf, op, recvcounts)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine the vectors of the ranks up to this one."""
        if self._fast_call(methods.SCAN, sendbuf, recvbuf, op, 0):
            self._call(methods.SCAN, sendbuf, recvbuf, op, 0)

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start Scan."""
        return self._begin(methods.SCAN, sendbuf, recvbuf, op, 0)

    def Scan_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Scan, to be started repeatedly."""
        return self._init(info, methods.SCAN, sendbuf, recvbuf, op, 0)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Combine the vectors of the ranks before this one; rank 0's receive buffer stays as it is."""
        if self._fast_call(methods.EXSCAN, sendbuf, recvbuf, op, 0):
            self._call(methods.EXSCAN, sendbuf, recvbuf, op, 0)

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start Exscan."""
        return self._begin(methods.EXSCAN, sendbuf, recvbuf, op, 0)

    def Exscan_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Exscan, to be started repeatedly."""
        return self._init(info, methods.EXSCAN, sendbuf, recvbuf, op, 0)
