"""Find the memory of a buffer argument: by the buffer protocol, DLPack or the CUDA array interface."""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from .. import errors
from ..kernels.rules import low
from .dlpack import item_format
from .peek import peek

_ON_CPU = (1, 3, 11, 13)  # DLPack device types: CPU, pinned by CUDA or ROCm, managed


def memory_of(obj: Any, typed: bool, writable: bool) -> tuple[Any, int, int, str | None]:
    """Return (holder of the memory, its address, its length in bytes, the format of its items)."""
    if obj is None or obj is MPI.BOTTOM:
        return None, 0, 0, None
    if obj is MPI.IN_PLACE:
        raise errors.InPlaceError("MPI.IN_PLACE cannot be part of a list; pass it alone")
    format = None
    try:
        view = memoryview(obj)
    except TypeError:
        return _foreign_memory(obj, typed, writable)
    except (BufferError, ValueError) as error:  # NumPy has no format for dates and ml_dtypes' numbers
        if isinstance(obj, np.ndarray):
            format = low(obj.dtype)
        if not ((typed or format) and isinstance(obj, np.ndarray) and obj.flags.forc):
            raise errors.BufferAccessError(f"the buffer, {describe_type(obj)}, cannot be read: {error}") from None
        view = obj.ravel(order="K").view(np.uint8).data
    if not view.contiguous:
        raise not_contiguous_error(obj)
    if writable and view.readonly:
        raise _read_only(obj)
    return view, MPI.Get_address(view), view.nbytes, format or view.format


def _foreign_memory(obj: Any, typed: bool, writable: bool) -> tuple[Any, int, int, str | None]:
    """Return memory_of() an object with DLPack or the CUDA array interface, and without a Python buffer."""
    dlpack, cuda = hasattr(obj, "__dlpack__"), hasattr(obj, "__cuda_array_interface__")
    if not (dlpack or cuda):
        raise errors.NotABufferError(
            f"the buffer is {obj!r:.60}, {describe_type(obj)}; pass an object with the buffer interface, or a list "
            f"[buffer, count, displacement, datatype] or a shorter form of it"
        )
    try:
        holder = MPI.buffer.frombuffer(obj, readonly=not writable)
    except (BufferError, ValueError) as error:
        raise errors.BufferAccessError(f"the buffer, {describe_type(obj)}, cannot be used: {error}") from None
    if obj.__dlpack_device__()[0] not in _ON_CPU if dlpack else not _readable(holder):
        raise errors.BufferAccessError(f"the buffer, {describe_type(obj)}, is not in CPU memory; copy it there first")
    return holder, holder.address, holder.nbytes, None if typed else _foreign_format(obj, dlpack)


def _foreign_format(obj: Any, dlpack: bool) -> str | None:
    """Return the format of items; None for types without one (bfloat16), which are sent as bytes, as in mpi4py."""
    if dlpack:
        return item_format(obj)
    try:
        return np.empty(0, np.dtype(obj.__cuda_array_interface__["typestr"])).data.format
    except (TypeError, ValueError):
        return None


def _readable(holder: MPI.buffer) -> bool:
    """Return whether the CPU can read the memory; the CUDA array interface does not name the device."""
    return holder.nbytes == 0 or peek(holder.address, 1) is not None


def not_contiguous_error(obj: Any) -> errors.BufferAccessError:
    """Return the error of a buffer that is not contiguous."""
    return errors.BufferAccessError(
        f"the buffer, {describe_type(obj)}, is not contiguous; pass a contiguous one (numpy.ascontiguousarray "
        f"returns a copy), or the whole memory with a vector datatype"
    )


def _read_only(obj: Any) -> errors.BufferAccessError:
    return errors.BufferAccessError(
        f"the buffer, {describe_type(obj)}, is read-only and this rank receives into it; pass a writable one"
    )


def describe_type(value: object) -> str:
    """Return the phrase that names a value's type in an error."""
    return f"of type {type(value).__name__}"
