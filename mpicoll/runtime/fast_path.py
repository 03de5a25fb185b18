"""Declare the interface of a communicator's fast path; the package fastpath implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from ..diagnostics.history import RowWords
from ..diagnostics.record import Record
from ..progress.operation import Operation
from ..selection.select import Overrides


class FastPath(Protocol):
    """The fast path of a communicator, which serves calls like earlier ones."""

    @property
    def fast_call(self) -> Callable[..., int]:
        """Return the compiled function that a method tries first; it returns 0 if it completed the call."""

    @property
    def closed(self) -> str:
        """Return the reason why every call takes the slow path; empty if the fast path is open."""

    def resume(self, method: Any, form: str) -> tuple[bool, Operation | None]:
        """Return (True, the operation that completes the call, None if it is complete), or (False, None).

        False: fast_call did not begin this call, and the slow path must run it.
        """

    def note_line(self) -> None:
        """Write the program's line into the history row of the last call, for callers that are libraries themselves."""

    def key(self, call: Any) -> Any:
        """Return the key by which fast_call would find this kind of call; None if it cannot serve such calls."""

    def insert(self, call: Any) -> None:
        """Serve calls of this kind from now on, if the call has a key and its plan is that of the last such call."""

    def open_start(self, call: Any, execution: Any, started: np.ndarray, words: RowWords, record: Record) -> Any:
        """Return the fast path for the starts of a persistent collective; None if they take the slow path."""

    def activate(self, overrides: Overrides) -> None:
        """Serve the kinds of calls that were inserted under these overrides."""

    def share_scratch(self, scratch: np.ndarray) -> bool:
        """Let fast calls use this scratch. Return False if a fast call in flight uses the previous scratch."""

    def reclaim_scratch(self, in_use: bool = False) -> bool:
        """Stop fast calls from using the scratch. Return False if a fast call in flight uses it, unless in_use.

        in_use: the operation that completes that call takes the scratch over.
        """

    def close(self) -> None:
        """Serve no more calls."""

    def leak(self) -> None:
        """Abandon the call in flight, if any. Its memory stays allocated, since MPI may still write to it."""

    def clear(self) -> None:
        """Remove every kind of call."""

    def forget(self) -> None:
        """Remove every kind of call that was inserted under the overrides in force."""
