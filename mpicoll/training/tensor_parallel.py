"""Tensor parallel: each layer is cut among the ranks, which all see the whole batch.

A pair of linear layers is cut by the columns of the first and the rows of the second, so that one allreduce after the
pair makes its output whole, and one before it its input's gradient (Shoeybi et al., Megatron-LM, 2019, where these are
called g and f). With sequence parallelism the activations between the pairs are cut by positions: an allgather and a
reduce-scatter take the place of each allreduce, of the same bytes, and activations there take 1 / p of the memory
(Korthikanti et al., Reducing activation recomputation in large transformer models, 2022).

    Copied    forward: nothing         backward: allreduce        f
    Reduced   forward: allreduce       backward: nothing          g
    Gathered  forward: allgather       backward: reduce-scatter   f, by positions
    Scattered forward: reduce-scatter  backward: allgather        g, by positions
    Split     forward: own positions   backward: allgather        into the part that is cut by positions
    Joined    forward: allgather       backward: own positions    out of it
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from mpi4py import MPI

from .modules import Array, Module

POSITIONS = 1  # the axis that is cut: (batch, position, feature)


def share(n: int, comm: Any) -> slice:
    """Return this rank's part of n things, which are shared as evenly as can be; some ranks may have none."""
    smallest, longer = divmod(n, comm.size)
    first = comm.rank * smallest + min(comm.rank, longer)
    return slice(first, first + smallest + (comm.rank < longer))


def counts(n: int, comm: Any) -> list[int]:
    """Return how many of n things each rank has."""
    return [n // comm.size + (rank < n % comm.size) for rank in range(comm.size)]


def allreduce(comm: Any, x: Array) -> Array:
    """Return the sum over the ranks."""
    total: Array = np.ascontiguousarray(x).copy()
    comm.Allreduce(MPI.IN_PLACE, total)
    return total


def allgather(comm: Any, x: Array, positions: int) -> Array:
    """Return what all ranks have, one behind the other along the positions, of which there are so many in all."""
    own = np.ascontiguousarray(np.moveaxis(x, POSITIONS, 0))
    row = own[:1].size or int(np.prod(own.shape[1:]))
    whole = np.empty((positions, *own.shape[1:]), x.dtype)
    comm.Allgatherv(own, [whole, [n * row for n in counts(positions, comm)]])
    return np.moveaxis(whole, 0, POSITIONS)


def reduce_scatter(comm: Any, x: Array) -> Array:
    """Return this rank's positions of the sum over the ranks."""
    whole = np.ascontiguousarray(np.moveaxis(x, POSITIONS, 0))
    row = int(np.prod(whole.shape[1:]))
    rows = counts(len(whole), comm)
    own = np.empty((rows[comm.rank], *whole.shape[1:]), x.dtype)
    comm.Reduce_scatter(whole, own, [n * row for n in rows])
    return np.moveaxis(own, 0, POSITIONS)


def _own(comm: Any, x: Array) -> Array:
    return x[:, share(x.shape[POSITIONS], comm)]


class Between(Module):
    """The communication between layers. The backward pass is the adjoint of the forward pass."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm


class Copied(Between):
    """Every rank uses x for a part of the layer; the backward pass adds up the gradients."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        return x, None

    def backward(self, dy: Array, saved: Any) -> Array:
        return allreduce(self.comm, dy)


class Reduced(Between):
    """Every rank has a part of the sum x; the forward pass adds up the parts."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        return allreduce(self.comm, x), None

    def backward(self, dy: Array, saved: Any) -> Array:
        return dy


class Gathered(Between):
    """Every rank has some positions, and needs all."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        positions = int(allreduce(self.comm, np.array([x.shape[POSITIONS]]))[0])
        return allgather(self.comm, x, positions), None

    def backward(self, dy: Array, saved: Any) -> Array:
        return reduce_scatter(self.comm, dy)


class Scattered(Between):
    """Every rank has a part of the sum x, and keeps some positions of the sum."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        return reduce_scatter(self.comm, x), x.shape[POSITIONS]

    def backward(self, dy: Array, saved: Any) -> Array:
        return allgather(self.comm, dy, saved)


class Split(Between):
    """Every rank has all positions, and keeps its own."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        return _own(self.comm, x), x.shape[POSITIONS]

    def backward(self, dy: Array, saved: Any) -> Array:
        return allgather(self.comm, dy, saved)


class Joined(Between):
    """Every rank has some positions, gathers all, and then does the same work as every other rank."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        positions = int(allreduce(self.comm, np.array([x.shape[POSITIONS]]))[0])
        return allgather(self.comm, x, positions), None

    def backward(self, dy: Array, saved: Any) -> Array:
        return np.ascontiguousarray(_own(self.comm, dy))


def add_up_partial(comm: Any, modules: Iterable[Module]) -> None:
    """Add up the gradients of parameters marked `partial`, of which each rank has only its own positions' part."""
    partials = [parameter for module in modules for parameter in module.parameters() if parameter.partial]
    if partials:
        flat = allreduce(comm, np.concatenate([parameter.grad.ravel() for parameter in partials]))
        for parameter, part in zip(
            partials, np.split(flat, np.cumsum([parameter.size for parameter in partials])[:-1])
        ):
            parameter.grad[...] = part.reshape(parameter.shape)
