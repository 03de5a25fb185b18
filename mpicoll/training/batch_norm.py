"""Batch normalisation with the statistics of the whole batch, which is shared out among the ranks.

Forward, ranks add up the number of samples, their sum and the sum of their squares in one allreduce; backward, the two
sums that the gradient needs (Ioffe, Szegedy, Batch normalization, 2015; Zhang et al., Context encoding, 2018, for the
synchronised form). Sums are of distances from a value near the mean, the running one, that all ranks have: the
difference of two large sums would lose the digits that make the variance (Chan, Golub, LeVeque, 1983).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .modules import EPSILON, Array, Module, Parameter
from .tensor_parallel import allreduce


class BatchNorm(Module):
    """Features with mean 0 and variance 1 over all ranks' samples, scaled and shifted; x is (samples, features)."""

    def __init__(self, comm: Any, width: int, dtype: Any = np.float64, momentum: float = 0.1) -> None:
        self.comm, self.momentum = comm, momentum
        self.scale, self.shift = Parameter(np.ones(width, dtype)), Parameter(np.zeros(width, dtype))
        self.own = [self.scale, self.shift]
        self.mean: Array | None = None  # running, as what is normalised with when the training is over
        self.variance = np.ones(width, dtype)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the normalised features, and note mean and variance."""
        count, mean, variance = self._statistics(x)
        inverse = 1 / np.sqrt(variance + EPSILON)
        normal = (x - mean) * inverse
        assert self.mean is not None
        self.mean = self.mean + self.momentum * (mean - self.mean)
        self.variance = self.variance + self.momentum * (variance * count / max(count - 1, 1) - self.variance)
        return normal * self.scale.value + self.shift.value, (normal, inverse, count)

    def _statistics(self, x: Array) -> tuple[float, Array, Array]:
        """Return number of samples, mean and variance over all ranks."""
        width = x.shape[1]
        if self.mean is None:  # once, to have a value near the mean
            first = allreduce(self.comm, np.append(x.sum(axis=0), len(x)))
            self.mean = (first[:width] / max(first[-1], 1)).astype(x.dtype)
        far = x - self.mean
        sums = allreduce(self.comm, np.concatenate([far.sum(axis=0), (far * far).sum(axis=0), [len(x)]]))
        count = max(float(sums[-1]), 1.0)
        offset = (sums[:width] / count).astype(x.dtype)
        variance = (sums[width:-1] / count).astype(x.dtype) - offset * offset
        return count, self.mean + offset, np.maximum(variance, 0)

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return the gradient of the input, in which every sample of the batch has a part."""
        normal, inverse, count = saved
        along, plain = (dy * normal).sum(axis=0), dy.sum(axis=0)
        self.scale.grad += along
        self.shift.grad += plain
        every = allreduce(self.comm, np.concatenate([along, plain]))
        along, plain = np.split(every / count, 2)
        dx: Array = (dy - plain - normal * along) * inverse * self.scale.value
        return dx
