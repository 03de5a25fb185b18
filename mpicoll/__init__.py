"""MPI collectives as data: proved for each number of ranks, explained, and fast from Python.

    import mpicoll
    comm = mpicoll.Comm(MPI.COMM_WORLD)     # an MPI.Intracomm; its collectives are mpicoll's
    mpicoll.list_algorithms()               # {"allreduce": ("ring", …), …}
    mpicoll.verify(mpicoll.schedule("allreduce", "ring", p=5))

Schedules, proofs and pictures need no MPI: only what is reached through Comm imports mpi4py.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import algorithms, errors
from ._version import __version__
from .schedules.registry import algorithm, list_algorithms
from .schedules.schedule import schedule

if TYPE_CHECKING:
    from .buffers.operators import AVG
    from .comm.comm import Cartcomm, Comm, Distgraphcomm, Graphcomm
    from .comm.prequest import Prequest
    from .comm.requests import Request
    from .comm.resilient import resilient
    from .describe.text import draw
    from .proofs.check_schedule import verify
    from .timeline.spans import span

__all__ = [
    "AVG", "Cartcomm", "Comm", "Distgraphcomm", "Graphcomm", "Prequest", "Request", "__version__", "algorithm",
    "algorithms", "draw", "errors", "list_algorithms", "resilient", "schedule", "span", "verify",
]  # fmt: skip


# what is imported on first use: MPI must not start, nor a proof be loaded, because mpicoll is imported
_LATER = {
    "AVG": "buffers.operators", "Cartcomm": "comm.comm", "Comm": "comm.comm", "Distgraphcomm": "comm.comm",
    "Graphcomm": "comm.comm", "Prequest": "comm.prequest", "Request": "comm.requests",
    "resilient": "comm.resilient", "span": "timeline.spans",
    "draw": "describe.text", "verify": "proofs.check_schedule",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import on first use, and keep all names of the modules that this loaded: nothing can be imported at exit."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import_module(f".{_LATER[name]}", __name__)
    modules = {attribute: sys.modules.get(f"{__name__}.{place}") for attribute, place in _LATER.items()}
    globals().update(
        {attribute: getattr(module, attribute) for attribute, module in modules.items() if hasattr(module, attribute)}
    )
    return globals()[name]


def __dir__() -> list[str]:
    """Name what is imported on first use too, for completion and the reference."""
    return sorted({*globals(), *__all__})
