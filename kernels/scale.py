"""Elementwise division by one number, dst[i] = a[i] / b[0], which turns a sum into an average.

    kernel = scale.address(np.dtype("f4"))
    reduce.call(kernel, dst, a, b, n)                       # b: the address of one element of the dtype

Kernels have the signature of the reductions (see `reduce`), so code that calls those by address can call these. They
divide; multiplying by a rounded reciprocal would give other last digits. A complex vector is divided part by
part, by the real part of b[0]: NumPy's complex division goes through a reciprocal. For elements of less than 32 bits
b[0] is a float32. dst may be a.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from . import extended, lowp
from .cache import native
from .memory import carray
from .reduce import vectors
from .rules import EXTENDED, canonical, check_scalable, low

__all__ = ["address"]


def address(dtype: np.dtype) -> int:
    """Address of the kernel for elements of `dtype`; it stays valid.

    Raises TypeError for a dtype that is neither floating nor complex, NoKernel (a LookupError) where there is none.
    """
    return _address(np.dtype(dtype))


@cache
def _address(dtype: np.dtype) -> int:
    kind = check_scalable(dtype)
    if low(dtype) is not None:
        return lowp.scale_address(canonical(dtype))
    if dtype in EXTENDED:
        return extended.divide_address(dtype)
    part = dtype if kind == "floating" else np.dtype(f"f{dtype.itemsize // 2}")
    pointer = f"{part.str[1:]}*"
    return native(_KERNELS[kind], (pointer, pointer, pointer, "int64"), types=lambda: vectors(part))


# np.true_divide, as numba's x / d asks whether d is zero and raises. In place has a loop of its own: see reduce.


def _elementwise(name: str, parts: int) -> Any:
    """Return the kernel that divides each of the `parts` of an element."""

    def kernel(dst: Any, a: Any, b: Any, n: int) -> None:
        n *= parts
        out, x, by = carray(dst, (n,)), carray(a, (n,)), carray(b, (1,))[0]
        if out.ctypes.data == x.ctypes.data:
            for i in range(n):
                x[i] = np.true_divide(x[i], by)
        else:
            for i in range(n):
                out[i] = np.true_divide(x[i], by)

    kernel.__name__ = kernel.__qualname__ = name  # numba makes symbols and file names of it
    return kernel


_KERNELS = {"floating": _elementwise("scale", 1), "complex": _elementwise("scale_complex", 2)}
