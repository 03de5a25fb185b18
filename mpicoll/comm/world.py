"""Replace MPI.COMM_WORLD and MPI.COMM_SELF by mpicoll's, for programs that do not import mpicoll."""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
from typing import Any

from mpi4py import MPI
from mpi4py.MPI import COMM_SELF, COMM_WORLD  # pickle imports mpi4py's from here

from ..diagnostics.trace import Tally
from ..dispatch import prepare
from ..errors import ParameterError, PreconditionError
from ..runtime.comm_state import OPENED, CommState
from ..selection.select import Overrides
from .comm import Comm
from .lifetime import attach
from .prequest import Prequest

__all__ = ["COMM_SELF", "COMM_WORLD", "check", "predefined", "replace"]

_MPI4PY = {"COMM_WORLD": COMM_WORLD, "COMM_SELF": COMM_SELF}


class _AnyPrequest(type):
    """A metaclass that makes mpi4py's own persistent requests instances too, but not of the program's subclasses."""

    plain = MPI.Prequest

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.plain) if cls is _Prequest else super().__instancecheck__(instance)


class _Prequest(MPI.Prequest, metaclass=_AnyPrequest):
    """MPI.Prequest for the program: its Startall starts mpicoll's requests."""

    Startall = Prequest.Startall


def check(overrides: Overrides) -> None:
    """Check that this rank can run the engine in overrides. Collective, since it makes the state of COMM_WORLD.

    Raises EngineError, perhaps on this rank alone, and on every rank the errors of making a Comm.
    """
    attach(COMM_WORLD).use_engine(overrides.engine or "auto")


def replace(overrides: Overrides, tally: Tally | None) -> None:
    """Replace MPI.COMM_WORLD, MPI.COMM_SELF and MPI.Prequest. Collective.

    Every communicator starts with these overrides, and is counted in the tally. Raises PreconditionError and
    ParameterError, on every rank, for an algorithm that does not suit COMM_WORLD.
    """
    prepare.check_choices(attach(COMM_WORLD), dict(overrides.algorithms))

    def opened(state: CommState) -> None:
        _override(state, overrides)
        if tally is not None:
            state.sinks.add(tally.sink())

    MPI.Prequest = _Prequest  # type: ignore[misc]
    for name, plain in _MPI4PY.items():
        setattr(MPI, name, Comm(plain))
        opened(attach(plain))
    OPENED.append(opened)
    copyreg.pickle(Comm, _reduce)


def _override(state: CommState, overrides: Overrides) -> None:
    """Put overrides in force. An algorithm that does not suit a communicator raises only when it is called."""
    for collective, algorithm in overrides.algorithms:
        with contextlib.suppress(ParameterError, PreconditionError):
            prepare.check_choices(state, {collective: algorithm})  # may find out which ranks share a node
    state.override(dataclasses.replace(overrides, learn=overrides.learn or state.settings.learn))


def predefined(name: str) -> MPI.Intracomm:
    """Return COMM_WORLD or COMM_SELF of this process by name, mpicoll's or mpi4py's."""
    comm: MPI.Intracomm = getattr(MPI, name)
    return comm


def _reduce(comm: Comm) -> Any:
    """Pickle COMM_WORLD and COMM_SELF by name, as mpi4py does, so that unpickling returns the same object."""
    name = next((name for name in _MPI4PY if predefined(name) is comm), None)
    return (predefined, (name,)) if name else comm.__reduce__()
