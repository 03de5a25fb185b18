"""The arithmetic and the copying of mpicoll: fast loops over memory, without the GIL and without MPI.

    reduce      dst[i] = a[i] op b[i] for MPI's twelve operators: address(), call(), allowed(), kind_of()
    scale       dst[i] = a[i] / b[0], the last step of an average: address()
    elements    conversions of single elements of 16 and 8 bits, and random bits
    lowp        kernels on these elements: to float32 and back, reductions
    extended    kernels on x87's long doubles
    codecs      groups of float32 to fewer bytes and back
    pack        elements of datatypes to and from a contiguous buffer
    memory      arrays at addresses, inside jitted code
    reference   all of it in NumPy: what tests compare with, and what to read first
    rules       which operator takes which dtype, and what it computes on NaN, ties and overflow
    serving     what mpicoll uses: of these what is compiled, or `plain` where nothing can be
    plain       the same on NumPy and ctypes
    background  a process that compiles while NumPy's kernels serve
    cache       jit() and native(): a function is loaded, or compiled once per machine
    deferred    numba's names for those who write kernels, without importing it
    compiler    from a function to a shared library, by numba
    waiting     which process compiles while others wait for what it compiles

Import the module you need: `from mpicoll.kernels import reduce`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import background, cache, codecs, compiler, deferred, elements, extended, lowp, memory, pack, plain, reduce
    from . import reference as reference
    from . import rules as rules
    from . import scale as scale
    from . import serving as serving
    from . import waiting as waiting

__all__ = [
    "background",
    "cache",
    "codecs",
    "compiler",
    "deferred",
    "elements",
    "extended",
    "lowp",
    "memory",
    "pack",
    "plain",
    "reduce",
    "reference",
    "rules",
    "scale",
    "serving",
    "waiting",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
