"""The models that are trained, as units that patterns put on ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mpicoll.training.batch_norm import BatchNorm
from mpicoll.training.exchange import Switched
from mpicoll.training.experts import Experts
from mpicoll.training.modules import EPSILON, Array, LayerNorm, Linear, Module, Relu, Residual, Sequential
from mpicoll.training.tensor_parallel import share

CLASSES, EXPERTS = 10, 8


class Draw:
    """Weights, drawn in one order on every rank."""

    def __init__(self, dtype: Any, seed: int = 0) -> None:
        self.dtype, self.draw = dtype, np.random.default_rng(seed)

    def linear(self, inputs: int, outputs: int, bias: bool = True) -> Linear:
        """Return a linear layer."""
        weight = self.draw.normal(0, np.sqrt(2 / inputs), (inputs, outputs)).astype(self.dtype)
        return Linear(weight, np.zeros(outputs, self.dtype) if bias else None)


def mlp(dtype: Any, width: int, layers: int, between: Sequence[Module] = ()) -> list[Module]:
    """Return a network of some hidden layers for the digits; `between` follows the first linear layer."""
    draw = Draw(dtype)
    first = Sequential(draw.linear(64, width), *between, Relu())
    inner = [Sequential(draw.linear(width, width), Relu()) for _ in range(layers - 1)]
    return [first, *inner, draw.linear(width, CLASSES)]


def normalised(comm: Any, dtype: Any, width: int, layers: int) -> list[Module]:
    """Return the same with batch normalisation."""
    return mlp(dtype, width, layers, [BatchNorm(comm, width, dtype)])


class Columns(Module):
    """Every column with mean 0 and variance 1."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the columns so; x has all samples."""
        centred = x - x.mean(axis=0)
        inverse = 1 / np.sqrt((centred**2).mean(axis=0) + EPSILON)
        return centred * inverse, (centred * inverse, inverse)

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return the gradient of the input."""
        normal, inverse = saved
        dx: Array = (dy - dy.mean(axis=0) - normal * (dy * normal).mean(axis=0)) * inverse
        return dx


def switched(comm: Any, dtype: Any, width: int, layers: int) -> list[Module]:
    """Return the same, columns being normalised where a rank has whole ones."""
    return mlp(dtype, width, layers, [Switched(comm, Columns())])


def experts(comm: Any, dtype: Any, width: int) -> list[Module]:
    """Return a network with a layer of experts, which are dealt out to the ranks."""
    draw = Draw(dtype)
    into, router = draw.linear(64, width), draw.linear(width, EXPERTS, bias=False)
    every = [Sequential(draw.linear(width, 2 * width), Relu(), draw.linear(2 * width, width)) for _ in range(EXPERTS)]
    layer = Experts(comm, router.weight.value, every[share(EXPERTS, comm)])
    return [Sequential(into, Relu()), Residual(LayerNorm(width, dtype), layer), draw.linear(width, CLASSES)]
