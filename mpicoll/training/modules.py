"""Layers in NumPy: each has a forward and a backward pass, and nothing knows of ranks.

`y, saved = layer.forward(x)`, then `dx = layer.backward(dy, saved)`, which adds to the gradients of the layer's
parameters. What the backward pass needs is returned and not kept, so several batches may be on their way through one
layer. Samples are rows; tokens have a batch and a position before the features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

Array = np.ndarray
EPSILON = 1e-5  # added to a variance before its root is taken


def as_rows(x: Array) -> Array:
    """Return x with all dimensions but the last as one; there may be no features."""
    return x.reshape(prod(x.shape[:-1]), x.shape[-1])


class Parameter:
    """An array that is trained, and the gradient of the loss with respect to it.

    Either may be a view of a larger array, and is empty for as long as this rank does not have it. partial: ranks that
    share the model each have a part of the gradient's sum. local: no other rank has this parameter.
    """

    partial = local = False

    def __init__(self, value: Array) -> None:
        self.shape, self.size, self.dtype = value.shape, value.size, value.dtype
        self.value: Array = np.array(value)  # its own: a part of a larger array would keep all of that
        self.grad: Array = np.zeros(0, value.dtype)

    def zero_grad(self) -> None:
        """Make the gradient an array of zeros of its own."""
        self.grad = np.zeros(self.shape, self.dtype)


class Module:
    """A layer, or layers within a layer: `parts` are these, `own` are its own parameters."""

    own: Sequence[Parameter] = ()
    parts: Sequence[Module] = ()

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the output, and what the backward pass needs."""
        raise NotImplementedError

    def backward(self, dy: Array, saved: Any) -> Array:
        """Add to the gradients of the parameters, and return the gradient of the input."""
        raise NotImplementedError

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters of all parts, in one order on every rank."""
        yield from self.own
        for part in self.parts:
            yield from part.parameters()


def parameters(modules: Iterable[Module]) -> list[Parameter]:
    """Return the parameters of several modules."""
    return [parameter for module in modules for parameter in module.parameters()]


class Sequential(Module):
    """Layers one after the other."""

    def __init__(self, *parts: Module) -> None:
        self.parts = parts

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Go through the parts in order."""
        every = []
        for part in self.parts:
            x, saved = part.forward(x)
            every.append(saved)
        return x, every

    def backward(self, dy: Array, saved: Any) -> Array:
        """Go through the parts from the last to the first."""
        for part, context in zip(reversed(self.parts), reversed(saved), strict=True):
            dy = part.backward(dy, context)
        return dy


class Residual(Module):
    """The input, and what layers make of it, added."""

    def __init__(self, *parts: Module) -> None:
        self.inner = Sequential(*parts)
        self.parts = (self.inner,)

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return x + inner(x)."""
        y, saved = self.inner.forward(x)
        return x + y, saved

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return the sum of dy and the gradient through the layers."""
        dx: Array = dy + self.inner.backward(dy, saved)
        return dx


class Linear(Module):
    """x @ weight + bias; the bias may be left out."""

    def __init__(self, weight: Array, bias: Array | None = None) -> None:
        self.weight = Parameter(weight)
        self.bias = None if bias is None else Parameter(bias)
        self.own = [self.weight] if self.bias is None else [self.weight, self.bias]

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the product; x has any number of dimensions before the features."""
        y = x @ self.weight.value
        return (y if self.bias is None else y + self.bias.value), x

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return dy @ weightᵀ."""
        rows, into = as_rows(saved), as_rows(dy)
        self.weight.grad += rows.T @ into
        if self.bias is not None:
            self.bias.grad += into.sum(axis=0)
        dx: Array = dy @ self.weight.value.T
        return dx


class Bias(Module):
    """x + bias."""

    def __init__(self, bias: Array) -> None:
        self.bias = Parameter(bias)
        self.own = [self.bias]

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return the sum."""
        return x + self.bias.value, None

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return dy."""
        self.bias.grad += as_rows(dy).sum(axis=0)
        return dy


class Relu(Module):
    """The larger of x and 0."""

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return it."""
        return np.maximum(x, 0), x > 0

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return dy where x was above 0."""
        dx: Array = dy * saved
        return dx


class Gelu(Module):
    """x Φ(x), by the usual formula with tanh (Hendrycks, Gimpel, Gaussian error linear units, 2016)."""

    ROOT, CUBIC = np.sqrt(2 / np.pi), 0.044715

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return it."""
        tanh = np.tanh(self.ROOT * (x + self.CUBIC * x**3))
        return 0.5 * x * (1 + tanh), (x, tanh)

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return dy times the derivative."""
        x, tanh = saved
        inner = self.ROOT * (1 + 3 * self.CUBIC * x**2)
        dx: Array = dy * (0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * inner)
        return dx


class LayerNorm(Module):
    """Features with mean 0 and variance 1, scaled and shifted (Ba et al., Layer normalization, 2016)."""

    def __init__(self, width: int, dtype: Any = np.float64) -> None:
        self.scale, self.shift = Parameter(np.ones(width, dtype)), Parameter(np.zeros(width, dtype))
        self.own = [self.scale, self.shift]

    def forward(self, x: Array) -> tuple[Array, Any]:
        """Return them."""
        centred = x - x.mean(axis=-1, keepdims=True)
        inverse = 1 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPSILON)
        normal = centred * inverse
        return normal * self.scale.value + self.shift.value, (normal, inverse)

    def backward(self, dy: Array, saved: Any) -> Array:
        """Return the gradient of the input."""
        normal, inverse = saved
        axes = tuple(range(dy.ndim - 1))
        self.scale.grad += (dy * normal).sum(axis=axes)
        self.shift.grad += dy.sum(axis=axes)
        inner = dy * self.scale.value
        mean, along = inner.mean(axis=-1, keepdims=True), (inner * normal).mean(axis=-1, keepdims=True)
        dx: Array = (inner - mean - normal * along) * inverse
        return dx


def cross_entropy(scores: Array, labels: Array) -> tuple[float, Array]:
    """Return the summed cross-entropy of softmax(scores), and its gradient; labels are the right columns."""
    rows = as_rows(scores)
    powers = np.exp(rows - rows.max(axis=1, keepdims=True, initial=-np.inf))
    shares = powers / powers.sum(axis=1, keepdims=True)
    right = np.arange(len(rows)), labels.ravel()
    loss = float(-np.log(shares[right]).sum())
    shares[right] -= 1
    return loss, shares.reshape(scores.shape)
