"""The request of a nonblocking collective: a generalized request that the progress thread completes.

So it works in MPI's own Waitall, Waitany and Testall, in lists mixed with plain requests, wherever the progress
thread runs (see progress.py); its own Wait and Test advance the plan themselves.
"""

from __future__ import annotations

from typing import Any, Literal

from mpi4py import MPI

from .channel import Channel
from .flight import Flight


class Request(MPI.Request):
    """A nonblocking collective under way. Wait and Test raise what the collective raised."""

    _channel: Channel
    _flight: Flight | None = None

    @classmethod
    def launch(cls, channel: Channel, flight: Flight) -> Request:
        """Start a flight; the request that completes with it."""
        general = MPI.Grequest.Start(_query, None, None, (flight,))
        request = cls(general)
        request._channel, request._flight = channel, flight
        flight.on_done = general.Complete
        with channel.lock:
            channel.launch(flight)
            channel.step(0.0)
        channel.background()
        return request

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait for the collective. Raises what it raised."""
        flight = self._flight
        if flight is not None and self != MPI.REQUEST_NULL:
            try:
                self._channel.wait(flight)
            finally:
                flight.told = True
                super().Wait(status)
            return True
        return super().Wait(status)

    def Test(self, status: MPI.Status | None = None) -> bool:
        """Whether the collective is complete. Raises what it raised."""
        flight = self._flight
        if flight is None or self == MPI.REQUEST_NULL:
            return super().Test(status)
        with self._channel.lock:
            self._channel.step(0.0)
        if not flight.done:
            return False
        flight.told = True
        super().Test(status)
        if flight.error is not None:
            raise flight.error
        return True

    wait: Any = Wait
    test: Any = Test


def _query(status: MPI.Status, flight: Flight) -> None:
    """Fill a status; an error goes out through MPI's own Waitall unless Wait or Test has told it."""
    status.Set_elements(MPI.BYTE, 0)
    status.Set_cancelled(False)
    if flight.error is not None and not flight.told:
        raise flight.error
