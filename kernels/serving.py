"""The kernels that serve in this process: compiled ones, or NumPy's.

NumPy's serve until the compiled ones are there (see background.py), and where those can be neither loaded nor compiled.
Without compiled kernels the mpi4py engine runs every schedule, more slowly, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import lowp, plain, reduce, scale
from .background import NotCompiled, Request, instead_of
from .pack import copy_bytes, move_bytes, pack_elements, unpack_elements
from .reduce import call_address
from .rules import canonical, check, check_scalable

__all__ = [
    "address",
    "call_address",
    "copy_bytes",
    "move_bytes",
    "narrow_address",
    "pack_elements",
    "scale_address",
    "unpack_elements",
    "why_plain",
    "widen_address",
]

_why: list[str] = []
_addresses: dict[tuple[Any, ...], int] = {}  # those that stay as they are


def why_plain() -> str:
    """Return why a kernel that was asked for is NumPy's, the first reason; empty where all are compiled."""
    return _why[0] if _why else ""


def address(op: str, dtype: np.dtype) -> int:
    """Return the address of the kernel for `op` on elements of `dtype`; it stays valid.

    Raises TypeError where MPI does not let `op` take `dtype`, NoKernel (a LookupError) where there is no kernel.
    """
    check(op, dtype)
    return _serving(reduce.address, plain.address, op, canonical(np.dtype(dtype)))


def scale_address(dtype: np.dtype) -> int:
    """Return the address of the kernel that divides elements of `dtype`; it stays valid. Raises as `address`."""
    check_scalable(dtype)
    return _serving(scale.address, plain.scale_address, canonical(np.dtype(dtype)))


def widen_address(dtype: np.dtype) -> int:
    """Return the address of the kernel that makes float32 of elements of less than 32 bits; it stays valid."""
    return _serving(lowp.widen_address, plain.widen_address, canonical(np.dtype(dtype)))


def narrow_address(dtype: np.dtype, stochastic: bool = False) -> int:
    """Return the address of the kernel that makes such elements of float32; it stays valid."""
    return _serving(lowp.narrow_address, plain.narrow_address, canonical(np.dtype(dtype)), stochastic)


def _serving(compiled: Callable[..., int], numpy: Callable[..., int], *arguments: Any) -> int:
    """Return the address of a compiled kernel, or of NumPy's in its place."""
    key = compiled, *arguments
    if (kernel_address := _addresses.get(key)) is not None:
        return kernel_address
    try:
        with instead_of(Request(compiled.__module__, compiled.__name__, arguments)):
            kernel_address = compiled(*arguments)
    except NotCompiled:
        return numpy(*arguments)
    except Exception as error:  # there is no numba, or its inner parts are others
        _why.append(f"{type(error).__name__}: {error}")
        kernel_address = numpy(*arguments)
    _addresses[key] = kernel_address
    return kernel_address
