"""MPI.COMM_WORLD and MPI.COMM_SELF made mpicoll's, for a program that does not know of it."""

from __future__ import annotations

import contextlib
import copyreg
import dataclasses
from typing import Any

from mpi4py import MPI
from mpi4py.MPI import COMM_SELF, COMM_WORLD  # pickle finds the plain ones here, by these names

from ..diagnostics.trace import Tally
from ..dispatch import prepare
from ..errors import ParameterError, PreconditionError
from ..runtime.comm_state import OPENED, CommState
from ..selection.select import Overrides
from .comm import Comm
from .lifetime import attach
from .persistent import Prequest

__all__ = ["COMM_SELF", "COMM_WORLD", "check", "named", "replace"]

_PLAIN = {"COMM_WORLD": COMM_WORLD, "COMM_SELF": COMM_SELF}


class _AnyPrequest(type):
    """Of mpi4py's own requests, too, it says that they are instances."""

    plain = MPI.Prequest

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.plain)


class _Prequest(Prequest, metaclass=_AnyPrequest):
    """MPI.Prequest for the program: its Startall takes mpicoll's."""


def check(overrides: Overrides) -> None:
    """Check that this rank can run what is chosen; collective. Raises EngineError, on this rank perhaps alone.

    And what making a Comm raises, on every rank.
    """
    attach(COMM_WORLD).use_engine(overrides.engine or "auto")


def replace(overrides: Overrides, tally: Tally | None) -> None:
    """Replace them, collectively; every communicator starts with these overrides, and is counted in the tally.

    Raises PreconditionError and ParameterError, on every rank, for an algorithm that does not suit the world's.
    """
    prepare.check_choices(attach(COMM_WORLD), dict(overrides.algorithms))

    def opened(state: CommState) -> None:
        _begin_with(state, overrides)
        if tally is not None:
            state.trace(tally.sink())

    MPI.Prequest = _Prequest  # type: ignore[misc]
    for name, plain in _PLAIN.items():
        setattr(MPI, name, Comm(plain))
        opened(attach(plain))
    OPENED.append(opened)
    copyreg.pickle(Comm, _reduced)


def _begin_with(state: CommState, overrides: Overrides) -> None:
    """Put them in force. An algorithm that does not suit these ranks raises when it is called, which may be never."""
    for collective, algorithm in overrides.algorithms:
        with contextlib.suppress(ParameterError, PreconditionError):
            prepare.check_choices(state, {collective: algorithm})  # learns which ranks share a node, if need be
    state.override(dataclasses.replace(overrides, learn=overrides.learn or state.settings.learn))


def named(name: str) -> MPI.Intracomm:
    """COMM_WORLD or COMM_SELF of the process that asks, mpicoll's or not."""
    comm: MPI.Intracomm = getattr(MPI, name)
    return comm


def _reduced(comm: Comm) -> Any:
    """Pickle the two by name, as mpi4py pickles its own: what comes back is the same object."""
    name = next((name for name in _PLAIN if named(name) is comm), None)
    return (named, (name,)) if name else comm.__reduce__()
