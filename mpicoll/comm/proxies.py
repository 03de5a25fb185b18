"""MPI requests that mpicoll completes itself, so that MPI's own Waitall, Waitany and Testall accept its collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from mpi4py import MPI

from ..engines.selftest import create_self_comm
from ..progress.operation import Operation

_TAGS = 1 << 15  # the smallest tag space MPI promises
_nothing = bytearray(0)
_something = bytearray(1)


def _once(function: Callable[[Any], Any], argument: Any, done: list[Any]) -> None:
    """Call a function of an extension unless it has returned before: an interrupt comes before or after, not between.

    Python handles signals between its own instructions, and this is one of them. Where the function raises, `done`
    stays empty, so that it is called again.
    """
    if not done:
        done.extend(map(function, (argument,)))


class GrequestProxy:
    """A generalized request. MPI's own Waitall raises the error of the collective."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.request: MPI.Request = MPI.Grequest.Start(_query, None, None, (operation,))
        self._done: list[Any] = []

    def complete(self) -> None:
        """Complete the request. A second call is harmless, and needed after an interrupt or an error."""
        _once(MPI.Grequest.Complete, self.request, self._done)


class Tags:
    """Tags of messages to oneself: each is in use by one message at most, on one communicator or another."""

    def __init__(self) -> None:
        self._free: list[tuple[MPI.Intracomm, int]] = []
        self._comms: list[MPI.Intracomm] = []
        self._new = count()
        self._making = threading.Lock()

    def take(self) -> tuple[MPI.Intracomm, int]:
        """Return a communicator and a tag on it that is in use by no message."""
        try:
            return self._free.pop()
        except IndexError:
            which, tag = divmod(next(self._new), _TAGS)
            return self._communicator(which), tag

    def give_back(self, back: Iterator[tuple[MPI.Intracomm, int]]) -> None:
        """Take back the pair that an iterator still has."""
        self._free.extend(back)

    def _communicator(self, which: int) -> MPI.Intracomm:
        """Return the communicator of that number, the same one to threads that want it at once."""
        with self._making:
            while len(self._comms) <= which:
                self._comms.append(create_self_comm())
        return self._comms[which]


class SelfMessageProxy:
    """An empty message from this rank to itself; one byte after an error, so that MPI's own Waitall raises."""

    tags = Tags()

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.comm, self.tag = self.tags.take()
        self.request = self.comm.Irecv([_nothing, 0, MPI.BYTE], 0, self.tag)
        self._done: list[Any] = []
        self._back = iter(((self.comm, self.tag),))

    def complete(self) -> None:
        """Complete the request. A second call is harmless, and needed after an interrupt or an error.

        The sent message matches the posted receive at once, so its tag may be used again before any Wait returns.
        """
        failed = int(self.operation.error is not None)
        _once(partial(self.comm.Send, [_something, failed, MPI.BYTE], 0), self.tag, self._done)
        self.tags.give_back(self._back)


# Open MPI takes any message from oneself for right, so no error would come out. Elsewhere messages are better: MPICH
# 5.0 ends the process where its Waitall meets a generalized request that is not complete beside a null request, and
# Intel MPI calls back into Python with its lock held, while another thread has Python's lock and waits for that one.
CompletionRequest: Any = GrequestProxy if MPI.get_vendor()[0] == "Open MPI" else SelfMessageProxy


def _query(status: MPI.Status, operation: Operation) -> None:
    """Leave the status empty but for an error that Wait and Test have not raised: MPI's own Waitall raises it.

    mpi4py would print the traceback of what this raises.
    """
    error = operation.error
    if error is not None and not operation.error_raised:
        status.error = error.Get_error_code() if isinstance(error, MPI.Exception) else MPI.ERR_OTHER
