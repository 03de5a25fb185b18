"""Optimizers that work on any part of the parameters, so that each rank may have the state of its own part only."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from . import memory


class Optimizer(Protocol):
    """The interface of an optimizer that the patterns use."""

    steps: dict[Hashable, int]

    def update(self, key: Hashable, value: np.ndarray, gradient: np.ndarray) -> None:
        """Update a value in place; the key identifies the optimizer's state of that value."""

    def rows(self, key: Hashable, value: np.ndarray) -> np.ndarray:
        """Return the state of a value: an array of so many numbers for each element, along the first axis."""

    def load(self, key: Hashable, rows: np.ndarray, steps: int) -> None:
        """Go on from such a state of a value, which was updated so often."""


class _Stateful:
    """An optimizer's state: so many numbers for each element of a value, and how often it was updated."""

    numbers = 0
    state: dict[Hashable, np.ndarray]
    steps: dict[Hashable, int]

    def rows(self, key: Hashable, value: np.ndarray) -> np.ndarray:
        """Return the state of a value: an array of so many numbers for each element, along the first axis."""
        if key not in self.state:
            self.state[key] = memory.array(memory.OPTIMIZER, (self.numbers, *value.shape), value.dtype)
        return self.state[key]

    def load(self, key: Hashable, rows: np.ndarray, steps: int) -> None:
        """Go on from such a state of a value, which was updated so often."""
        self.state[key], self.steps[key] = memory.track(memory.OPTIMIZER, rows), steps


@dataclass
class Sgd(_Stateful):
    """Gradient descent with momentum: one number of state for each parameter, none without momentum."""

    rate: float = 0.1
    momentum: float = 0.9
    state: dict[Hashable, np.ndarray] = field(default_factory=dict)
    steps: dict[Hashable, int] = field(default_factory=dict)

    @property
    def numbers(self) -> int:  # type: ignore[override]
        """The numbers of state of an element: its velocity, if there is momentum."""
        return int(bool(self.momentum))

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
class Adam(_Stateful):
    """Adam: two numbers of state for each parameter (Kingma, Ba, Adam, 2014)."""

    rate: float = 1e-3
    decay: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    state: dict[Hashable, np.ndarray] = field(default_factory=dict)
    steps: dict[Hashable, int] = field(default_factory=dict)
    numbers = 2

    def update(self, key: Hashable, value: np.ndarray, gradient: np.ndarray) -> None:
        """Go against the mean gradient, divided by the root of its mean square."""
        step = self.steps[key] = self.steps.get(key, 0) + 1
        (mean, square), (a, b) = self.rows(key, value), self.decay
        mean += (1 - a) * (gradient - mean)
        square += (1 - b) * (gradient * gradient - square)
        value -= self.rate * (mean / (1 - a**step)) / (np.sqrt(square / (1 - b**step)) + self.epsilon)
