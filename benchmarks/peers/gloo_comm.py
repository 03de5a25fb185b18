"""Gloo's collectives by the names of mpi4py, so that `mpicoll bench --peers gloo` has them in the rounds of the others.

The memory is the arrays' own; an allreduce that has two arrays copies the one to the other first, since Gloo's is in
place. What Gloo does not have raises NotImplementedError, on every rank, before anything is sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from mpicoll.torch.operators import OPERATORS  # and torch learns from MPI where the ranks meet

from .gloo_worker import interface


class GlooComm:
    """All ranks of MPI.COMM_WORLD, as torch.distributed's default group. Collective."""

    def __init__(self) -> None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface())
        dist.init_process_group("gloo")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def Free(self) -> None:
        """End the group."""
        dist.destroy_process_group()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a method that Gloo does not have, as MPI spells them: it says so when it is called."""
        if not name[:1].isupper():
            raise AttributeError(name)

        def missing(*_: Any) -> Any:
            raise NotImplementedError(f"Gloo has no {name}")

        return missing

    def Barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def Bcast(self, buffer: Any, root: int) -> None:
        """Send the root's array to all."""
        dist.broadcast(_tensor(buffer), root)

    def Allreduce(self, send: Any, recv: Any, op: MPI.Op) -> None:
        """Reduce to all ranks."""
        result = _tensor(recv)
        if send is not MPI.IN_PLACE:
            result.copy_(_tensor(send))
        dist.all_reduce(result, _operator(op))

    def Reduce(self, send: Any, recv: Any, op: MPI.Op, root: int) -> None:
        """Reduce to the root."""
        result = _tensor(send).clone() if recv is None else _tensor(recv)
        if recv is not None and send is not MPI.IN_PLACE:
            result.copy_(_tensor(send))
        dist.reduce(result, root, _operator(op))

    def Reduce_scatter_block(self, send: Any, recv: Any, op: MPI.Op) -> None:
        """Reduce blocks of equal size, one to each rank."""
        dist.reduce_scatter_tensor(_tensor(recv), _tensor(send), _operator(op))

    def Reduce_scatter(self, send: Any, recv: Any, counts: Any, op: MPI.Op) -> None:
        """Reduce blocks, which must be of equal size."""
        if len(set(counts)) > 1:
            raise NotImplementedError("Gloo has no reduce_scatter of blocks that differ in size")
        self.Reduce_scatter_block(send, recv, op)

    def Allgather(self, send: Any, recv: Any) -> None:
        """Gather blocks on all ranks."""
        dist.all_gather_into_tensor(_tensor(recv), _tensor(send))

    def Alltoall(self, send: Any, recv: Any) -> None:
        """Send each rank its block."""
        dist.all_to_all_single(_tensor(recv), _tensor(send))

    def Gather(self, send: Any, recv: Any, root: int) -> None:
        """Gather blocks on the root."""
        parts = list(_tensor(recv).view(self.size, -1)) if self.rank == root else None
        dist.gather(_tensor(send), parts, root)

    def Scatter(self, send: Any, recv: Any, root: int) -> None:
        """Send each rank its block of the root's."""
        parts = list(_tensor(send).view(self.size, -1)) if self.rank == root else None
        dist.scatter(_tensor(recv), parts, root)


def _tensor(array: Any) -> torch.Tensor:
    """Return a tensor on the array's memory."""
    if not isinstance(array, np.ndarray):
        raise NotImplementedError("of Gloo this takes arrays of torch's types, and in place allreduce and reduce alone")
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise NotImplementedError(f"torch has no type for it: {error}") from None


def _operator(op: MPI.Op) -> Any:
    operator = next((theirs for theirs, ours in OPERATORS.items() if ours == op), None)
    if operator is None:
        raise NotImplementedError("Gloo has no such operator")
    return operator
