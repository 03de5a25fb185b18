"""Describe an array in a trailer of its message, so that a receiver needs to know neither dtype nor shape.

The trailer is the last part of a message: shape, pickled dtype, and three numbers. The last one is for the sender to
choose.
"""

from __future__ import annotations

import math
import pickle
import struct
from functools import lru_cache
from typing import NamedTuple

import numpy as np

_NUMBERS = struct.Struct("=3q")  # dimensions, bytes of shape and dtype, the sender's number


class Described(NamedTuple):
    """Shape, dtype and bytes of an array, as a trailer says."""

    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int


def trailer(array: np.ndarray, number: int = 0) -> bytes:
    """Return the trailer of an array, with a number of the sender's choice."""
    described = _packed(array.shape, array.dtype)
    return described + _NUMBERS.pack(array.ndim, len(described), number)


@lru_cache(maxsize=1024)
def _packed(shape: tuple[int, ...], dtype: np.dtype) -> bytes:
    return struct.pack(f"{len(shape)}q", *shape) + pickle.dumps(dtype)


def read_trailer(message: bytearray | memoryview, end: int) -> tuple[Described, int]:
    """Return what the trailer that ends before this index of a message says of the array, and the sender's number."""
    end -= _NUMBERS.size
    ndim, length, number = _NUMBERS.unpack_from(message, end)
    return _described(bytes(message[end - length : end]), ndim), number


@lru_cache(maxsize=1024)
def _described(described: bytes, ndim: int) -> Described:
    shape, dtype = struct.unpack_from(f"{ndim}q", described), pickle.loads(described[8 * ndim :])
    return Described(shape, dtype, math.prod(shape) * dtype.itemsize)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8)
