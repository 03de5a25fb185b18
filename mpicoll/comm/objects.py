"""Define the lowercase collectives of Python objects: mpi4py's own, compared between ranks in check mode."""

from __future__ import annotations

from functools import wraps
from typing import Any

from mpi4py import MPI

from ..dispatch import check_mode
from ..runtime.comm_state import CommState

NAMES = ("bcast", "gather", "scatter", "allgather", "alltoall", "reduce", "allreduce", "scan", "exscan")


class Objects(MPI.Intracomm):
    """The lowercase collectives, which pickle objects."""

    _state: CommState | None

    def barrier(self) -> None:
        """Call Barrier, so that some ranks may call barrier and others Barrier."""
        self.Barrier()


def _compared(name: str) -> Any:
    native = getattr(MPI.Intracomm, name)

    @wraps(native)
    def method(self: Objects, *arguments: Any, **options: Any) -> Any:
        state = self._state
        if state is not None and state.settings.check and not state.freed:
            check_mode.compare_objects(state, name)
        return native(self, *arguments, **options)

    return method


for _name in NAMES:
    setattr(Objects, _name, _compared(_name))
