"""The collectives of neighbourhoods, with mpi4py's signatures, in three forms, as methods.py has the others.

They are methods of communicators with a topology. A block goes along every edge of its graph: to and from each
neighbour, in the order in which MPI's inquiries name neighbours. A place of a buffer whose neighbour is MPI.PROC_NULL,
at the border of a grid, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..dispatch import methods


class NeighborCollectives:
    """The neighbourhood collectives of a communicator with a topology.

    What a rank of a grid sends one way arrives from the other way, in periodic dimensions of 1 and 2 ranks too, where
    both neighbours are one rank. In other graphs the k-th block from one rank to another is the k-th that it receives
    from there. Errors are mpicoll.errors, raised before anything is sent. This is a class without a base, since the
    __new__ of MPI.Topocomm would take the place of that of MPI.Cartcomm, which checks the topology.
    """

    _fast_call: Callable[..., int]
    _call: Callable[..., None]
    _begin: Callable[..., MPI.Request]
    _init: Callable[..., MPI.Prequest]

    def Neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one block to every neighbour, and gather one of each."""
        if self._fast_call(methods.NEIGHBOR_ALLGATHER, sendbuf, recvbuf, None, 0):
            self._call(methods.NEIGHBOR_ALLGATHER, sendbuf, recvbuf, None, 0)

    def Ineighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Neighbor_allgather."""
        return self._begin(methods.NEIGHBOR_ALLGATHER, sendbuf, recvbuf, None, 0)

    def Neighbor_allgather_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Neighbor_allgather, to be started repeatedly."""
        return self._init(info, methods.NEIGHBOR_ALLGATHER, sendbuf, recvbuf, None, 0)

    def Neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send one block to every neighbour, and gather one of each, of any sizes and to any places."""
        if self._fast_call(methods.NEIGHBOR_ALLGATHERV, sendbuf, recvbuf, None, 0):
            self._call(methods.NEIGHBOR_ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Ineighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Neighbor_allgatherv."""
        return self._begin(methods.NEIGHBOR_ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Neighbor_allgatherv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Neighbor_allgatherv, to be started repeatedly."""
        return self._init(info, methods.NEIGHBOR_ALLGATHERV, sendbuf, recvbuf, None, 0)

    def Neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block to every neighbour, and receive one of each."""
        if self._fast_call(methods.NEIGHBOR_ALLTOALL, sendbuf, recvbuf, None, 0):
            self._call(methods.NEIGHBOR_ALLTOALL, sendbuf, recvbuf, None, 0)

    def Ineighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Neighbor_alltoall."""
        return self._begin(methods.NEIGHBOR_ALLTOALL, sendbuf, recvbuf, None, 0)

    def Neighbor_alltoall_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Neighbor_alltoall, to be started repeatedly."""
        return self._init(info, methods.NEIGHBOR_ALLTOALL, sendbuf, recvbuf, None, 0)

    def Neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block to every neighbour, and receive one of each, of any sizes and places."""
        if self._fast_call(methods.NEIGHBOR_ALLTOALLV, sendbuf, recvbuf, None, 0):
            self._call(methods.NEIGHBOR_ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Ineighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Neighbor_alltoallv."""
        return self._begin(methods.NEIGHBOR_ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Neighbor_alltoallv_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Neighbor_alltoallv, to be started repeatedly."""
        return self._init(info, methods.NEIGHBOR_ALLTOALLV, sendbuf, recvbuf, None, 0)

    def Neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> None:
        """Send a block to every neighbour, each with a datatype of its own; displacements are in bytes."""
        if self._fast_call(methods.NEIGHBOR_ALLTOALLW, sendbuf, recvbuf, None, 0):
            self._call(methods.NEIGHBOR_ALLTOALLW, sendbuf, recvbuf, None, 0)

    def Ineighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:
        """Start Neighbor_alltoallw."""
        return self._begin(methods.NEIGHBOR_ALLTOALLW, sendbuf, recvbuf, None, 0)

    def Neighbor_alltoallw_init(
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> MPI.Prequest:
        """Neighbor_alltoallw, to be started repeatedly."""
        return self._init(info, methods.NEIGHBOR_ALLTOALLW, sendbuf, recvbuf, None, 0)
