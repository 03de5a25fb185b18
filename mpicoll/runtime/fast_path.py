"""What a channel knows of its fast path, which is a package above this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from ..selection.select import Overrides
from .operation import Operation


class FastPath(Protocol):
    """The fast path of a communicator, which serves calls that were made before."""

    @property
    def fast_call(self) -> Callable[..., int]:
        """The compiled function that a method tries first."""

    def miss(self, method: Any, buffers: Sequence[Any], root: Any, op: MPI.Op | None) -> Any:
        """Return what kind of call it is; None where the function could serve none of it."""

    def insert(self, miss: Any, call: Any, prepared: Any, buffers: Sequence[Any], root: Any, op: MPI.Op | None) -> None:
        """Serve calls of this kind from now on, if it may be, and the same served the last one."""

    def resume(self, method: Any, form: str = "blocking") -> Operation | bool:
        """Return what becomes of a call it began: True if it is over, an operation if not; else False."""

    def under(self, overrides: Overrides) -> None:
        """Serve calls by what was inserted under these overrides."""

    def lend(self, scratch: np.ndarray) -> bool:
        """Let calls use this scratch; False where one that is under way uses the last."""

    def withdraw(self, lent: bool = False) -> bool:
        """Let no call use it; False where one does, unless that is who takes what it was lent."""

    def close(self) -> None:
        """Serve nothing any more."""

    def leak(self) -> None:
        """Leave what was begun to MPI: nobody goes on with it."""

    def clear(self) -> None:
        """Forget every kind of call."""
