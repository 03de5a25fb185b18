"""Make MPI requests that mpicoll completes, so that MPI's own Waitall, Waitany and Testall accept its collectives."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

from mpi4py import MPI

from ..engines.selftest import create_self_comm
from ..progress.operation import Operation

_TAGS_PER_COMM = 1 << 15  # the smallest tag space MPI promises
_nothing = bytearray(0)
_something = bytearray(1)


def _call_once(function: Callable[[Any], Any], argument: Any, done: list[Any]) -> None:
    """Call an extension function and record that in `done`, so that no interrupt comes between call and record.

    Python handles signals only between its own instructions, and the line below is one instruction. If the function
    raises, `done` stays empty, so that the next attempt calls it again.
    """
    if not done:
        done.extend(map(function, (argument,)))


class GrequestProxy:
    """A generalized request. MPI's own Waitall raises the collective's error."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.request: MPI.Request = MPI.Grequest.Start(_query, None, None, (operation,))
        self._done: list[Any] = []

    def complete(self) -> None:
        """Complete the request. A second call is harmless, and needed after an interrupt or an error."""
        _call_once(MPI.Grequest.Complete, self.request, self._done)


class SelfTags:
    """Tags for messages of a rank to itself: pairs of a communicator and a tag, each of one message at a time."""

    def __init__(self) -> None:
        self._free: list[tuple[MPI.Intracomm, int]] = []
        self._comms: list[MPI.Intracomm] = []
        self._numbers = count()
        self._lock = threading.Lock()

    def take(self) -> tuple[MPI.Intracomm, int]:
        """Return a communicator and a tag that no message uses."""
        try:
            return self._free.pop()
        except IndexError:
            index, tag = divmod(next(self._numbers), _TAGS_PER_COMM)
            return self._communicator(index), tag

    def give_back(self, back: Iterator[tuple[MPI.Intracomm, int]]) -> None:
        """Take back the pair that an iterator yields, if it was not taken back before."""
        self._free.extend(back)

    def _communicator(self, index: int) -> MPI.Intracomm:
        """Return a communicator by index, and make it if it is new; threads get the same one."""
        with self._lock:
            while len(self._comms) <= index:
                self._comms.append(create_self_comm())
        return self._comms[index]


class SelfMessageProxy:
    """An empty message from this rank to itself; after an error, one byte that truncates, so that Waitall raises."""

    tags = SelfTags()

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.comm, self.tag = self.tags.take()
        self.request = self.comm.Irecv([_nothing, 0, MPI.BYTE], 0, self.tag)
        self._done: list[Any] = []
        self._to_give_back = iter(((self.comm, self.tag),))

    def complete(self) -> None:
        """Complete the request. A second call is harmless, and needed after an interrupt or an error.

        The sent message matches the posted receive at once, so its tag may be used again before any Wait returns.
        """
        failed = int(self.operation.error is not None)
        _call_once(partial(self.comm.Send, [_something, failed, MPI.BYTE], 0), self.tag, self._done)
        self.tags.give_back(self._to_give_back)


# Open MPI reports no truncation of messages to oneself, so errors would be lost. On other MPIs messages are better.
# MPICH 5.0 ends the process if its Waitall gets an incomplete generalized request and a null request. Intel MPI calls
# back into Python with a lock held, while another thread may hold the GIL and wait for that lock.
CompletionRequest: Any = GrequestProxy if MPI.get_vendor()[0] == "Open MPI" else SelfMessageProxy


def _query(status: MPI.Status, operation: Operation) -> None:
    """Set the status's error if neither Wait nor Test has raised it, so that MPI's own Waitall raises it.

    This raises no error itself, since mpi4py would only print its traceback.
    """
    error = operation.error
    if error is not None and not operation.error_raised:
        status.error = error.Get_error_code() if isinstance(error, MPI.Exception) else MPI.ERR_OTHER
