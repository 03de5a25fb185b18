"""The memory that a view is a part of: datatypes with holes may reach beyond the view, as in mpi4py."""

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
    obj: Any, known: TypeFacts, n: int, at: int, address: int, length: int
) -> tuple[float, float, float, float]:
    """Return the first byte and the end of n elements placed at a byte of a buffer, and the bounds for both.

    A datatype with holes may reach beyond a view, as far as the memory of the view's owner goes. The end of what
    MPI.buffer.fromaddress makes is unknown: its length is that of the data, and the datatype says where the data lies.
    """
    if not known.contiguous and isinstance(obj, MPI.buffer) and obj.obj is None:
        return at, at + n * known.size, at, at + length
    begin, end = known.span(n, at)
    inside = begin >= 0 and end <= length
    return begin, end, *((0, length) if inside or known.contiguous else limits(obj, address))


def limits(obj: Any, address: int) -> tuple[float, float]:
    """Return where the memory of a buffer's owner begins and ends, in bytes from the buffer's first.

    The owner of x[2:] is x. That of a tensor, or of memory that C code wrapped, is unknown: both are infinite then.
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
    """Return the object that a chain of arrays, memoryviews and MPI's buffers ends with."""
    while True:
        is_view = isinstance(obj, (memoryview, MPI.buffer))
        inner = obj.base if isinstance(obj, np.ndarray) else obj.obj if is_view else None
        if inner is None:
            return obj
        obj = inner
