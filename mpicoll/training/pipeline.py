"""Pipeline parallel: each rank has some of the units, and small parts of a batch pass from rank to rank.

A rank goes forward with as many parts as there are ranks behind it, then forward with one and backward with one in
turn: so it holds what the backward pass needs of that many parts only (Narayanan et al., PipeDream, 2019, where it is
called 1F1B; Huang et al., GPipe, 2018, for the parts).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..timeline.spans import span
from . import memory
from .modules import Array, Module, Sequential, cross_entropy
from .phases import BACKWARD, FORWARD

FORWARD_TAG, BACKWARD_TAG = 1, 2


class Pipeline:
    """One stage: the units of this rank of comm, whose ranks are the stages in order."""

    def __init__(self, comm: Any, units: Sequence[Module], parts: int) -> None:
        if parts < 1:
            raise ValueError(f"parts is {parts}; a batch has at least 1 part")
        self.comm, self.stage, self.parts = comm, Sequential(*units), parts
        self.first, self.last = comm.rank == 0, comm.rank == comm.size - 1

    def run(self, x: Array, labels: Array, shape: Sequence[int], dtype: Any) -> float:
        """Add a batch to the gradients of this stage's parameters. Returns the summed loss, on the last stage, else 0.

        All stages get the batch; shape and dtype are of what passes between stages, for one sample.
        """
        self.shape, self.dtype, self.loss = tuple(shape), dtype, 0.0
        self.saved: list[Any] = []  # of the parts that went forward and not yet back, oldest first
        self.sent: list[MPI.Request] = []
        batches, targets = np.array_split(x, self.parts), np.array_split(labels, self.parts)
        ahead = min(self.comm.size - 1 - self.comm.rank, self.parts)
        for part in range(self.parts + ahead):
            if part < self.parts:
                self._forward(batches[part], targets[part])
            if part >= ahead:
                self._backward(len(batches[part - ahead]))
        for request in self.sent:
            request.Wait()
        return self.loss

    def _forward(self, x: Array, labels: Array) -> None:
        inputs = x if self.first else self._receive(len(x), self.comm.rank - 1, FORWARD_TAG)
        with span(FORWARD):
            y, saved = self.stage.forward(inputs)
            if self.last:
                loss, y = cross_entropy(y, labels)
                self.loss += loss
        self.saved.append(memory.track_activations((saved, y)))
        if not self.last:
            self._send(y, self.comm.rank + 1, FORWARD_TAG)

    def _backward(self, samples: int) -> None:
        saved, dy = self.saved.pop(0)
        if not self.last:
            dy = self._receive(samples, self.comm.rank + 1, BACKWARD_TAG)
        with span(BACKWARD):
            dx = self.stage.backward(dy, saved)
        if not self.first:
            self._send(dx, self.comm.rank - 1, BACKWARD_TAG)

    def _send(self, x: Array, to: int, tag: int) -> None:
        """Begin to send; the array lives until the end of the run."""
        self.sent.append(self.comm.Isend(np.ascontiguousarray(x, self.dtype), to, tag))

    def _receive(self, samples: int, source: int, tag: int) -> Array:
        x = np.empty((samples, *self.shape), self.dtype)
        self.comm.Recv(x, source, tag)
        return x
