"""Fewer bytes on the wire: codecs of float32, and collectives that keep what a codec leaves out.

    codecs      cast, int8, int4, topk: bytes, bounds, encode and decode
    feedback    an allreduce whose residual belongs to its buffer
    exact       sums whose bits depend on no order: a scale that all ranks share, whole numbers
    powersgd    a matrix by two thin factors

`mpicoll.compression.Allreduce(comm, "int4")` and the other names are found here. What the core needs of codecs imports
no MPI.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .codecs import Codec, parse
    from .exact import reproducible_sum, shared_scale_sum
    from .feedback import Allreduce
    from .powersgd import PowerSGD

_WHERE = {
    "Allreduce": "feedback",
    "Codec": "codecs",
    "PowerSGD": "powersgd",
    "parse": "codecs",
    "reproducible_sum": "exact",
    "shared_scale_sum": "exact",
}
__all__ = ["Allreduce", "Codec", "PowerSGD", "parse", "reproducible_sum", "shared_scale_sum"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(f".{_WHERE[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
