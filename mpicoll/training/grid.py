"""Data, tensor and pipeline parallel at once: the ranks form a grid, and each axis has communicators of its own."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
from mpi4py import MPI

from ..errors import TrainingError
from ..timeline.spans import span
from . import memory
from .checks import finite, same_model
from .data_parallel import BUCKET_BYTES, buckets
from .optimizers import Optimizer
from .phases import OPTIMIZER
from .pipeline import Pipeline
from .tensor_parallel import add_up_partial, share
from .transformer import Shape, units


class Grid:
    """data × pipeline × tensor ranks, the ranks of a tensor group next to each other: these talk most."""

    def __init__(self, comm: Any, data: int, tensor: int, pipeline: int) -> None:
        """Split a communicator. Collective; raises TrainingError where the sizes do not give the number of ranks."""
        if data * tensor * pipeline != comm.size or min(data, tensor, pipeline) < 1:
            size = f"{data} x {tensor} x {pipeline} = {data * tensor * pipeline}"
            raise TrainingError(f"a grid of {size} ranks does not fit {comm.size}; no size may be below 1")
        rank = comm.rank
        self.comm, self.shape = comm, (data, tensor, pipeline)
        t, s, d = rank % tensor, rank // tensor % pipeline, rank // (tensor * pipeline)
        self.tensor = comm.Split(rank // tensor, t)
        self.pipeline = comm.Split(d * tensor + t, s)
        self.data = comm.Split(s * tensor + t, d)

    def free(self) -> None:
        """Free the communicators of the axes."""
        for comm in (self.tensor, self.pipeline, self.data):
            comm.Free()


class Hybrid:
    """Trains a transformer on a grid: blocks are cut by tensor, units dealt out to stages, batches by data."""

    def __init__(
        self,
        grid: Grid,
        shape: Shape,
        optimizer: Optimizer,
        *,
        parts: int = 2,
        by_positions: bool = False,
        seed: int = 0,
    ) -> None:
        """Make this rank's part of the model. Collective; raises TrainingError where stages have no unit.

        parts: how many a batch has in the pipeline. by_positions: whether tensor parallel ranks cut positions too.
        """
        self.grid, self.shape, self.optimizer, self.steps = grid, shape, optimizer, 0
        self.by_positions = by_positions
        if grid.pipeline.size > shape.blocks + 2:
            raise TrainingError(
                f"{grid.pipeline.size} stages are too many for {shape.blocks + 2} units: an embedding, "
                f"{shape.blocks} blocks and a head"
            )
        whole = units(shape, grid.tensor, seed, by_positions)
        mine = share(shape.blocks + 2, grid.pipeline)
        self.units = list(islice(whole, mine.start, mine.stop))
        self.parameters = [parameter for unit in self.units for parameter in unit.parameters()]
        same_model(grid.data, self.parameters)
        for parameter in self.parameters:
            memory.track(memory.PARAMETERS, parameter.value)
            grid.data.Bcast(parameter.value)
        self.buckets = buckets(self.units, BUCKET_BYTES)
        self.pipeline = Pipeline(grid.pipeline, self.units, parts)

    def step(self, x: np.ndarray, labels: np.ndarray) -> float:
        """Train on this data rank's part of a batch of tokens; return the mean loss of the whole batch."""
        for bucket in self.buckets:
            bucket.gradients[:] = 0
        positions = x.shape[1]
        if self.by_positions:
            own = share(positions, self.grid.tensor)
            positions = own.stop - own.start
        loss = self.pipeline.run(x, labels, (positions, self.shape.width), self.shape.dtype)
        add_up_partial(self.grid.tensor, self.units)
        counts_here = self.pipeline.last and self.grid.tensor.rank == 0
        sums = np.array([loss, labels.size]) * counts_here
        self.grid.comm.Allreduce(MPI.IN_PLACE, sums)
        requests = [self.grid.data.Iallreduce(MPI.IN_PLACE, bucket.gradients) for bucket in self.buckets]
        for bucket, request in zip(self.buckets, requests):
            request.Wait()
            with span(OPTIMIZER):
                bucket.update(self.optimizer, sums[1])
        self.steps += 1
        return finite(float(sums[0] / sums[1]), self.steps)
