"""A network of one hidden layer in NumPy, with its parameters, and so its gradients, in one flat bucket."""

from __future__ import annotations

import numpy as np


class Mlp:
    """tanh, then softmax with cross-entropy; float64: the order of a sum shows in the last digits only."""

    def __init__(self, inputs: int, hidden: int, classes: int, seed: int = 0) -> None:
        self.shapes = ((inputs, hidden), (hidden,), (hidden, classes), (classes,))
        ends = np.cumsum([int(np.prod(shape)) for shape in self.shapes])
        self.bounds = list(zip([0, *ends[:-1].tolist()], ends.tolist()))
        self.parameters = np.zeros(ends[-1])
        self.velocity = np.zeros_like(self.parameters)
        normal = np.random.default_rng(seed).normal
        for weights in self.views(self.parameters)[::2]:
            weights[:] = normal(0, 1 / np.sqrt(len(weights)), weights.shape)

    def views(self, bucket: np.ndarray) -> list[np.ndarray]:
        """Return the weights and biases of both layers, as views of a flat bucket."""
        return [bucket[a:b].reshape(shape) for (a, b), shape in zip(self.bounds, self.shapes)]

    def forward(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the hidden layer and the classes' probabilities, by image."""
        w1, b1, w2, b2 = self.views(self.parameters)
        hidden = np.tanh(x @ w1 + b1)
        scores = hidden @ w2 + b2
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def backward(self, x: np.ndarray, labels: np.ndarray, gradient: np.ndarray) -> float:
        """Write the gradient of the summed loss of some images, of none too; returns that loss."""
        w2 = self.views(self.parameters)[2]
        hidden, error = self.forward(x)
        rows = np.arange(len(x))
        loss = -np.log(error[rows, labels]).sum()
        error[rows, labels] -= 1
        inner = (error @ w2.T) * (1 - hidden**2)
        parts = (x.T @ inner, inner.sum(axis=0), hidden.T @ error, error.sum(axis=0))
        for view, part in zip(self.views(gradient), parts):
            view[:] = part
        return float(loss)

    def step(self, gradient: np.ndarray, rate: float, momentum: float = 0.9) -> None:
        """Gradient descent with momentum, from the gradient of a mean."""
        self.velocity *= momentum
        self.velocity -= rate * gradient
        self.parameters += self.velocity

    def accuracy(self, x: np.ndarray, labels: np.ndarray) -> float:
        """Return the part of the images that it gets right."""
        return float((self.forward(x)[1].argmax(axis=1) == labels).mean())
