"""Data parallel: every rank has the whole model and a part of each batch, and gradients are added up.

Gradients are in buckets, in the order in which the backward pass computes them. A bucket is reduced as soon as its last
gradient is ready, while the backward pass continues (Li et al., PyTorch Distributed: experiences on accelerating data
parallel training, 2020). Per step a rank sends and receives 2 n (p - 1) / p bytes, of n bytes of parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..timeline.spans import span
from . import memory
from .checks import finite, same_model
from .modules import Array, Module, Parameter, cross_entropy, parameters
from .optimizers import Optimizer
from .phases import BACKWARD, FORWARD, OPTIMIZER

BUCKET_BYTES, FIRST_BYTES = 25 << 20, 1 << 20  # as in DistributedDataParallel


class Bucket:
    """Gradients of some parameters in one array. It is whole once the backward pass has been through a unit."""

    def __init__(self, members: Sequence[Parameter], whole_after: int) -> None:
        self.members, self.whole_after = members, whole_after
        self.gradients = memory.array(memory.GRADIENTS, sum(parameter.size for parameter in members), members[0].dtype)
        ends = np.cumsum([parameter.size for parameter in members])
        for parameter, end in zip(members, ends):
            parameter.grad = self.gradients[end - parameter.size : end].reshape(parameter.shape)
        if len(members) == 1:
            self.gradients = members[0].grad  # in its shape, of which a reduction may make use

    def update(self, optimizer: Optimizer, count: float) -> None:
        """Divide the summed gradients by the number of samples, and update the parameters."""
        self.gradients /= count
        for parameter in self.members:
            optimizer.update(parameter, parameter.value, parameter.grad)


def buckets(units: Sequence[Module], nbytes: int) -> list[Bucket]:
    """Return buckets of at most so many bytes, or of one parameter; the last layer comes first.

    The first is smaller, so that a message is in flight soon.
    """
    full_buckets: list[Bucket] = []
    members: list[Parameter] = []
    whole_after = 0
    for number, unit in reversed(list(enumerate(units))):
        for parameter in reversed([parameter for parameter in unit.parameters() if not parameter.local]):
            size = sum(other.size for other in (*members, parameter)) * parameter.dtype.itemsize
            most = nbytes if full_buckets else min(nbytes, FIRST_BYTES)
            if members and (size > most or members[0].dtype != parameter.dtype):
                full_buckets.append(Bucket(members, whole_after))
                members = []
            members.append(parameter)
            whole_after = number
    return [*full_buckets, Bucket(members, whole_after)] if members else full_buckets


class DataParallel:
    """Trains a model, given as units one after the other, whose parameters become those of rank 0."""

    def __init__(
        self, comm: Any, units: Sequence[Module], optimizer: Optimizer, *,
        bucket_bytes: int = BUCKET_BYTES, overlap: bool = True, master: bool = False,
        reduce: Callable[[Array], Any] | None = None,
    ) -> None:  # fmt: skip
        """Begin with the parameters of rank 0. Collective; raises TrainingError where models differ.

        overlap: reduce during the backward pass, not after it. master: reduce to rank 0, which sends the sums to the
        others, so that they pass through it. reduce: puts the sum over the ranks in the place of a bucket's gradients,
        after the backward pass; `mpicoll.compression.Allreduce(comm, "int8")` is one, comm.Allreduce if None.
        """
        self.comm, self.units, self.optimizer = comm, list(units), optimizer
        self.overlap, self.master, self.steps = overlap and reduce is None, master, 0
        self.reduce = reduce
        self.local = [parameter for parameter in parameters(self.units) if parameter.local]
        shared = [parameter for parameter in parameters(self.units) if not parameter.local]
        same_model(comm, shared)
        for parameter in (*shared, *self.local):
            memory.track(memory.PARAMETERS, parameter.value)
        for parameter in self.local:
            parameter.grad = memory.array(memory.GRADIENTS, parameter.shape, parameter.dtype)
        for parameter in shared:
            comm.Bcast(parameter.value)
        self.buckets = buckets(self.units, bucket_bytes)

    def step(self, x: Array, labels: Array) -> float:
        """Train on this rank's part of a batch, of any size; return the mean loss of the whole batch."""
        saved = []
        with span(FORWARD):
            for unit in self.units:
                x, context = unit.forward(x)
                saved.append(memory.track_activations(context))
            context = None  # so that the backward pass frees the last unit's activations too
            loss, dy = cross_entropy(x, labels)
        for bucket in self.buckets:
            bucket.gradients[:] = 0
        for own in self.local:
            own.grad[...] = 0
        requests = []
        with span(BACKWARD):
            for number, unit in reversed(list(enumerate(self.units))):
                dy = unit.backward(dy, saved.pop())
                if self.overlap and not self.master:
                    requests += [self.comm.Iallreduce(MPI.IN_PLACE, bucket.gradients)
                                 for bucket in self.buckets if bucket.whole_after == number]  # fmt: skip
        sums = np.array([loss, labels.size])  # parts of a batch may differ in size: what is summed is divided at last
        self.comm.Allreduce(MPI.IN_PLACE, sums)
        for bucket, request in zip(self.buckets, requests or [None] * len(self.buckets)):
            request.Wait() if request is not None else self._reduce(bucket.gradients)
            with span(OPTIMIZER):
                bucket.update(self.optimizer, sums[1])
        for parameter in self.local:
            self.optimizer.update(parameter, parameter.value, parameter.grad / sums[1])
        self.steps += 1
        return finite(float(sums[0] / sums[1]), self.steps)

    def _reduce(self, gradients: Array) -> None:
        """Add up gradients of all ranks, at once."""
        if self.reduce is not None:
            self.reduce(gradients)
            return
        if not self.master:
            self.comm.Allreduce(MPI.IN_PLACE, gradients)
            return
        at_root = self.comm.rank == 0
        self.comm.Reduce(MPI.IN_PLACE if at_root else gradients, gradients if at_root else None)
        self.comm.Bcast(gradients)
