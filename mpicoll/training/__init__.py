"""Distributed training in NumPy: the patterns that collectives are for, each short enough to read.

    comm = mpicoll.Comm(MPI.COMM_WORLD)
    trainer = training.DataParallel(comm, units, training.Sgd(0.1))     # or Zero, ParameterServer, …
    loss = trainer.step(x, labels)                                      # this rank's part of a batch

Any communicator with mpi4py's collectives will do. What is in which module:

    data_parallel      whole models, gradients in buckets: DataParallel
    zero               optimizer state, gradients, parameters cut among ranks (FSDP): Zero
    checkpoint         its state in the memory of the ranks, for when one fails: Checkpoint
    tensor_parallel    what stands between layers that are cut among ranks: Copied, Reduced, Gathered, Scattered
    parameter_server   parameters kept by some ranks: ParameterServer
    batch_norm         statistics of all ranks' samples: BatchNorm
    exchange           between samples and features: transpose, to_features, to_samples
    experts            tokens to experts and back: Experts
    pipeline, grid     units dealt out to stages; data × tensor × pipeline: Pipeline, Grid, Hybrid
    modules, transformer, optimizers    layers with a forward and a backward pass, a small transformer, Sgd and Adam
    memory, account, results    what ranks hold, send and wait for, and the table of it: report
    phases                      forward, backward and optimizer, as timelines name them
"""

from __future__ import annotations

from .batch_norm import BatchNorm
from .checkpoint import Checkpoint
from .data_parallel import DataParallel
from .exchange import to_features, to_samples, transpose
from .experts import Experts
from .grid import Grid, Hybrid
from .optimizers import Adam, Sgd
from .parameter_server import ParameterServer
from .pipeline import Pipeline
from .results import Result, report
from .zero import Zero

__all__ = [
    "Adam",
    "BatchNorm",
    "Checkpoint",
    "DataParallel",
    "Experts",
    "Grid",
    "Hybrid",
    "ParameterServer",
    "Pipeline",
    "Result",
    "Sgd",
    "Zero",
    "report",
    "to_features",
    "to_samples",
    "transpose",
]
