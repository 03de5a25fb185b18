"""The arithmetic and the copying of mpicoll: fast loops over memory, without the GIL and without MPI.

    reduce      dst[i] = a[i] op b[i] for MPI's twelve operators: address(), call(), allowed(), kind_of()
    scale       dst[i] = a[i] / b[0], the last step of an average: address()
    pack        strided layouts, segment lists and elements of datatypes to and from a contiguous buffer
    reference   all of it in NumPy: what tests compare with, and what to read first
    rules       which operator takes which dtype, and what it computes on NaN, ties and overflow
    serving     what mpicoll uses: of these what numba compiles, or `plain` where numba does not serve
    plain       the same on NumPy and ctypes, for processes without numba
    cache       compile once per machine: jit() and native(), for whoever adds compiled functions
    waiting     which process compiles while others wait for what it compiles

Import the module you need: `from mpicoll.kernels import reduce`. They are loaded when first asked for, since
reduce, scale, pack, cache and serving bring in numba (0.35 s), which the others do without.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import cache, pack, plain, reduce, reference, rules, scale, serving, waiting

__all__ = ["cache", "pack", "plain", "reduce", "reference", "rules", "scale", "serving", "waiting"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
