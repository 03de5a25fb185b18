"""Optimizers that work on any part of the parameters, so that each rank may have the state of its own part only."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from . import memory


class Optimizer(Protocol):
    """The interface of an optimizer that the patterns use; rows and load are for checkpoints alone."""

    def update(self, key: Hashable, value: np.ndarray, gradient: np.ndarray) -> None:
        """Update a value in place; the key identifies the optimizer's state of that value."""

    def rows(self, key: Hashable, value: np.ndarray) -> np.ndarray:
        """Return the state of a value: arrays of its shape, along the first axis."""

    def load(self, key: Hashable, rows: np.ndarray, steps: int) -> None:
        """Take rows() of a value that was updated `steps` times."""


def _rows(state: dict[Hashable, np.ndarray], number: int, key: Hashable, value: np.ndarray) -> np.ndarray:
    """Return the state of a value, `number` arrays of its shape: zeros at first."""
    if key not in state:
        state[key] = memory.array(memory.OPTIMIZER, (number, *value.shape), value.dtype)
    return state[key]


@dataclass
class Sgd:
    """Gradient descent with momentum: one number of state for each parameter, none without momentum."""

    rate: float = 0.1
    momentum: float = 0.9
    state: dict[Hashable, np.ndarray] = field(default_factory=dict)

    def rows(self, key: Hashable, value: np.ndarray) -> np.ndarray:
        """Return the velocity, if there is momentum."""
        return _rows(self.state, int(bool(self.momentum)), key, value)

    def load(self, key: Hashable, rows: np.ndarray, steps: int) -> None:
        """Take the velocity of a value."""
        self.state[key] = memory.track(memory.OPTIMIZER, rows)

    def update(self, key: Hashable, value: np.ndarray, gradient: np.ndarray) -> None:
        """Add the velocity, from which the gradient has been taken."""
        if not self.momentum:
            value -= self.rate * gradient
            return
        (velocity,) = self.rows(key, value)
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

    def rows(self, key: Hashable, value: np.ndarray) -> np.ndarray:
        """Return the mean of the gradients, and of their squares."""
        return _rows(self.state, 2, key, value)

    def load(self, key: Hashable, rows: np.ndarray, steps: int) -> None:
        """Take both means of a value that was updated `steps` times."""
        self.state[key], self.steps[key] = memory.track(memory.OPTIMIZER, rows), steps

    def update(self, key: Hashable, value: np.ndarray, gradient: np.ndarray) -> None:
        """Go against the mean gradient, divided by the root of its mean square."""
        step = self.steps[key] = self.steps.get(key, 0) + 1
        (mean, square), (a, b) = self.rows(key, value), self.decay
        mean += (1 - a) * (gradient - mean)
        square += (1 - b) * (gradient * gradient - square)
        value -= self.rate * (mean / (1 - a**step)) / (np.sqrt(square / (1 - b**step)) + self.epsilon)
