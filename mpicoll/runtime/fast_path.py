"""What a channel knows of its fast path, which is a package above this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..selection.select import Overrides


class FastPath(Protocol):
    """The fast path of a communicator, which serves calls that were made before."""

    @property
    def fast_call(self) -> Callable[..., int]:
        """The compiled function that a method tries first."""

    @property
    def closed(self) -> str:
        """Why every call takes the slow path; empty where not every call does."""

    def miss(self, form: str, given: Any) -> Any:
        """Return what is known of a call that the function did not serve (a fastpath.miss.Miss)."""

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
