"""Define every collective method of MPI.Intracomm with mpi4py's signature, in three forms.

A method first tries `_fast_call`, which returns 0 if it completed the call, with a request that it made complete. Else
`_call` runs a blocking call, and `_start` begins a nonblocking one and returns its request. `_init` returns a
persistent request. Comm defines these four. All take a method and its arguments in the same order: send buffer,
receive buffer, operator, root (for Reduce_scatter: recvcounts).
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

    A nonblocking method (Iallreduce) returns a request at once; the buffers must not be used until it completes. A
    persistent method (Allreduce_init) returns an inactive request, and is collective; every Start reads the buffers
    anew. Wrong arguments raise classes of mpicoll.errors before any data is sent.
    """

    _fast_call: Callable[..., int] = staticmethod(lambda *arguments: 1)
    _call: Callable[..., None]
    _start: Callable[..., MPI.Request]
    _init: Callable[..., MPI.Prequest]

    def _begin(self, method: Method, send: Any, recv: Any, op: MPI.Op | None, root: Any) -> MPI.Request:
        """Begin a nonblocking call and return its request, which is complete if the fast path served the call."""
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
        """Return a persistent request for Barrier. Collective."""
        return self._init(info, methods.BARRIER, None, None, None, 0)

    def Bcast(self, buf: Any, root: int = 0) -> None:
        """Broadcast from one rank to all others."""
        if self._fast_call(methods.BCAST, None, buf, None, root):
            self._call(methods.BCAST, None, buf, None, root)

    def Ibcast(self, buf: Any, root: int = 0) -> MPI.Request:
        """Start Bcast."""
        return self._begin(methods.BCAST, None, buf, None, root)

    def Bcast_init(self, buf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Bcast. Collective."""
        return self._init(info, methods.BCAST, None, buf, None, root)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter the root's blocks, one to every rank."""
        if self._fast_call(methods.SCATTER, sendbuf, recvbuf, None, root):
            self._call(methods.SCATTER, sendbuf, recvbuf, None, root)

    def Iscatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Start Scatter."""
        return self._begin(methods.SCATTER, sendbuf, recvbuf, None, root)

    def Scatter_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Scatter. Collective."""
        return self._init(info, methods.SCATTER, sendbuf, recvbuf, None, root)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather one block of every rank at the root."""
        if self._fast_call(methods.GATHER, sendbuf, recvbuf, None, root):
            self._call(methods.GATHER, sendbuf, recvbuf, None, root)

    def Igather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Start Gather."""
        return self._begin(methods.GATHER, sendbuf, recvbuf, None, root)

    def Gather_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Gather. Collective."""
        return self._init(info, methods.GATHER, sendbuf, recvbuf, None, root)

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather one block of every rank at all ranks."""
        if self._fast_call(methods.ALLGATHER, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLGATHER, sendbuf, recvbuf, None, 0)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Allgather."""
        return self._begin(methods.ALLGATHER, sendbuf, recvbuf, None, 0)

    def Allgather_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Allgather. Collective."""
        return self._init(info, methods.ALLGATHER, sendbuf, recvbuf, None, 0)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block from every rank to every rank."""
        if self._fast_call(methods.ALLTOALL, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLTOALL, sendbuf, recvbuf, None, 0)

    def Ialltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Alltoall."""
        return self._begin(methods.ALLTOALL, sendbuf, recvbuf, None, 0)

    def Alltoall_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Alltoall. Collective."""
        return self._init(info, methods.ALLTOALL, sendbuf, recvbuf, None, 0)

    def Scatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Scatter the root's blocks, of any sizes and from any places, one to every rank."""
        if self._fast_call(methods.SCATTERV, sendbuf, recvbuf, None, root):
            self._call(methods.SCATTERV, sendbuf, recvbuf, None, root)

    def Iscatterv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Start Scatterv."""
        return self._begin(methods.SCATTERV, sendbuf, recvbuf, None, root)

    def Scatterv_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Scatterv. Collective."""
        return self._init(info, methods.SCATTERV, sendbuf, recvbuf, None, root)

    def Gatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        """Gather one block of every rank at the root, of any sizes and to any places."""
        if self._fast_call(methods.GATHERV, sendbuf, recvbuf, None, root):
            self._call(methods.GATHERV, sendbuf, recvbuf, None, root)

    def Igatherv(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> MPI.Request:
        """Start Gatherv."""
        return self._begin(methods.GATHERV, sendbuf, recvbuf, None, root)

    def Gatherv_init(self, sendbuf: Any, recvbuf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Gatherv. Collective."""
        return self._init(info, methods.GATHERV, sendbuf, recvbuf, None, root)

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Gather one block of every rank at all ranks, of any sizes and to any places."""
        if self._fast_call(methods.ALLGATHERV, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Allgatherv."""
        return self._begin(methods.ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Allgatherv_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Allgatherv. Collective."""
        return self._init(info, methods.ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block from every rank to every rank, of any sizes and places."""
        if self._fast_call(methods.ALLTOALLV, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Ialltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Alltoallv."""
        return self._begin(methods.ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Alltoallv_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Alltoallv. Collective."""
        return self._init(info, methods.ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block from every rank to every rank, each with a datatype of its own; displacements are in bytes."""
        if self._fast_call(methods.ALLTOALLW, sendbuf, recvbuf, None, 0):
            self._call(methods.ALLTOALLW, sendbuf, recvbuf, None, 0)

    def Ialltoallw(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Alltoallw."""
        return self._begin(methods.ALLTOALLW, sendbuf, recvbuf, None, 0)

    def Alltoallw_init(self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL) -> MPI.Prequest:
        """Return a persistent request for Alltoallw. Collective."""
        return self._init(info, methods.ALLTOALLW, sendbuf, recvbuf, None, 0)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> None:
        """Reduce the vectors of all ranks; the root gets the result."""
        if self._fast_call(methods.REDUCE, sendbuf, recvbuf, op, root):
            self._call(methods.REDUCE, sendbuf, recvbuf, op, root)

    def Ireduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0) -> MPI.Request:
        """Start Reduce."""
        return self._begin(methods.REDUCE, sendbuf, recvbuf, op, root)

    def Reduce_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Return a persistent request for Reduce. Collective."""
        return self._init(info, methods.REDUCE, sendbuf, recvbuf, op, root)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the vectors of all ranks; every rank gets the result."""
        if self._fast_call(methods.ALLREDUCE, sendbuf, recvbuf, op, 0):
            self._call(methods.ALLREDUCE, sendbuf, recvbuf, op, 0)

    def Iallreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start Allreduce."""
        return self._begin(methods.ALLREDUCE, sendbuf, recvbuf, op, 0)

    def Allreduce_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Return a persistent request for Allreduce. Collective."""
        return self._init(info, methods.ALLREDUCE, sendbuf, recvbuf, op, 0)

    def Reduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the vectors of all ranks; every rank gets an equal block of the result."""
        if self._fast_call(methods.REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0):
            self._call(methods.REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0)

    def Ireduce_scatter_block(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start Reduce_scatter_block."""
        return self._begin(methods.REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0)

    def Reduce_scatter_block_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Return a persistent request for Reduce_scatter_block. Collective."""
        return self._init(info, methods.REDUCE_SCATTER_BLOCK, sendbuf, recvbuf, op, 0)

    def Reduce_scatter(
        self, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int] | None = None, op: MPI.Op = MPI.SUM
    ) -> None:
        """Reduce the vectors of all ranks; rank r gets recvcounts[r] elements of the result."""
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
        """Return a persistent request for Reduce_scatter. Collective."""
        return self._init(info, methods.REDUCE_SCATTER, sendbuf, recvbuf, op, recvcounts)

    def Scan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the vectors of the ranks up to this one."""
        if self._fast_call(methods.SCAN, sendbuf, recvbuf, op, 0):
            self._call(methods.SCAN, sendbuf, recvbuf, op, 0)

    def Iscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start Scan."""
        return self._begin(methods.SCAN, sendbuf, recvbuf, op, 0)

    def Scan_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Return a persistent request for Scan. Collective."""
        return self._init(info, methods.SCAN, sendbuf, recvbuf, op, 0)

    def Exscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> None:
        """Reduce the vectors of the ranks before this one; rank 0's receive buffer stays as it is."""
        if self._fast_call(methods.EXSCAN, sendbuf, recvbuf, op, 0):
            self._call(methods.EXSCAN, sendbuf, recvbuf, op, 0)

    def Iexscan(self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM) -> MPI.Request:
        """Start Exscan."""
        return self._begin(methods.EXSCAN, sendbuf, recvbuf, op, 0)

    def Exscan_init(
        self, sendbuf: Any, recvbuf: Any, op: MPI.Op = MPI.SUM, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Return a persistent request for Exscan. Collective."""
        return self._init(info, methods.EXSCAN, sendbuf, recvbuf, op, 0)
