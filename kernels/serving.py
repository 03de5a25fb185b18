"""Which kernels serve in this process: compiled ones, or NumPy's where those can be neither loaded nor compiled.

`from mpicoll.kernels.serving import address`: whoever imports from here does not ask which. Without compiled ones the
mpi4py engine runs every schedule, more slowly, with the same results.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from . import lowp, plain, reduce, scale
from .pack import copy_bytes, move_bytes, pack_elements, unpack_elements
from .reduce import call_address
from .rules import check, check_scalable

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


def why_plain() -> str:
    """Return why a kernel that was asked for is NumPy's, the first reason; empty where all are compiled."""
    return _why[0] if _why else ""


@cache
def address(op: str, dtype: np.dtype) -> int:
    """Address of the kernel for `op` on elements of `dtype`; it stays valid.

    Raises TypeError where MPI does not let `op` take `dtype`, NoKernel (a LookupError) where there is no kernel.
    """
    check(op, dtype)
    return _first(lambda: reduce.address(op, dtype), lambda: plain.address(op, dtype))


@cache
def scale_address(dtype: np.dtype) -> int:
    """Address of the kernel that divides elements of `dtype`; it stays valid. Raises as `address`."""
    check_scalable(dtype)
    return _first(lambda: scale.address(dtype), lambda: plain.scale_address(dtype))


@cache
def widen_address(dtype: np.dtype) -> int:
    """Address of the kernel that makes float32 of elements of less than 32 bits; it stays valid."""
    return _first(lambda: lowp.widen_address(dtype), lambda: plain.widen_address(dtype))


@cache
def narrow_address(dtype: np.dtype, stochastic: bool = False) -> int:
    """Address of the kernel that makes such elements of float32; it stays valid."""
    return _first(lambda: lowp.narrow_address(dtype, stochastic), lambda: plain.narrow_address(dtype, stochastic))


def _first(compiled: Callable[[], int], other: Callable[[], int]) -> int:
    try:
        return compiled()
    except Exception as error:  # there is no numba, or its inner parts are others
        _why.append(f"{type(error).__name__}: {error}")
        return other()
