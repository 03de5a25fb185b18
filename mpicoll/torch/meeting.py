"""Ranks meet in the store before they make the communicator of a process group, which blocks in MPI.

torch checks arguments after the ranks have exchanged addresses. A rank whose arguments torch refuses never makes the
communicator, so the others must learn of its error instead of waiting for it.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from mpi4py import MPI
from torch import distributed as dist

from ..diagnostics.status import describe
from ..errors import CommError, StallError

LINGER = timedelta(seconds=5)
_local = threading.local()


class Meeting:
    """The ranks of a process group that is being made, in a store of torch's.

    All ranks wait for one key, the verdict: set by the last rank that arrives, or by a rank that raises.
    """

    def __init__(self, store: Any, name: str, size: int, timeout: timedelta) -> None:
        self.store, self.name, self.size, self.timeout = store, name, size, timeout
        self.has_arrived = False

    def _key(self, what: str) -> str:
        return f"mpicoll/{self.name}/{what}"

    def _verdict(self, arrived: int) -> str:
        """Return the key of a meeting. Groups of one name may be made one after the other in the same store."""
        return self._key(f"verdict {arrived // self.size}")

    def arrive(self) -> None:
        """Wait for all ranks. Raises CommError where one of them raised, StallError at the timeout."""
        self.has_arrived = True
        begun = time.monotonic()
        try:
            number = self.store.add(self._key("arrived"), 1)
            key = self._verdict(number - 1)
            if number % self.size == 0:
                self.store.set(key, "")
            self.store.wait([key], self.timeout)
            words = self.store.get(key).decode()
        except RuntimeError as error:
            if time.monotonic() - begun < self.timeout.total_seconds():
                raise CommError(
                    f"the store in which the ranks of process group {self.name} meet failed; the rank that serves it "
                    f"may have ended: {error}"
                ) from error
            raise StallError(
                f"process group {self.name} was not made: {self._arrived()} of {self.size} ranks came within its "
                f"timeout of {self.timeout.total_seconds():g} s"
            ) from error
        if words:
            self._leave()
            raise CommError(f"process group {self.name} was not made, since {words}")

    def _arrived(self) -> int:
        with suppress(RuntimeError):
            number: int = self.store.add(self._key("arrived"), 0)
            return (number - 1) % self.size + 1
        return 0

    def fail(self, error: Exception) -> None:
        """Have the other ranks raise, unless this rank has arrived: they may be in MPI then."""
        if self.has_arrived:
            return
        self.has_arrived = True
        with suppress(RuntimeError):  # the store may be gone with the rank that serves it
            key = self._verdict(self.store.add(self._key("arrived"), 0))
            self.store.set(key, f"rank {MPI.COMM_WORLD.rank} raised {describe(error)}")
            self._leave()

    def _leave(self) -> None:
        """Wait a little until every rank has read the verdict: the store ends with the rank that serves it."""
        key = self._key("read by all")
        with suppress(RuntimeError):
            if self.store.add(self._key("read"), 1) % self.size == 0:
                self.store.set(key, "")
            self.store.wait([key], LINGER)


def call(
    make: Any, size: int, rank: int, ranks: Any, backend: Any, store: Any, name: Any, *arguments: Any, **options: Any
) -> Any:
    """Call torch's function that makes a process group, in a meeting that `arrive` finds."""
    if not _is_usable(store):
        return make(size, rank, ranks, backend, store, name, *arguments, **options)
    timeout = options.get("timeout") or timedelta(minutes=30)
    _local.meeting = meeting = Meeting(store, str(name), size, timeout)
    try:
        return make(size, rank, ranks, backend, store, name, *arguments, **options)
    except Exception as error:
        meeting.fail(error)
        raise
    finally:
        _local.meeting = None


def _is_usable(store: Any) -> bool:
    """Return whether a store holds values: torch gives groups of "mpi", and those made beside them, an empty class."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return type(store) is not dist.Store


def arrive() -> None:
    """Wait for the other ranks of the group that torch makes on this thread, if it does. Raises as Meeting.arrive."""
    meeting = getattr(_local, "meeting", None)
    if meeting is not None:
        meeting.arrive()
