"""Optimizers that work on any part of the parameters, so that each rank may have the state of its own part only."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from . import memory


class Optimizer(Protocol):
    """The interface of an optimizer that the patterns use."""

    def update(self, key: Hashable, value: np.ndarray, gradient: np.ndarray) -> None:
        """Update a value in place; the key identifies the optimizer's state of that value."""


@dataclass
class Sgd:
    """Gradient descent with momentum: one number of state for each parameter, none without momentum."""

    rate: float = 0.1
    momentum: float = 0.9
    state: dict[Hashable, np.ndarray] = field(default_factory=dict)

    def update(self, key: Hashable, value: np.ndarray, gradient: np.ndarray) -> None:
        """Add the velocity, from which the gradient has been taken."""
        if not self.momentum:
            value -= self.rate * gradient
            return
        if key not in self.state:
            self.state[key] = memory.array(memory.OPTIMIZER, value.shape, value.dtype)
        velocity = self.state[key]
        velocity *= self.momentum
        velocity -= self.rate * gradient
        value += velocity


@dataclass
class Adam:
    """Adam: two numbers of state for each parameter (Kingma, Ba, Adam, 2014)."""

    rate: float = 1e-3
    decay: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    state: dict[Hashable, np.ndarray] = field(default_factory=dict)
    steps: dict[Hashable, int] = field(default_factory=dict)

    def update(self, key: Hashable, value: np.ndarray, gradient: np.ndarray) -> None:
        """Go against the mean gradient, divided by the root of its mean square."""
        if key not in self.state:
            self.state[key] = memory.array(memory.OPTIMIZER, (2, *value.shape), value.dtype)
        step = self.steps[key] = self.steps.get(key, 0) + 1
        (mean, square), (a, b) = self.state[key], self.decay
        mean += (1 - a) * (gradient - mean)
        square += (1 - b) * (gradient * gradient - square)
        value -= self.rate * (mean / (1 - a**step)) / (np.sqrt(square / (1 - b**step)) + self.epsilon)
