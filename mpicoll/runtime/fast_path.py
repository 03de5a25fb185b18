"""What a channel knows of its fast path, which is a package above this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..selection.select import Overrides
from .operation import Operation


class FastPath(Protocol):
    """The fast path of a communicator, which serves calls that were made before."""

    @property
    def fast_call(self) -> Callable[..., int]:
        """The compiled function that a method tries first."""

    @property
    def closed(self) -> str:
        """Why every call takes the slow path; empty where not every call does."""

    def resume(self, method: Any, form: str) -> tuple[bool, Operation | None]:
        """Return whether the function began this call, and the operation that goes on with it unless it is over."""

    def key(self, call: Any) -> Any:
        """Return how to find what serves calls of this kind; None where the function could serve none of them."""

    def insert(self, call: Any) -> None:
        """Serve calls of this kind from now on, if it has a key, and the same served the last one."""

    def open_start(self, execution: Any, started: np.ndarray, nbytes: int) -> Any:
        """Return the fast path of a persistent collective's starts, None where they take the slow path."""

    def activate(self, overrides: Overrides) -> None:
        """Serve calls by what was inserted under these overrides."""

    def share_scratch(self, scratch: np.ndarray) -> bool:
        """Let calls use this scratch; False where one that is under way uses the last."""

    def reclaim_scratch(self, lent: bool = False) -> bool:
        """Let no call use it; False where one does, unless that is who takes what it was lent."""

    def close(self) -> None:
        """Serve nothing any more."""

    def leak(self) -> None:
        """Leave what was begun to MPI: nobody goes on with it."""

    def clear(self) -> None:
        """Forget every kind of call."""
