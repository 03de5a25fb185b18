"""All-to-all: from one way of cutting a matrix to another.

All are made of one exchange, in which every rank sends every other the part that both have a share in.

    transpose    rows of A on every rank -> rows of its transpose
    to_features  some samples with all features (data parallel) -> all samples with some features (model parallel)
    to_samples   and back
    Switched     both, around layers that must see whole columns
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .modules import Array, Module
from .tensor_parallel import allreduce, counts


def to_features(comm: Any, x: Array, samples: int) -> Array:
    """Return this rank's columns of a matrix of so many rows, of which x is this rank's rows."""
    rows, columns = counts(samples, comm), counts(x.shape[1], comm)
    ends = np.cumsum(columns)[:-1]
    sent = np.concatenate([part.ravel() for part in np.split(x, ends, axis=1)])
    got = np.empty((samples, columns[comm.rank]), x.dtype)
    comm.Alltoallv([sent, [len(x) * n for n in columns]], [got, [n * columns[comm.rank] for n in rows]])
    return got


def to_samples(comm: Any, x: Array, features: int) -> Array:
    """Return this rank's rows of a matrix of so many columns, of which x is this rank's columns."""
    rows, columns = counts(len(x), comm), counts(features, comm)
    got = np.empty(rows[comm.rank] * features, x.dtype)
    sent = np.ascontiguousarray(x)
    comm.Alltoallv([sent, [n * x.shape[1] for n in rows]], [got, [rows[comm.rank] * n for n in columns]])
    ends = np.cumsum([rows[comm.rank] * n for n in columns])[:-1]
    parts = [part.reshape(rows[comm.rank], n) for part, n in zip(np.split(got, ends), columns)]
    return np.concatenate(parts, axis=1)


def transpose(comm: Any, x: Array, samples: int) -> Array:
    """Return this rank's rows of the transpose of a matrix of so many rows, of which x is this rank's rows."""
    return np.ascontiguousarray(to_features(comm, x, samples).T)


class Switched(Module):
    """Layers that see all samples with some of the features, between layers that see some samples with all of them."""

    def __init__(self, comm: Any, inner: Module) -> None:
        self.comm, self.inner, self.parts = comm, inner, (inner,)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Switch to features, go through the layers, and switch back."""
        samples = int(allreduce(self.comm, np.array([len(x)]))[0])
        y, saved = self.inner.forward(to_features(self.comm, x, samples))
        return to_samples(self.comm, y, x.shape[1]), (samples, x.shape[1], saved)

    def backward(self, dy: Array, saved: Any) -> Array:
        """Take the gradient the same way."""
        samples, features, inner = saved
        dx = self.inner.backward(to_features(self.comm, dy, samples), inner)
        return to_samples(self.comm, dx, features)
