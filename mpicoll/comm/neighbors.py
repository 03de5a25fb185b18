"""Define the neighbourhood collectives with mpi4py's signatures, in three forms, as methods.py does for the others.

They are methods of communicators with a topology. Every edge of the graph carries a block, in the order in which MPI's
inquiry functions list neighbours. A block whose neighbour is MPI.PROC_NULL, at the border of a grid, does not change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from ..dispatch import methods


class NeighborCollectives:
    """The neighbourhood collectives of a communicator with a topology.

    In a grid, the block that a rank sends in one direction is received from the opposite direction; also in periodic
    dimensions of 1 and 2 ranks, in which both neighbours are the same rank. In other graphs, the k-th block that a rank
    sends to another is the k-th block that the other receives from it. Wrong arguments raise classes of mpicoll.errors
    before any data is sent. The class has no base: with MPI.Topocomm as base, its __new__ would replace the __new__ of
    MPI.Cartcomm, which checks the topology.
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
        """Return a persistent request for Neighbor_allgather. Collective."""
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
        """Return a persistent request for Neighbor_allgatherv. Collective."""
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
        """Return a persistent request for Neighbor_alltoall. Collective."""
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
        """Return a persistent request for Neighbor_alltoallv. Collective."""
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
        """Return a persistent request for Neighbor_alltoallw. Collective."""
        return self._init(info, methods.NEIGHBOR_ALLTOALLW, sendbuf, recvbuf, None, 0)
