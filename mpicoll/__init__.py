"""MPI collectives as data: proved for each number of ranks, explained, and fast from Python.

    import mpicoll
    comm = mpicoll.Comm(MPI.COMM_WORLD)     # an MPI.Intracomm; its collectives are mpicoll's
    mpicoll.algorithms()                    # {"allreduce": ("ring", …), …}
    mpicoll.schedule("allreduce", "ring", p=5).verify()

Schedules, proofs and pictures need no MPI: only what is reached through Comm imports mpi4py.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import algorithms as _registered  # noqa: F401 - registers them
from . import errors
from .schedules.registry import algorithm, algorithms
from .schedules.schedule import schedule

if TYPE_CHECKING:
    from .buffers.operators import AVG
    from .comm.comm import Cartcomm, Comm, Distgraphcomm, Graphcomm
    from .comm.persistent import Prequest
    from .comm.requests import Request

__version__ = "0.1.0"
__all__ = [
    "AVG", "Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "Prequest", "Request", "__version__", "algorithm",
    "algorithms", "errors", "schedule",
]  # fmt: skip


_LATER = {
    "AVG": "buffers.operators", "Cartcomm": "comm.comm", "Comm": "comm.comm", "Distgraphcomm": "comm.comm",
    "Graphcomm": "comm.comm",
    "Prequest": "comm.persistent", "Request": "comm.requests",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """What uses MPI, on first use, so that importing mpicoll does not start MPI."""
    if name in _LATER:
        return getattr(import_module(f".{_LATER[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
