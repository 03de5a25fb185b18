"""The memory that a view is a part of: datatypes with holes may reach beyond the view, as in mpi4py."""

from __future__ import annotations

from array import array
from math import inf
from mmap import mmap
from typing import Any

import numpy as np
from mpi4py import MPI

from ..kernels.memory import address_of


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
