"""Define the requests of persistent collectives: Start begins a call that was prepared once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mpi4py import MPI

from ..errors import CommError, MpicollError, RequestError
from ..progress.operation import CallId, Operation
from ..runtime.comm_state import CommState
from . import release
from .requests import CollectiveRequest

if TYPE_CHECKING:
    from ..fastpath.start import CompiledFastStart


class Startable(Protocol):
    """A persistent call, as its request uses it."""

    @property
    def sequence(self) -> int:
        """Return the number of the call."""

    @property
    def name(self) -> str:
        """Return the name of the method that was called."""

    @property
    def fast_start(self) -> CompiledFastStart | None:
        """Return the fast path of its starts, None if they take the slow path."""

    def update_kernels(self) -> bool:
        """Use kernels that have been compiled meanwhile. Return whether the fast path of starts has opened."""

    def next_start(self) -> Operation | None:
        """Return the operation of one start; None if the fast path completed it."""

    def free(self) -> None:
        """Free the call's resources, now or when its start in flight completes."""


class Prequest(CollectiveRequest, MPI.Prequest):
    """An MPI.Prequest for a persistent collective. Start begins it; the previous start must be complete.

    While a start is in flight, MPI's own Waitall accepts the request, as it accepts a Request. To start a list, use
    mpicoll.Prequest.Startall: MPI.Prequest.Startall cannot start plans.
    """

    _persistent: Startable | None = None
    _freed: Callable[[], Any]
    _fast_call: Callable[[Prequest], int] = staticmethod(lambda request: 1)
    _finish: Callable[[Prequest], int] = staticmethod(lambda request: 1)

    @classmethod
    def prepare(cls, state: CommState, persistent: Startable) -> Prequest:
        """Return an inactive request."""
        request = cls()
        request._state, request._persistent = state, persistent
        request._use_fast_start(persistent)
        request._freed = freed = weakref.finalize(request, persistent.free)
        freed.atexit = False
        return request

    def _use_fast_start(self, persistent: Startable) -> None:
        if persistent.fast_start is not None:
            self._fast_call, self._finish = persistent.fast_start.fast_call, persistent.fast_start.finish

    def Start(self) -> None:
        """Start the call. Raises RequestError if it is in flight or freed, CommError if its communicator is freed."""
        if self._fast_call(self):
            self._start()

    def _start(self) -> None:
        if self._persistent is None:
            raise RequestError("the request was freed; make another")
        try:
            operation = self._next_operation(self._persistent)
        except MpicollError as error:
            starts = self._state.queue.started.get(self._persistent.sequence, (0,))
            call_id = CallId(self._persistent.sequence, int(starts[0]) + 1, self._persistent.name)
            self._state.fail(call_id, error, was_made=False)
            if isinstance(error, MPI.Exception):
                self._state.call_errhandler(error)
            raise
        if operation is None:
            self._set_complete()
        else:
            self._begin(self._state, operation)

    def _next_operation(self, persistent: Startable) -> Operation | None:
        if self._is_active():
            raise RequestError("the request is in flight; wait for it before starting it again")
        if self._state.freed:
            raise CommError("the communicator of this request was freed")
        self._state.rank_failure.check()
        if persistent.update_kernels():
            self._use_fast_start(persistent)
        return persistent.next_start()

    def Wait(self, status: MPI.Status | None = None) -> Literal[True]:
        """Wait until the collective is complete. Raises the errors of the collective."""
        return True if status is None and not self._finish(self) else super().Wait(status)

    @classmethod
    def Startall(cls, requests: Sequence[MPI.Prequest]) -> None:
        """Start requests in order; mpicoll's and MPI's own may be mixed."""
        for request in requests:
            request.Start()

    def Free(self) -> None:
        """Wait for the start in flight, and free the request. A second call is harmless."""
        if self._is_active():
            self.Wait()
        self._persistent = None
        for function in ("_fast_call", "_finish"):  # they use memory that is freed
            vars(self).pop(function, None)
        self._freed()
        release.run_deferred_frees()

    free: Any = Free

    def __bool__(self) -> bool:
        return self._persistent is not None

    def __eq__(self, other: object) -> bool:
        """Compare handles. As in MPI, an inactive request equals no other, not even the null request."""
        if not isinstance(other, MPI.Request):
            return NotImplemented
        return self is other or (super().__eq__(other) and (self._is_active() or not self))

    def __ne__(self, other: object) -> bool:
        return NotImplemented if not isinstance(other, MPI.Request) else not self == other

    __hash__ = MPI.Prequest.__hash__
