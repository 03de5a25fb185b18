"""Count mpi4py's lowercase collectives of Python objects, and compare them between ranks in check mode."""

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


def _counted(name: str) -> Any:
    native = getattr(MPI.Intracomm, name)

    @wraps(native)
    def method(self: Objects, *arguments: Any, **options: Any) -> Any:
        state = self._state
        if state is None or state.freed:
            return native(self, *arguments, **options)
        if state.settings.check:
            check_mode.compare_objects(state, name)
        state.object_calls, state.object_call = state.object_calls + 1, name
        try:
            return native(self, *arguments, **options)
        finally:
            state.object_call = ""

    return method


for _name in NAMES:
    setattr(Objects, _name, _counted(_name))
