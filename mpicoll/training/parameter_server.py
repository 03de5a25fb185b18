"""Parameter server: some ranks keep the parameters, and all ranks send them their gradients.

A step is four collectives: the batch is scattered from rank 0, gradients are reduced to the servers, these update their
parts of the parameters, and broadcast them (Li et al., Scaling distributed machine learning with the parameter server,
2014; here all ranks compute, and steps are synchronous). One server receives and sends (p - 1) n bytes where messages
go to it directly; s servers share that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..timeline.spans import span
from . import memory
from .checks import finite, same_model
from .flat import Flat
from .modules import Array, Module, Sequential, cross_entropy
from .optimizers import Optimizer
from .phases import BACKWARD, FORWARD, OPTIMIZER
from .tensor_parallel import counts


class ParameterServer:
    """Trains a model whose parameters the first `servers` ranks keep, each an equal part."""

    def __init__(self, comm: Any, units: Sequence[Module], optimizer: Optimizer, *, servers: int = 1) -> None:
        """Begin with the parameters of rank 0. Collective; raises TrainingError where models differ."""
        if not 1 <= servers <= comm.size:
            raise ValueError(f"servers is {servers}; it must be from 1 to {comm.size}, the number of ranks")
        self.comm, self.optimizer, self.servers, self.steps = comm, optimizer, servers, 0
        self.model = Sequential(*units)
        self.flat = flat = Flat(servers, comm.rank, self.model)
        same_model(comm, flat.parameters)
        self.values = memory.array(memory.PARAMETERS, flat.size, flat.dtype)
        self.gradients = memory.array(memory.GRADIENTS, flat.size, flat.dtype)
        flat.fill(self.values)
        flat.values_in(self.values)
        flat.gradients_in(self.gradients)
        comm.Bcast(self.values)

    def step(self, x: Array | None, labels: Array | None) -> float:
        """Train on a batch that rank 0 has; what others pass is not looked at. Return the batch's mean loss."""
        x, labels = self.scatter(x), self.scatter(labels)
        self.gradients[:] = 0
        with span(FORWARD):
            scores, saved = self.model.forward(x)
            memory.track_activations(saved)
            loss, dy = cross_entropy(scores, labels)
        with span(BACKWARD):
            self.model.backward(dy, saved)
        del saved
        sums = np.array([loss, labels.size])
        self.comm.Allreduce(MPI.IN_PLACE, sums)
        self._reduce()
        if self.comm.rank < self.servers:
            with span(OPTIMIZER):
                mine = self.gradients[self.flat.mine]
                mine /= sums[1]
                self.optimizer.update("own part", self.values[self.flat.mine], mine)
        self._broadcast()
        self.steps += 1
        return finite(float(sums[0] / sums[1]), self.steps)

    def scatter(self, whole: Array | None) -> Array:
        """Return this rank's rows of an array of rank 0, which are shared as evenly as can be."""
        rows, shape, dtype = self.comm.bcast(None if whole is None else (len(whole), whole.shape[1:], whole.dtype))
        shares = counts(rows, self.comm)
        own = np.empty((shares[self.comm.rank], *shape), dtype)
        row = int(np.prod(shape))
        self.comm.Scatterv([whole, [n * row for n in shares]] if self.comm.rank == 0 else None, own)
        return own

    def _parts(self, array: Array) -> list[Array]:
        return np.split(array, self.servers)

    def _reduce(self) -> None:
        """Add up the gradients of every part at its server, all parts at once."""
        requests = []
        for server, part in enumerate(self._parts(self.gradients)):
            here = self.comm.rank == server
            send, recv = (MPI.IN_PLACE, part) if here else (part, None)
            requests.append(self.comm.Ireduce(send, recv, root=server))
        for request in requests:
            request.Wait()

    def _broadcast(self) -> None:
        """Send every part of the parameters from its server, all parts at once."""
        requests = [self.comm.Ibcast(part, root=server) for server, part in enumerate(self._parts(self.values))]
        for request in requests:
            request.Wait()
