"""ZeRO: what data parallel ranks all hold is cut among them. Stage 3 is what PyTorch calls fully sharded, FSDP.

Stage 1 cuts the optimizer's state, stage 2 the gradients too, stage 3 also the parameters: a unit's are gathered before
its forward pass and again before its backward pass, the next unit's while this one computes, and dropped after use.
Gradients are reduced and scattered as they come, and each rank updates its share (Rajbhandari et al., ZeRO: memory
optimizations toward training trillion parameter models, 2020; Zhao et al., PyTorch FSDP, 2023). Of n bytes of
parameters, a rank sends and receives 2 n (p - 1) / p per step in stages 1 and 2, and 3 n (p - 1) / p in stage 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..timeline.spans import span
from . import memory
from .checks import finite, same_model
from .flat import Flat
from .modules import Array, Module, cross_entropy
from .optimizers import Optimizer
from .phases import BACKWARD, FORWARD, OPTIMIZER

GRADIENTS, PARAMETERS = 2, 3  # the first stage in which a rank keeps only its share of them


class Sharded:
    """One unit, of which this rank keeps its share, and all that its stage does not cut."""

    def __init__(self, comm: Any, unit: Module, stage: int) -> None:
        self.comm, self.unit, self.stage, self.flat = comm, unit, stage, Flat(comm.size, comm.rank, unit)
        values = self._array(memory.PARAMETERS, self.flat.size)
        self.flat.fill(values)
        comm.Bcast(values)
        self.share = values[self.flat.mine]
        self.values: Array | None = values
        self.gradients: Array | None = None
        self.request: Any = MPI.REQUEST_NULL
        if stage >= PARAMETERS:
            self.share = self._array(memory.PARAMETERS, self.flat.share)
            self.share[:] = values[self.flat.mine]
            self.drop()
        elif stage < GRADIENTS:
            self.gradients = self._array(memory.GRADIENTS, self.flat.size)

    def _array(self, kind: str, size: int) -> Array:
        return memory.array(kind, size, self.flat.dtype)

    def gather(self) -> None:
        """Start to gather the parameters, unless this rank has them or is gathering them."""
        if self.values is None:
            self.values = self._array(memory.PARAMETERS, self.flat.size)
            self.values[self.flat.mine] = self.share
            self.request = self.comm.Iallgather(MPI.IN_PLACE, self.values)

    def use(self) -> Module:
        """Return the unit, once its parameters are here."""
        self.gather()
        self.request.Wait()
        assert self.values is not None
        self.flat.values_in(self.values)
        return self.unit

    def drop(self) -> None:
        """Free the parameters that other ranks keep, in stage 3."""
        if self.stage >= PARAMETERS:
            self.flat.drop_values()
            self.values = None

    def begin_backward(self) -> None:
        """Set the gradients to zero."""
        if self.gradients is None:
            self.gradients = self._array(memory.GRADIENTS, self.flat.size)
        self.gradients[:] = 0
        self.flat.gradients_in(self.gradients)

    def reduce(self) -> None:
        """Start to reduce-scatter the gradients: this rank gets its share of the sum."""
        self.own = self._array(memory.GRADIENTS, self.flat.share)
        self.reducing = self.comm.Ireduce_scatter_block(self.gradients, self.own)

    def end_reduce(self) -> None:
        """Wait for the own share of the gradients, and free those that other ranks keep, from stage 2 on."""
        self.reducing.Wait()
        if self.stage >= GRADIENTS:
            self.flat.drop_gradients()
            self.gradients = None

    def update(self, optimizer: Optimizer, count: float) -> None:
        """Update this rank's share of the parameters; before stage 3, start to gather the whole."""
        self.own /= count
        optimizer.update(self, self.share, self.own)
        del self.own
        if self.stage < PARAMETERS:
            self.request = self.comm.Iallgather(MPI.IN_PLACE, self.values)


class Zero:
    """Train a model as DataParallel does, in less memory."""

    def __init__(
        self, comm: Any, units: Iterable[Module], optimizer: Optimizer, *, stage: int = 3, prefetch: bool = True
    ) -> None:
        """Begin with the parameters of rank 0. Collective; raises TrainingError where models differ.

        units may be a generator: each is cut before the next is made. prefetch: gather the next unit's parameters, and
        reduce the last one's gradients, while this one computes.
        """
        if stage not in (1, 2, 3):
            raise ValueError(f"stage is {stage!r}; it must be 1, 2 or 3")
        self.comm, self.optimizer, self.prefetch, self.steps = comm, optimizer, prefetch, 0
        self.units: list[Sharded] = []
        for unit in units:
            same_model(comm, list(unit.parameters()))
            self.units.append(Sharded(comm, unit, stage))
        same_model(comm, ())  # no rank has one more

    def step(self, x: Array, labels: Array) -> float:
        """Train on this rank's part of a batch, of any size; return the mean loss of the whole batch."""
        saved = []
        with span(FORWARD):
            for number, sharded in enumerate(self.units):
                unit = sharded.use()
                self._prefetch(number + 1)
                x, context = unit.forward(x)
                saved.append(memory.track_activations(context))
                if sharded is not self.units[-1]:  # the backward pass begins with it
                    sharded.drop()
            context = None  # so that the backward pass frees the last unit's activations too
            loss, dy = cross_entropy(x, labels)
        reducing: list[Sharded] = []
        with span(BACKWARD):
            for number, sharded in reversed(list(enumerate(self.units))):
                unit = sharded.use()
                self._prefetch(number - 1)
                sharded.begin_backward()
                dy = unit.backward(dy, saved.pop())
                sharded.drop()
                for other in reducing:  # whole gradients of two units at most
                    other.end_reduce()
                sharded.reduce()
                if self.prefetch:
                    reducing = [sharded]
                else:
                    sharded.end_reduce()
        sums = np.array([loss, labels.size])
        self.comm.Allreduce(MPI.IN_PLACE, sums)
        for sharded in reducing:
            sharded.end_reduce()
        with span(OPTIMIZER):
            for sharded in self.units:
                sharded.update(self.optimizer, sums[1])
        for sharded in self.units:
            sharded.request.Wait()
        self.steps += 1
        return finite(float(sums[0] / sums[1]), self.steps)

    def rows(self) -> list[Array]:
        """Return for each unit a copy of this rank's share: a row of parameters, then rows of optimizer state."""
        return [np.vstack([unit.share, *self.optimizer.rows(unit, unit.share)]) for unit in self.units]

    def lengths(self) -> list[int]:
        """Return how many parameters each unit has."""
        return [unit.flat.bounds[-1][1] if unit.flat.bounds else 0 for unit in self.units]

    def load(self, rows: Sequence[Array], steps: int) -> None:
        """Take such copies, as they were after so many steps. Collective."""
        self.steps = steps
        for unit, own in zip(self.units, rows):
            unit.share[:] = own[0]
            self.optimizer.load(unit, own[1:].copy(), steps)
            if unit.values is not None:
                self.comm.Allgather(MPI.IN_PLACE, unit.values)

    def _prefetch(self, number: int) -> None:
        if self.prefetch and 0 <= number < len(self.units):
            self.units[number].gather()
