"""The protocol of a communicator's fast path, which is in a package above this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..diagnostics.history import RowWords
from ..progress.operation import Operation
from ..selection.select import Overrides


class FastPath(Protocol):
    """The fast path of a communicator, which serves calls that were made before."""

    @property
    def fast_call(self) -> Callable[..., int]:
        """The compiled function that a method tries first."""

    @property
    def closed(self) -> str:
        """The reason why every call takes the slow path; empty if some need not."""

    def resume(self, method: Any, form: str) -> tuple[bool, Operation | None]:
        """Return whether the function began this call, and the operation that completes it, None if it is complete."""

    def note_line(self) -> None:
        """Note the program's line of the last call in its row, where other libraries are between it and the method."""

    def key(self, call: Any) -> Any:
        """Compute the key of a kind of call; return None if the function cannot serve such calls."""

    def insert(self, call: Any) -> None:
        """Serve calls of this kind from now on, if it has a key, and the same served the last one."""

    def open_start(self, execution: Any, started: np.ndarray, words: RowWords) -> Any:
        """Return the fast path of a persistent collective's starts, None where they take the slow path."""

    def activate(self, overrides: Overrides) -> None:
        """Serve calls by what was inserted under these overrides."""

    def share_scratch(self, scratch: np.ndarray) -> bool:
        """Let fast calls use this scratch. Return False if one in flight uses the previous one."""

    def reclaim_scratch(self, lent: bool = False) -> bool:
        """Stop fast calls from using the scratch. Return False if one uses it, unless lent: its operation takes it."""

    def close(self) -> None:
        """Serve no more calls."""

    def leak(self) -> None:
        """Abandon what was begun. Its memory stays allocated, since MPI may still write to it."""

    def clear(self) -> None:
        """Remove every kind of call."""

    def forget(self) -> None:
        """Remove every kind of call that was inserted under the overrides in force."""
