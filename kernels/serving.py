"""Which kernels serve in this process: those that numba compiles, or NumPy's where numba does not serve.

`from mpicoll.kernels.serving import address`: whoever imports from here does not ask which. Without numba the mpi4py
engine runs every schedule, more slowly, with the same results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

__all__ = [
    "WHY_PLAIN",
    "address",
    "call_address",
    "copy_bytes",
    "jit",
    "move_bytes",
    "njit",
    "pack_elements",
    "scale_address",
    "unpack_elements",
]

WHY_PLAIN = ""
"""Why numba does not serve; empty where it does."""

try:
    from numba import njit

    from .cache import jit
    from .pack import copy_bytes, move_bytes, pack_elements, unpack_elements
    from .reduce import address, call_address
    from .scale import address as scale_address

    address("SUM", np.dtype("f8"))  # a numba whose inner parts are others fails here at the latest
except Exception as error:
    WHY_PLAIN = f"{type(error).__name__}: {error}"
    if not TYPE_CHECKING:
        from .plain import (
            address,
            call_address,
            copy_bytes,
            jit,
            move_bytes,
            njit,
            pack_elements,
            scale_address,
            unpack_elements,
        )
