"""Requests that are complete when we say so, and stand for a collective in MPI's own Waitall and its kin."""

from __future__ import annotations

import threading
from itertools import count
from typing import Any

from mpi4py import MPI

from .engines.selftest import oneself
from .flight import Flight

_TAGS = 1 << 15
_nothing = bytearray(0)
_something = bytearray(1)
_making = threading.Lock()
_made: list[MPI.Intracomm] = []


class General:
    """A generalized request, what MPI has for this. An error comes out of MPI's own Waitall."""

    def __init__(self, flight: Flight) -> None:
        self.flight = flight
        self.request: MPI.Request = MPI.Grequest.Start(_query, None, None, (flight,))

    def complete(self) -> None:
        """The collective is complete."""
        self.request.Complete()  # type: ignore[attr-defined]


class Message:
    """A message from oneself of no bytes; after an error of one, so that MPI's own Waitall raises."""

    tags = count()

    def __init__(self, flight: Flight) -> None:
        self.flight, self.tag = flight, next(self.tags) % _TAGS
        self.request = _oneself().Irecv([_nothing, 0, MPI.BYTE], 0, self.tag)

    def complete(self) -> None:
        """The collective is complete."""
        _oneself().Send([_something, int(self.flight.error is not None), MPI.BYTE], 0, self.tag)


def _oneself() -> MPI.Intracomm:
    """One for these messages alone, the same for threads that want their first request at once."""
    if not _made:
        with _making:
            if not _made:
                _made.append(oneself())
    return _made[0]


# Open MPI takes any message from oneself for right, so no error would come out. Elsewhere messages are better: MPICH
# 5.0 ends the process where its Waitall meets a generalized request that is not complete beside a null request, and
# Intel MPI calls back into Python with its lock held, while another thread has Python's lock and waits for that one.
Ticket: Any = General if MPI.get_vendor()[0] == "Open MPI" else Message


def _query(status: MPI.Status, flight: Flight) -> None:
    """The status stays empty; an error goes out through MPI's own Waitall unless Wait or Test has told it."""
    if flight.error is not None and not flight.told:
        raise flight.error
