"""The parameters of a unit in one array, cut into as many equal shares as there are ranks."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from .modules import Array, Module


class Flat:
    """A unit's parameters in one array: one behind the other, and zeros at the end, so that shares are equal.

    shares: how many there are, of which `mine` is one; it is past the end if no share has that number.
    """

    def __init__(self, shares: int, own: int, unit: Module) -> None:
        self.unit, self.parameters = unit, list(unit.parameters())
        self.dtype = (
            np.result_type(*(parameter.dtype for parameter in self.parameters)) if self.parameters else np.dtype(float)
        )
        ends = np.cumsum([0, *(parameter.size for parameter in self.parameters)]).tolist()
        self.bounds = list(pairwise(ends))
        self.share = -(-ends[-1] // shares)
        self.size = self.share * shares
        self.mine = slice(own * self.share, (own + 1) * self.share)

    def fill(self, array: Array) -> None:
        """Copy the unit's parameters into an array."""
        for parameter, (first, end) in zip(self.parameters, self.bounds):
            array[first:end] = parameter.value.ravel()

    def values_in(self, array: Array) -> None:
        """Make the unit's parameters views of an array."""
        for parameter, (first, end) in zip(self.parameters, self.bounds):
            parameter.value = array[first:end].reshape(parameter.shape)

    def gradients_in(self, array: Array) -> None:
        """Make the unit's gradients views of an array."""
        for parameter, (first, end) in zip(self.parameters, self.bounds):
            parameter.grad = array[first:end].reshape(parameter.shape)

    def drop_values(self) -> None:
        """Leave the unit without parameters, so that their array goes."""
        for parameter in self.parameters:
            parameter.value = np.zeros(0, parameter.dtype)

    def drop_gradients(self) -> None:
        """Leave the unit without gradients, so that their array goes."""
        for parameter in self.parameters:
            parameter.grad = np.zeros(0, parameter.dtype)
