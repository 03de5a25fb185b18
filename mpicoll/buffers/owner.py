"""Find the bounds of the memory that a view belongs to: datatypes with holes may exceed the view, as in mpi4py."""

from __future__ import annotations

from array import array
from math import inf
from mmap import mmap
from typing import Any

import numpy as np
from mpi4py import MPI

from ..kernels.memory import address_of
from .datatypes import TypeFacts


def reach(
    obj: Any, facts: TypeFacts, n: int, at: int, address: int, length: int
) -> tuple[float, float, float, float]:
    """Return the first byte and the end of n elements at offset `at` of a buffer, and the bounds for both.

    A datatype with holes may exceed a view, within the memory of the view's owner. A buffer of MPI.buffer.fromaddress
    has no facts bounds: its length counts bytes of data, which the datatype may spread over more memory.
    """
    if not facts.contiguous and isinstance(obj, MPI.buffer) and obj.obj is None:
        return at, at + n * facts.size, at, at + length
    begin, end = facts.span(n, at)
    inside = begin >= 0 and end <= length
    return begin, end, *((0, length) if inside or facts.contiguous else limits(obj, address))


def limits(obj: Any, address: int) -> tuple[float, float]:
    """Return begin and end of the memory of a buffer's owner, in bytes from the buffer's first.

    The owner of x[2:] is x. The bounds are infinite if the owner is unknown: a tensor, or memory that C code wrapped.
    """
    owner = _owner(obj)
    if isinstance(owner, np.ndarray):
        begin, nbytes = address_of(owner), owner.nbytes
    elif isinstance(owner, (bytes, bytearray, array, mmap)):
        memory = MPI.buffer.frombuffer(owner, readonly=True)
        begin, nbytes = memory.address, memory.nbytes
    else:
        return -inf, inf
    return begin - address, begin + nbytes - address


def _owner(obj: Any) -> Any:
    """Return the last object in a chain of arrays, memoryviews and MPI buffers."""
    while True:
        is_view = isinstance(obj, (memoryview, MPI.buffer))
        inner = obj.base if isinstance(obj, np.ndarray) else obj.obj if is_view else None
        if inner is None:
            return obj
        obj = inner
