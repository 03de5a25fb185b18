"""The memory of tensors: as arrays that a communicator takes, without a copy where they are contiguous.

A tensor that is not contiguous, or conjugated, goes through a contiguous copy, which is copied back when the operation
is complete.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError, BufferAccessError

Finish = Callable[[], None]  # what is left to do when an operation is complete
_BYTE = np.dtype(np.uint8)
_UNSIGNED = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
_ELEMENTS = {
    getattr(torch, name): np.dtype(name)
    for name in (
        *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("float16", "float32", "float64", "complex64", "complex128"),
    )
} | {
    torch.bool: _BYTE,  # of 0 and 1
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
}


def check(tensor: Any) -> None:
    """Raise ArgumentError for what is no tensor of numbers; BufferAccessError for one that is not in CPU memory."""
    if not isinstance(tensor, Tensor):
        raise ArgumentError(f"a tensor is wanted, not {type(tensor).__name__}")
    if tensor.device.type != "cpu":
        raise BufferAccessError(f"the tensor is on {tensor.device}; mpicoll moves CPU memory, call .cpu() before")
    if tensor.layout is not torch.strided:
        raise BufferAccessError(f"the tensor's layout is {tensor.layout}; mpicoll takes dense ones, call .to_dense()")
    if tensor.is_quantized:
        raise BufferAccessError(f"the tensor is quantized, {tensor.dtype}; send its int_repr(), scale and zero point")


def check_writable(tensor: Tensor) -> None:
    """Raise BufferAccessError for an expanded tensor, several of whose elements share one place in memory."""
    if torch._debug_has_internal_overlap(tensor) == 1:
        raise BufferAccessError(
            f"the tensor that receives the result is expanded: its shape is {tuple(tensor.shape)}, its strides are "
            f"{tensor.stride()}, so elements share memory; pass a .clone() of it"
        )


def sparse(tensors: Any) -> Tensor | None:
    """Return the tensor of a list of one, or the tensor itself, if it is sparse and in coordinates."""
    tensor = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    is_sparse = isinstance(tensor, Tensor) and tensor.layout is torch.sparse_coo and tensor.device.type == "cpu"
    return tensor if is_sparse else None


def single_tensor(tensors: Any) -> Tensor:
    """Return the tensor of a list of one, or the tensor itself. Raises ArgumentError for more."""
    if isinstance(tensors, (list, tuple)):
        if len(tensors) != 1:
            raise ArgumentError(f"{len(tensors)} tensors for one device; mpicoll takes one in each call")
        tensors = tensors[0]
    check(tensors)
    tensor: Tensor = tensors
    return tensor


def _is_plain(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and not (tensor.is_complex() and tensor.is_conj()) and not tensor.is_neg()


def source(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory holds the values one behind the other: the same where it does."""
    if _is_plain(tensor):
        return tensor.detach()
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def target(tensor: Tensor) -> tuple[Tensor, Finish | None]:
    """Return such a tensor for the result, with the values of the tensor; and what copies it back where it is not.

    Raises BufferAccessError for a tensor that cannot hold a result.
    """
    if _is_plain(tensor):
        return tensor.detach(), None
    check_writable(tensor)
    staged = source(tensor)
    return staged, lambda: copy_back([(tensor, staged)])


def copy_back(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair to the first, of whatever shape."""
    with torch.no_grad():
        for tensor, staged in pairs:
            tensor.copy_(staged.view(tensor.shape))


def as_bytes_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a contiguous tensor as an array that can be sent: of integers where NumPy lacks its type."""
    return _array(tensor, _ELEMENTS.get(tensor.dtype) or _UNSIGNED.get(tensor.element_size(), _BYTE))


def as_numeric_array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the memory of a contiguous tensor as an array of its elements. Raises BufferAccessError for odd types."""
    dtype = _ELEMENTS.get(tensor.dtype)
    if dtype is None:
        raise BufferAccessError(f"neither MPI nor mpicoll reduces {tensor.dtype}; convert the tensor to another type")
    return _array(tensor, dtype)


def _array(tensor: Tensor, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return an array of the tensor's memory that keeps the tensor alive.

    Tensor.numpy() would do, but for good it takes from torch the right to resize the memory, as FSDP does.
    """
    nbytes = tensor.nbytes
    if nbytes == 0:
        return np.empty(0, dtype)
    memory = (ctypes.c_char * nbytes).from_address(tensor.data_ptr())
    memory.tensor = tensor
    return np.frombuffer(memory, dtype)


def flatten(tensors: Sequence[Tensor], fill: bool) -> tuple[Tensor, bool]:
    """Return one flat tensor of all, and whether it shares their memory, which it does if they are contiguous.

    With fill it holds their values. Raises ArgumentError where their types differ.
    """
    first = tensors[0]
    for tensor in tensors:
        check(tensor)
        if tensor.dtype is not first.dtype:
            raise ArgumentError(f"tensors of {first.dtype} and {tensor.dtype} in one call; they must be of one type")
    if whole := _in_one_piece(tensors):
        return torch.as_strided(first.detach(), (whole,), (1,)), True
    flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=first.dtype)
    if fill:
        copy_back(list(zip(flat.split([tensor.numel() for tensor in tensors]), map(source, tensors))))
    return flat, False


def _in_one_piece(tensors: Sequence[Tensor]) -> int:
    """Return the number of elements of all tensors where each begins where the one before ends; else 0."""
    first, total = tensors[0], 0
    storage, at = first.untyped_storage().data_ptr(), first.storage_offset()
    for tensor in tensors:
        ours = tensor.untyped_storage().data_ptr() == storage and tensor.storage_offset() == at + total
        if not (ours and _is_plain(tensor)):
            return 0
        total += tensor.numel()
    return total


def scattered(flat: Tensor, tensors: Sequence[Tensor]) -> Finish:
    """Return what copies a flat tensor to tensors, one part to each. Raises as `target` does."""
    for tensor in tensors:
        check_writable(tensor)
    return lambda: copy_back(list(zip(tensors, flat.split([tensor.numel() for tensor in tensors]))))


def overlap(a: Tensor, b: Tensor) -> bool:
    """Return whether two contiguous tensors share memory."""
    start, other = a.data_ptr(), b.data_ptr()
    return bool(start < other + b.nbytes and other < start + a.nbytes and a.nbytes > 0 < b.nbytes)
