"""View the memory of a buffer argument as a NumPy array, which the fast path knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

BYTE = np.dtype(np.uint8)
_DTYPES = {code: np.dtype(code) for code in "?bBhHiIlLqQfd"}  # by format, where mpi4py's datatype is that of both
_NO_ARRAY = object()
_KNOWN = (np.ndarray, type(None), type(MPI.IN_PLACE), type(MPI.BOTTOM))


def plain_buffers(send: Any, recv: Any) -> tuple[Any, Any] | None:
    """Return a call's send and receive buffer, with arrays for other objects that have memory.

    None if the memory of one cannot be an array, or not one that the call may write; the slow path then says why.
    """
    plain_send, plain_recv = _plain(send, writable=False), _plain(recv, writable=True)
    return None if plain_send is _NO_ARRAY or plain_recv is _NO_ARRAY else (plain_send, plain_recv)


def _plain(message: Any, writable: bool) -> Any:
    """Return a buffer, or a list that begins with one, with an array for the buffer; _NO_ARRAY if there can be none."""
    is_list = isinstance(message, (list, tuple))
    if is_list and len(message) < 2:
        return _NO_ARRAY
    buffer = message[0] if is_list else message
    if type(buffer) in _KNOWN:
        return message
    array = as_array(buffer)
    if array is None or not array.flags.c_contiguous or not (array.flags.writeable or not writable):
        return _NO_ARRAY
    if not is_list:
        return array
    return (array, *message[1:]) if isinstance(message, tuple) else [array, *message[1:]]


def as_array(buffer: Any) -> np.ndarray | None:
    """Return an array on the memory of an object with the buffer protocol or DLPack; None if there can be none."""
    try:
        if isinstance(buffer, (bytes, bytearray)):
            return np.frombuffer(buffer, BYTE)
        if isinstance(buffer, np.ndarray):
            return buffer.view(np.ndarray)
        if hasattr(buffer, "__dlpack__"):
            return np.from_dlpack(buffer)
        view = memoryview(buffer)
        return np.frombuffer(view, _DTYPES[view.format])
    except Exception:  # an object's own code may raise anything
        return None
